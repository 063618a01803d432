"""Plans: the best cut on devices whose latency has a closed form, files, damaged files, and what tasks wait for."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import NUMBERS_THAT_CANNOT_BE, VALUES, at, json_values, one_line, places, whole_files, with_value, without
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import TRAITS, networks
from random_ops import F4, convs, linears

from coexec.api import build
from coexec.costs import Floats
from coexec.dependencies import add_waits
from coexec.device import cpu_cores
from coexec.errors import PlanError
from coexec.graph import Graph, Node, Tensor
from coexec.kernels import KERNELS
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.layout import Array, Layout
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.base import Columns, DeviceOp, SplitOp
from coexec.ops.concat import Concat
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.ops.split_ops import SPLIT_OPS
from coexec.ops.views import Box, Sliced
from coexec.placement import Link
from coexec.plan import Plan, Task, check_plan
from coexec.planner import Resources, assemble, layer_tasks, make_plan, share_choices

USE = Resources("sim:0", "simulated", TRAITS, cpu_threads=1)


def graph_of(*ops: SplitOp) -> Graph:
    """Independent layers l0, l1, ..., each with inputs of its own."""
    nodes, tensors, constants, inputs = [], {}, {}, []
    for i, op in enumerate(ops):
        shapes = op.array_shapes
        for role in ("x", "residual", "y"):
            if role in shapes:
                tensors[f"{role}{i}"] = Tensor(f"{role}{i}", shapes[role], F4, Layout.channels_last(len(shapes[role])))
        for role in ("weight", "bias"):
            if role in shapes:
                constants[f"{role}{i}"] = np.zeros(shapes[role], np.float32)
        names = tuple(f"{role}{i}" if role in shapes else "" for role in ("x", "weight", "bias", "residual"))
        inputs += [n for n in (names[0], names[3]) if n]
        nodes.append(Node(f"l{i}", op, names, (f"y{i}",)))
    return Graph("layers", tuple(nodes), tensors, constants, tuple(inputs), tuple(f"y{i}" for i in range(len(ops))))


def flops_of(kind: str, columns: Columns) -> Array:
    return SPLIT_OPS[kind].matmul(columns).flops


@dataclass(frozen=True)
class Simulated:
    """A device whose sides work at constant rates (FLOP per us), after a fixed time each."""

    gpu_rate: float
    cpu_rate: float
    hand_over_us: float = 0.0
    gpu_fixed_us: float = 0.0
    kernel_rate: float = 0.0
    """Of the CPU side's kernels; 0 is unknown."""
    slower: float = 0.0
    name: str = "closed form"

    def gpu_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        return np.asarray(flops_of(kind, columns) / self.gpu_rate + self.gpu_fixed_us)

    def cpu_us(self, kind: str, columns: Columns, threads: int) -> Floats:
        return np.asarray(flops_of(kind, columns) / self.cpu_rate)

    def cpu_kernel_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        return np.asarray(flops_of(kind, columns) / self.kernel_rate)

    def knows_cpu_kernels(self, threads: int) -> bool:
        return self.kernel_rate > 0

    def sync_us(self) -> float:
        return self.hand_over_us

    def slowdown(self) -> float:
        return self.slower

    def turn_us(self) -> float:
        return self.hand_over_us

    def op_us(self, graph: Graph, node: Node) -> float:
        return 1.0

    def kernel_us(self, op: DeviceOp, traits: GpuTraits) -> float:
        return 1.0


# M = 1 leaves the channel axis only, on which the latency of N channels is linear in N.
LAYER = Linear(1, 500, 1280)
WORK = LAYER.flops() / 100.0  # us of the whole layer at rate 100
STEP = KERNELS["linear"][0].alignment("channel", TRAITS)


@pytest.mark.parametrize(
    ("device", "best_cut", "best_us"),
    [
        (Simulated(100, 100), 640, WORK / 2),
        (Simulated(300, 100), 960, WORK / 4),
        (Simulated(100, 300), 320, WORK / 4),
        (Simulated(100, 100, hand_over_us=50), 640, WORK / 2 + 50),
        # A hand-over that costs more than splitting can save: the faster side alone, without one.
        (Simulated(100, 200, hand_over_us=WORK), 0, WORK / 2),
        (Simulated(1e6, 100, hand_over_us=1), 1280, WORK / 1e4),
        # A fixed time of the GPU side moves the balance towards the CPU: g * n + f = (N - n) * g.
        (Simulated(100, 100, gpu_fixed_us=WORK / 2), 320, WORK * 3 / 4),
        (Simulated(100, 100, gpu_fixed_us=2 * WORK), 0, WORK),
    ],
)
def test_best_partition_of_a_closed_form_device(device: Simulated, best_cut: int, best_us: float) -> None:
    assert best_cut % STEP == 0, "the case must have its optimum on a cut that is allowed"
    plan = make_plan(graph_of(LAYER), device, USE)
    (layer,) = plan.layers
    assert (layer.cut, layer.units) == (best_cut, 1280)
    assert layer.predicted_us == pytest.approx(best_us)
    assert plan.predicted_ms == pytest.approx(best_us / 1e3)


def test_rows_are_cut_where_channels_cannot_be() -> None:
    """With fewer channels than a tile holds, and one that cannot be divided, only rows balance both sides."""
    op = Linear(M=64, K=100, N=1)
    (layer,) = make_plan(graph_of(op), Simulated(100, 100), USE).layers
    assert (layer.axis, layer.cut) == ("row", 32)


def test_groups_are_cut_whole() -> None:
    op = Conv2d(1, 12, 1, 1, 15, 1, 1, groups=3)
    (layer,) = make_plan(graph_of(op), Simulated(200, 100), USE).layers
    assert (layer.axis, layer.cut) == ("channel", 10)


def test_without_a_device_all_is_the_cpu_side() -> None:
    plan = make_plan(graph_of(LAYER, LAYER), Simulated(1e9, 1), Resources("", "", None, 2))
    assert [layer.cut for layer in plan.layers] == [0, 0]
    assert {task.side for task in plan.tasks} == {"cpu"}
    assert plan.compute_units == 0


WITH_KERNELS = replace(USE, cpu_device="own:0", cpu_device_name="own", cpu_traits=replace(TRAITS, vector_width=8))


@pytest.mark.parametrize(
    ("kernel_rate", "use", "cut", "code"),
    [
        (300, WITH_KERNELS, 320, "linear_tile"),
        (50, WITH_KERNELS, 640, "numpy_matmul"),
        (0, WITH_KERNELS, 640, "numpy_matmul"),  # nothing is known of kernels
        (300, USE, 640, "numpy_matmul"),  # nothing can run them
    ],
)
def test_the_cpu_side_takes_what_is_faster_there(kernel_rate: float, use: Resources, cut: int, code: str) -> None:
    plan = make_plan(graph_of(LAYER), Simulated(100, 100, kernel_rate=kernel_rate), use)
    (layer,) = plan.layers
    assert (layer.cut, layer.cpu_impl) == (cut, code)
    assert plan.predicted_ms == pytest.approx(WORK * cut / 1280 / 1e3)
    by_kernel = code == "linear_tile"
    assert (plan.cpu_device, plan.cpu_device_name) == (("own:0", "own") if by_kernel else ("", ""))


@pytest.mark.parametrize(("slower", "cut", "us"), [(0.25, 640, WORK / 2 * 1.25), (1.5, 1280, WORK)])
def test_sides_that_slow_one_another_split_less(slower: float, cut: int, us: float) -> None:
    (layer,) = make_plan(graph_of(LAYER), Simulated(100, 100, slower=slower), USE).layers
    assert layer.cut == cut
    assert layer.predicted_us == pytest.approx(us)


def test_one_side_has_all_layers_where_it_has_all_cores() -> None:
    use = Resources("sim:0", "simulated", TRAITS, 1, split=False)
    device = Simulated(200, 1e6, hand_over_us=50, gpu_fixed_us=5)
    plan = make_plan(graph_of(LAYER, Linear(1, 5, 7)), device, use)
    assert [layer.cut for layer in plan.layers] == [1280, 7]
    assert plan.predicted_ms == pytest.approx((WORK / 2 + 5 + 70 / 200 + 5) / 1e3)


@pytest.mark.parametrize(("hand_over_us", "cuts"), [(0.5, [1280, 0, 1280]), (50.0, [1280, 7, 1280])])
def test_a_small_layer_changes_sides_only_if_that_pays(hand_over_us: float, cuts: list[int]) -> None:
    """Between two layers that the GPU side has, the CPU side's advantage must pay for two changes."""
    device = Simulated(1e5, 100, hand_over_us=hand_over_us, gpu_fixed_us=5)
    plan = make_plan(graph_of(LAYER, Linear(1, 5, 7), LAYER), device, USE)
    assert [layer.cut for layer in plan.layers] == cuts
    large_us = LAYER.flops() / 1e5 + 5
    small_us = 70 / 1e5 + 5 if cuts[1] else 70 / 100 + 2 * hand_over_us
    assert plan.predicted_ms == pytest.approx((2 * large_us + small_us) / 1e3)


class Erratic(Simulated):
    """Latencies without rhyme or reason, but the same for the same part."""

    def gpu_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        return self._hashed(columns, 3)

    def cpu_us(self, kind: str, columns: Columns, threads: int) -> Floats:
        return self._hashed(columns, 7)

    def _hashed(self, columns: Columns, salt: int) -> Floats:
        mixed = sum((i * 37 + salt) * values for i, (k, values) in enumerate(columns.items()) if k != "activation")
        return np.asarray(1.0 + np.abs(np.sin(mixed * self.gpu_rate)) * 1000)


@given(
    ops=st.lists(st.one_of(linears(200), convs(40)), min_size=1, max_size=4),
    seed=st.floats(1, 1000),
    hand_over_us=st.floats(0, 500),
)
def test_never_predicted_slower_than_the_better_side(ops: list[SplitOp], seed: float, hand_over_us: float) -> None:
    costs = Erratic(gpu_rate=seed, cpu_rate=0, hand_over_us=hand_over_us)
    plan = make_plan(graph_of(*ops), costs, USE)
    cpu_us = sum(float(costs.cpu_us(op.kind, op.columns(), 1)[0]) for op in ops)
    gpu_us = sum(float(costs.gpu_us(op.kind, op.columns(), TRAITS)[0]) for op in ops)
    assert plan.predicted_ms * 1e3 <= min(cpu_us, gpu_us) * 1.001 + 1e-9
    check_plan(plan, graph_of(*ops))


# Files ---------------------------------------------------------------------------------------------------


def chain() -> Graph:
    """conv -> relu (not split) -> conv + residual -> conv, each split by rows."""
    conv = Conv2d(1, 8, 12, 12, 8, 3, 3, 1, 1, 1, 1, 1, 1)
    names = ("x", "a", "b", "c", "d")
    tensors = {name: Tensor(name, (1, 8, 12, 12), F4, Layout.channels_last(4)) for name in names}
    constants = {f"w{i}": np.zeros((8, 8, 3, 3), np.float32) for i in range(3)}
    added = Conv2d(1, 8, 12, 12, 8, 3, 3, 1, 1, 1, 1, 1, 1, residual=True)
    nodes = (
        Node("first", conv, ("x", "w0"), ("a",)),
        Node("relu", Activate(Activation("relu")), ("a",), ("b",)),
        Node("second", added, ("b", "w1", "", "a"), ("c",)),
        Node("third", conv, ("c", "w2"), ("d",)),
    )
    return Graph("chain", nodes, tensors, constants, ("x",), ("d",))


@pytest.fixture
def plan() -> Plan:
    graph = chain()
    made = assemble(graph, share_choices(graph, "row", 0.5), Simulated(1, 1), USE)
    assert sum(task.side == "gpu" for task in made.tasks) == 3
    return made


def test_json_round_trip(plan: Plan, tmp_path: Path) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    check_plan(Plan.load(path), chain())


def test_a_plan_that_cannot_be_written_leaves_the_old_one(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot write"):
        plan.save(tmp_path / "missing" / "plan.json")
    with pytest.raises(PlanError, match="cannot write"):
        plan.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_plans(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for name, content in whole_files(plan.to_json()).items():
        path.write_bytes(content)
        with pytest.raises(PlanError) as caught:
            Plan.load(path)
            pytest.fail(f"{name} was taken")
        one_line(caught.value)
        assert "plan.json" in str(caught.value)


def read(text: str, path: Path) -> Plan | None:
    """The plan of a file with this text; None if it is refused as it should be."""
    path.write_text(text)
    try:
        plan = Plan.load(path)
        check_plan(plan, chain())
    except PlanError as error:
        one_line(error)
        return None
    assert Plan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan
    return plan


def test_no_damaged_field_makes_nonsense(plan: Plan, tmp_path: Path) -> None:
    """Each field by each value: refused, or taken for what it is."""
    document = plan.to_json() | {"options": {"1 + 1": 0.5}}
    assert read(json.dumps(document), tmp_path / "plan.json") is not None
    for place in places(document):
        if place[0] == "layers":
            continue  # for readers only
        original = at(document, place)
        for name, value in VALUES.items():
            taken = read(with_value(document, place, value), tmp_path / "plan.json")
            if taken is None:
                continue
            now = json.loads(value)
            assert isinstance(now, (int, float) if isinstance(original, float) else type(original)), (place, name)
            assert not isinstance(now, bool) and name not in NUMBERS_THAT_CANNOT_BE, (place, name)
            assert at(taken.to_json(), place) == now


def test_a_missing_field_is_refused_and_an_unknown_one_changes_nothing(plan: Plan, tmp_path: Path) -> None:
    document = plan.to_json()
    for place in places(document):
        if place[0] == "layers":
            continue
        if isinstance(place[-1], str) and place[:-1] not in {("options",), ("costs",), ("input_shapes",)}:
            assert read(without(document, place), tmp_path / "plan.json") is None, place
        if isinstance(at(document, place), dict) and place not in {
            ("options",),
            ("costs",),
            ("units",),
            ("input_shapes",),
        }:
            more = copy.deepcopy(document)
            at(more, place)["extra"] = [{}]
            assert read(json.dumps(more), tmp_path / "plan.json") in (plan, None)
    assert read(json.dumps({"extra": [], **document}), tmp_path / "plan.json") == plan
    twice = json.dumps(document).replace('"model":', '"model": "first", "model":', 1)
    assert read(twice, tmp_path / "plan.json") == plan


@given(data=st.data())
@settings(max_examples=150)
def test_plans_with_several_damages(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = chain()
    made = assemble(graph, share_choices(graph, "row", 0.5), Simulated(1, 1), USE)
    document = json.loads(json.dumps(made.to_json()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places(document))))
        change = data.draw(json_values)
        at(document, place[:-1])[place[-1]] = change
    read(json.dumps(document), tmp_path_factory.getbasetemp() / "several.json")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the plan"):
        Plan.load(tmp_path / "none.json")


Path_ = tuple[str | int, ...]
TOP = (
    "schema",
    "model",
    "signature",
    "device",
    "device_name",
    "compute_units",
    "cpu_threads",
    "sync",
    "costs_from",
    "cpu_device",
)
FIELDS: list[Path_] = [
    *((name,) for name in (*TOP, "predicted_ms", "options", "units", "costs", "tasks")),
    *(("tasks", 0, name) for name in ("side", "node", "axis", "start", "stop", "implementation", "wait_for")),
    *(("costs", "first", name) for name in ("cpu_us", "gpu_us", "sync_us", "predicted_us")),
    *(("units", "first", i) for i in (0, 1)),
]
WRONG: list[Any] = [None, -1, 1.5, float("nan"), float("inf"), "text", "", True, [], {}, [[]], {"a": {}}]


def edited(plan: Plan, place: Path_, edit: Callable[[Any, Any], None]) -> dict[str, Any]:
    data = copy.deepcopy(plan.to_json())
    holder: Any = data
    for key in place[:-1]:
        holder = holder[key]
    edit(holder, place[-1])
    return data


@pytest.mark.parametrize("place", FIELDS, ids=str)
def test_each_field_is_needed(plan: Plan, place: Path_) -> None:
    data = edited(plan, place, lambda holder, key: holder.pop(key))
    with pytest.raises(PlanError) as caught:
        check_plan(Plan.from_json(data), chain())
    assert "\n" not in str(caught.value)


FREE_TEXT = {("model",), ("device",), ("device_name",), ("costs_from",)}
"""Any text is possible there; whether the device is here shows only when it is opened."""


@pytest.mark.parametrize("place", FIELDS, ids=str)
def test_each_field_has_its_type(plan: Plan, place: Path_) -> None:
    refused = 0
    for wrong in WRONG:
        original = plan.to_json()
        for key in place:
            original = original[key]  # type: ignore[index,assignment]
        if wrong == original or (place in FREE_TEXT and isinstance(wrong, str)):
            continue
        finite_number = isinstance(wrong, int | float) and not isinstance(wrong, bool) and np.isfinite(wrong)
        if isinstance(original, float) and finite_number:
            continue  # an expectation may be any number
        if place in {("options",), ("costs",)} and wrong == {}:
            continue  # a plan need not know what it costs
        if place[-1] in ("implementation", "sync") and wrong == "":
            continue  # left open

        def put(holder: Any, key: Any, wrong: Any = wrong) -> None:
            holder[key] = wrong

        with pytest.raises(PlanError) as caught:
            check_plan(Plan.from_json(edited(plan, place, put)), chain())
            pytest.fail(f"{wrong!r} was taken for {place}")
        assert "\n" not in str(caught.value)
        refused += 1
    assert refused >= 6


def set_task(i: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["tasks"][i].update(values)


def swap(data: dict[str, Any], i: int, j: int) -> None:
    data["tasks"][i], data["tasks"][j] = data["tasks"][j], data["tasks"][i]


# Tasks of ``plan``: 0, 1 first (gpu, cpu); 2 relu (cpu); 3, 4 second; 5, 6 third.
DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "of another model": lambda data: data.update(signature="0" * 16),
    "task missing": lambda data: data["tasks"].pop(1),
    "node missing": lambda data: data["tasks"].pop(2),
    "task twice": lambda data: data["tasks"].append(data["tasks"][6]),
    "overlapping parts": set_task(0, stop=7),
    "gap between parts": set_task(1, start=7),
    "beyond the layer": set_task(1, stop=13),
    "empty part": set_task(0, stop=0),
    "other axis": set_task(0, axis="channel"),
    "whole layer twice": lambda data: [set_task(i, axis="none")(data) for i in (0, 1)],
    "unsplit op on the GPU": set_task(2, side="gpu"),
    "unsplit op with a range": set_task(2, stop=3),
    "unsplit op by axis": set_task(2, axis="row"),
    "unsplit op with code": set_task(2, implementation="numpy_im2col"),
    "unknown node": set_task(0, node="fourth"),
    "part of another side": set_task(0, side="cpu"),
    "unknown code": set_task(0, implementation="conv2d_magic"),
    "code for another op": set_task(0, implementation="linear_tile"),
    "waits too little": set_task(3, wait_for=0),
    "waits for what comes later": set_task(3, wait_for=3),
    "waits for what never comes": set_task(4, wait_for=100),
    "before its inputs": lambda data: swap(data, 2, 3),
    "units of another layer": lambda data: data["units"].update(first=["conv2d", 13]),
    "op of another kind, code left open": lambda data: [
        data["units"].update(first=["linear", 12]),
        *(set_task(i, implementation="")(data) for i in (0, 1)),
    ],
    "op of another kind": lambda data: data["units"].update(first=["linear", 12]),
    "layer without tasks": lambda data: data["units"].update(ghost=["conv2d", 12]),
    "costs of no layer": lambda data: data["costs"].update(ghost=data["costs"]["first"]),
    "costs of another form": lambda data: data["costs"]["first"].update(extra=1.0),
    "unknown strategy": lambda data: data.update(sync="telepathy"),
    "no threads": lambda data: data.update(cpu_threads=0),
    "no compute units": lambda data: data.update(compute_units=0),
    "kernel on the CPU side, but no device for it": set_task(1, implementation="conv2d_direct"),
    "device for kernels that are not there": lambda data: data.update(cpu_device="own:0"),
    "no device": lambda data: data.update(device="", compute_units=0),
    "newer schema": lambda data: data.update(schema=2),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(plan: Plan, damage: str) -> None:
    data = copy.deepcopy(plan.to_json())
    check_plan(Plan.from_json(data), chain())  # it is right before
    DAMAGE[damage](data)
    with pytest.raises(PlanError) as caught:
        check_plan(Plan.from_json(data), chain())
    assert "\n" not in str(caught.value)


def test_kernels_on_the_cpu_side_need_a_device(plan: Plan) -> None:
    data = copy.deepcopy(plan.to_json())
    set_task(1, implementation="conv2d_direct")(data)
    data.update(cpu_device="own:0", cpu_device_name="own")
    check_plan(Plan.from_json(data), chain())
    use = replace(WITH_KERNELS, device="", device_name="", traits=None)
    alone = assemble(chain(), share_choices(chain(), "channel", 0.0), None, use)
    assert alone.cpu_device == "own:0"
    with pytest.raises(PlanError, match="on a device that is not here"):
        build(chain(), alone)


def test_a_plan_needs_no_more_cores_than_there_are(plan: Plan) -> None:
    alone = make_plan(chain(), Simulated(1, 1), Resources("", "", None, cpu_cores()))
    assert build(chain(), alone).plan == alone
    with pytest.raises(PlanError, match=f"{cpu_cores() + 1} CPU threads"):
        build(chain(), replace(alone, cpu_threads=cpu_cores() + 1))


def test_table_shows_every_layer(plan: Plan) -> None:
    text = str(plan)
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["first", "second", "third"]
    assert all("6/12" in line for line in text.splitlines()[2:])


# Waits ---------------------------------------------------------------------------------------------------


def pieces(graph: Graph, node: Node) -> list[tuple[str, Box]]:
    """Inputs of a concatenation and the boxes of its output that they fill."""
    assert isinstance(node.op, Concat)
    found, start = [], 0
    for name in node.inputs:
        spec = graph.spec(name)
        assert spec is not None
        end = start + spec.shape[node.op.axis]
        boxed = [slice(None)] * len(spec.shape)
        boxed[node.op.axis] = slice(start, end)
        found.append((name, tuple(boxed)))
        start = end
    return found


def in_place(graph: Graph, node: Node) -> list[tuple[str, Box]]:
    """Inputs of a concatenation that were made where they belong, and where that is in its output."""
    if not isinstance(node.op, Concat):
        return []
    axis, links = node.op.axis, graph.placement.links
    return [
        (name, box)
        for name, box in pieces(graph, node)
        if links.get(name) == Link(node.outputs[0], Sliced.along(axis, box[axis].start, len(box)))
    ]


def reads_of(graph: Graph, node: Node, task: Task) -> dict[str, Array]:
    """Which elements of each input tensor really influence the task's outputs, found output by output."""
    shapes = {name: graph.tensors[name].shape for name in node.inputs if name in graph.tensors}
    marks = {name: np.zeros(shape, bool) for name, shape in shapes.items()}
    op = node.op
    if isinstance(op, Concat):
        passed = [box for _, box in in_place(graph, node)]
        read = {name for name, box in pieces(graph, node) if box not in passed}
        return {name: np.ones(shape, bool) for name, shape in shapes.items() if name in read}
    if not isinstance(op, SplitOp) or task.axis == "none":
        return {name: np.ones(shape, bool) for name, shape in shapes.items()}
    wrote = written_by(graph, node, task, node.outputs[0])
    x = marks[node.inputs[0]]
    for index in zip(*np.nonzero(wrote), strict=True):
        if isinstance(op, Conv2d):
            n, c, oh, ow = index
            per_group = op.C_in // op.groups
            first = c // (op.C_out // op.groups) * per_group
            for i in range(op.KH):
                for j in range(op.KW):
                    ih = oh * op.stride_h - op.pad_top + i * op.dilation_h
                    iw = ow * op.stride_w - op.pad_left + j * op.dilation_w
                    if 0 <= ih < op.H and 0 <= iw < op.W:
                        x[n, first : first + per_group, ih, iw] = True
        else:
            x[index[:-1]] = True
    if len(node.inputs) > 3 and node.inputs[3]:
        marks[node.inputs[3]] |= wrote
    return marks


def written_by(graph: Graph, node: Node, task: Task, name: str) -> Array:
    """Which elements of one of the node's outputs the task writes, by units counted in logical order."""
    shape = graph.tensors[name].shape
    if not isinstance(node.op, SplitOp) or task.axis == "none":
        return np.ones(shape, bool)
    if isinstance(node.op, Conv2d):
        unit = np.broadcast_to(np.arange(shape[1])[:, None, None] if task.axis == "channel"
                               else np.arange(shape[2])[:, None], shape)  # fmt: skip
    elif task.axis == "channel":
        unit = np.broadcast_to(np.arange(shape[-1]), shape)
    else:
        unit = np.broadcast_to(np.arange(node.op.M).reshape(*shape[:-1], 1), shape)
    return np.asarray((task.start <= unit) & (unit < task.stop))


def share_bytes(graph: Graph, written: Sequence[str], used: Sequence[str]) -> bool:
    """Whether a tensor of either group lies in memory that one of the other, not a view of it, lies in too."""
    memory, places = graph.memory, graph.placement.places
    roots = [{places[n].root for n in names if n in places} for names in (written, used)]
    spans = [
        [(r, memory.offsets[r], memory.offsets[r] + graph.tensors[r].nbytes) for r in group if r in memory.offsets]
        for group in roots
    ]
    return any(a != b and low < end and start < high for a, low, high in spans[0] for b, start, end in spans[1])


@given(networks())
def test_waits_against_element_wise_dependencies(case: tuple[Graph, list[Task]]) -> None:
    """Each task waits for the writers of all elements that it reads, and for no later task than it must."""
    graph, tasks = case
    nodes = {node.name: node for node in graph.nodes}
    numbers = [sum(other.side == task.side for other in tasks[: i + 1]) for i, task in enumerate(tasks)]
    writer = {name: np.full(t.shape, -1) for name, t in graph.tensors.items()}
    writer |= {name: np.full(c.shape, -1) for name, c in graph.constants.items()}
    for node in graph.nodes:
        arrays = [writer[name] if name else None for name in node.inputs]
        for i, task in enumerate(tasks):
            for name in node.outputs if task.node == node.name else ():
                writer[name][written_by(graph, node, task, name)] = i
        if node.name in graph.placement.free:  # what passes it was written by whoever wrote its inputs
            node.op.run(arrays, [writer[name] for name in node.outputs])
        for name, box in in_place(graph, node):
            writer[node.outputs[0]][box] = writer[name]
    for i, task in enumerate(add_waits(graph, tasks)):
        node = nodes[task.node]
        needed = 0
        for name, mask in reads_of(graph, node, task).items():
            for j in np.unique(writer[name][mask]):
                if j >= 0 and tasks[j].side != task.side:
                    needed = max(needed, numbers[j])
                assert j < i
        for j, earlier in enumerate(tasks[:i]):
            user = nodes[earlier.node]
            if earlier.side != task.side and share_bytes(graph, node.outputs, (*user.inputs, *user.outputs)):
                needed = max(needed, numbers[j])
        assert task.wait_for >= needed, f"{task} starts before task {needed} of the other side is done"
        # A box of rows holds those between dilated taps as well; linear layers with more dimensions have no boxes.
        if isinstance(node.op, Conv2d) and node.op.dilation_h == 1 and not graph.placement.links:
            assert task.wait_for == needed, f"{task} needs no more than task {needed}"


def test_a_tensor_that_is_input_and_residual_is_waited_for_as_a_whole() -> None:
    """y = conv(x) + x: a part adds its own channels of x only, but convolves all of them."""
    conv = Conv2d(1, 8, 4, 4, 8, 1, 1)
    tensors = {name: Tensor(name, (1, 8, 4, 4), F4, Layout.channels_last(4)) for name in "xab"}
    constants = {"w": np.zeros((8, 8, 1, 1), np.float32)}
    skip = Conv2d(1, 8, 4, 4, 8, 1, 1, residual=True)
    nodes = (Node("first", conv, ("x", "w"), ("a",)), Node("second", skip, ("a", "w", "", "a"), ("b",)))
    graph = Graph("skip", nodes, tensors, constants, ("x",), ("b",))
    tasks = add_waits(graph, layer_tasks(graph, share_choices(graph, "channel", 0.5), {}, USE))
    assert [(t.side, t.node, t.wait_for) for t in tasks[2:]] == [("gpu", "second", 1), ("cpu", "second", 1)]


@given(networks())
def test_plans_of_networks_with_views_are_right(case: tuple[Graph, list[Task]]) -> None:
    graph, tasks = case
    plan = assemble(graph, share_choices(graph, "channel", 0.5), None, USE)
    axes = {task.node: task.axis for task in tasks}
    layers = {node.name: node.op for node in graph.split_nodes()}
    units = {name: (op.kind, op.units(axes[name])) for name, op in layers.items() if isinstance(op, SplitOp)}
    check_plan(plan, graph)
    check_plan(replace(plan, tasks=tuple(add_waits(graph, tasks)), units=units), graph)


@given(networks())
def test_both_sides_come_to_their_end(case: tuple[Graph, list[Task]]) -> None:
    """In whatever order the sides make progress, no task waits for ever."""
    graph, tasks = case
    waiting = add_waits(graph, tasks)
    queues = {side: [t for t in waiting if t.side == side] for side in ("cpu", "gpu")}
    for eager in ("cpu", "gpu"):
        done = {"cpu": 0, "gpu": 0}
        lazy = "gpu" if eager == "cpu" else "cpu"
        while done["cpu"] < len(queues["cpu"]) or done["gpu"] < len(queues["gpu"]):
            for side, other in ((eager, lazy), (lazy, eager)):
                left = queues[side][done[side] :]
                if left and left[0].wait_for <= done[other]:
                    done[side] += 1
                    break
            else:
                pytest.fail(f"deadlock at {done}: {queues}")


def test_launch_and_plan_name_the_same_kernel() -> None:
    depthwise = Conv2d(1, 32, 8, 8, 32, 3, 3, 1, 1, 1, 1, 1, 1, groups=32)
    graph = graph_of(depthwise, LAYER)
    plan = assemble(graph, share_choices(graph, "channel", 0.5), None, USE)
    kernels = [t.implementation for t in plan.tasks if t.side == "gpu"]
    parts = [op.part("channel", 0, op.units("channel") // 2).op for op in (depthwise, LAYER)]
    assert kernels == [launch(p.kind, p.columns(), TRAITS).names()[0] for p in parts]
    assert [t.implementation for t in plan.tasks if t.side == "cpu"] == ["numpy_depthwise", "numpy_matmul"]
