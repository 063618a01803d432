"""Chooses each layer's cut. Pure search: a graph and a cost source in, a plan out; no I/O, no OpenCL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coexec.backends.cpu import variant_for
from coexec.costs import CostSource, Floats, OpCosts
from coexec.dependencies import add_waits
from coexec.graph import Graph, Node
from coexec.kernels.variant import Bools, GpuTraits
from coexec.launch import launch
from coexec.ops.base import Axis, Columns, DeviceOp, SplitOp, stack_columns
from coexec.plan import Costs, Plan, Side, Task, runs_kernel

MAX_CUTS = 64
"""Cuts tried per layer and axis, beside both exclusive choices."""


@dataclass(frozen=True)
class Resources:
    """What a plan may use.

    Attributes:
        device, device_name: the OpenCL device; "" for none.
        traits: of as many compute units of it as the plan uses; None without a device.
        cpu_threads: threads of the CPU side.
        sync: strategy name, "" to leave it open.
        split: whether layers may be split, or be the CPU side's; otherwise all are the GPU side's.
        cpu_device, cpu_device_name: the OpenCL device that runs the CPU side's kernels; "" for none.
        cpu_traits: of that device with ``cpu_threads`` threads; None without it.
    """

    device: str
    device_name: str
    traits: GpuTraits | None
    cpu_threads: int
    sync: str = ""
    split: bool = True
    cpu_device: str = ""
    cpu_device_name: str = ""
    cpu_traits: GpuTraits | None = None


NO_COSTS = Costs(0.0, 0.0, 0.0, 0.0)
"""Of a choice that was not predicted."""


@dataclass(frozen=True)
class Choice:
    """How one layer is cut: the GPU computes the first ``cut`` units of ``axis``.

    ``cpu_kernel``: whether a kernel computes the CPU's part, where the CPU side has a device for that.
    """

    axis: Axis
    cut: int
    costs: Costs = NO_COSTS
    cpu_kernel: bool = True


@dataclass(frozen=True)
class Candidates:
    """All cuts that are tried for one layer, as arrays."""

    node: Node
    axes: list[Axis]
    cuts: list[int]

    @property
    def op(self) -> SplitOp:
        assert isinstance(self.node.op, SplitOp)
        return self.node.op


@dataclass(frozen=True)
class Evaluated(Candidates):
    """Candidate cuts with what they should cost; a side without a part has 0 us.

    ``sync_us`` is what a split costs beyond that. ``cpu_kernel`` is True where the CPU's part is a kernel.
    """

    cpu_us: Floats
    gpu_us: Floats
    sync_us: Floats
    cpu_kernel: Bools

    @property
    def total_us(self) -> Floats:
        """Of the layer: the longer side and the hand-over."""
        return np.asarray(np.maximum(self.gpu_us, self.cpu_us) + self.sync_us)

    def choice(self, index: int) -> Choice:
        """One of the candidates with its costs."""
        us = (float(array[index]) for array in (self.cpu_us, self.gpu_us, self.sync_us, self.total_us))
        return Choice(self.axes[index], self.cuts[index], Costs(*us), bool(self.cpu_kernel[index]))


@dataclass(frozen=True)
class Option:
    """One way to run a node: the sides that take part, what it takes without hand-overs, and the cut if it has one."""

    sides: frozenset[Side]
    us: float
    choice: Choice | None = None

    @property
    def split(self) -> bool:
        return len(self.sides) > 1


@dataclass(frozen=True)
class Step:
    """A node's option in a plan, and the hand-over before it."""

    option: Option
    hand_over_us: float


def make_plan(graph: Graph, costs: CostSource, resources: Resources) -> Plan:
    """The cuts and sides with which the network should be done soonest, by ``costs``."""
    return assemble(graph, choose_cuts(graph, costs, resources), costs, resources)


def choose_cuts(graph: Graph, costs: CostSource, resources: Resources) -> dict[str, Choice]:
    """The choice per split node, hand-overs between the nodes in their order counted."""
    options = _other_options(graph, costs, resources)
    for layer in evaluate(graph, costs, resources):
        options[layer.node.name] = _best_of_each_kind(layer)
    steps = best_path(graph, options, _hand_over_us(costs, resources))
    return {
        name: _with_hand_over(step.option.choice, step.hand_over_us)
        for name, step in steps.items()
        if step.option.choice is not None
    }


def best_path(graph: Graph, options: Mapping[str, Sequence[Option]], hand_over_us: float) -> dict[str, Step]:
    """The options with the lowest sum, one per node that has any, in the graph's order (Viterbi).

    A hand-over is due before a split layer, after it, and where the side changes.
    """
    names = [node.name for node in graph.nodes if node.name in options]
    best: list[list[tuple[float, int, float]]] = []  # per node and option: total so far, option before, hand-over
    before: Sequence[Option] = ()
    for name in names:
        row = []
        for option in options[name]:
            # Between equals an option with one side is preferred: it cannot be held up by the other.
            own_us = option.us * (1 + 1e-3 * option.split)
            ways = [
                (best[-1][i][0], i, hand_over_us * (option.split or previous.sides != option.sides))
                for i, previous in enumerate(before)
            ] or [(0.0, 0, hand_over_us * option.split)]
            total, i, due_us = min(ways, key=lambda way: way[0] + way[2])
            row.append((total + due_us + own_us, i, due_us))
        best.append(row)
        before = options[name]
    steps: dict[str, Step] = {}
    index = min(range(len(before)), key=lambda i: best[-1][i][0], default=0)
    for name, row in zip(reversed(names), reversed(best), strict=True):
        steps[name] = Step(options[name][index], row[index][2])
        index = row[index][1]
    return {name: steps[name] for name in names}


def _best_of_each_kind(layer: Evaluated) -> list[Option]:
    """The best split of a layer, and each side alone."""
    own_us = np.maximum(layer.gpu_us, layer.cpu_us)
    options = []
    for on_gpu, on_cpu in ((True, False), (False, True), (True, True)):
        fitting = ((layer.gpu_us > 0) == on_gpu) & ((layer.cpu_us > 0) == on_cpu)
        if fitting.any():
            index = int(np.argmin(np.where(fitting, own_us, np.inf)))
            options.append(Option(_sides(on_gpu, on_cpu), float(own_us[index]), layer.choice(index)))
    return options


def _other_options(graph: Graph, costs: OpCosts | None, resources: Resources) -> dict[str, list[Option]]:
    """Either side for each node that is not split, has something to do, and that this side can run.

    By a kernel where there is one and the side has a device: NumPy does such ops badly.
    """
    options = {}
    for node in graph.nodes:
        if node.name in graph.placement.free or graph.can_split(node):
            continue
        op = graph.device_ops.get(node.name)
        if op is None or resources.cpu_traits is None:
            options[node.name] = [Option(_sides(False, True), costs.op_us(graph, node) if costs else 0.0)]
        else:
            us = costs.kernel_us(op, resources.cpu_traits) if costs else 0.0
            options[node.name] = [Option(_sides(False, True), us)]
        if op is not None and resources.traits is not None:
            us = costs.kernel_us(op, resources.traits) if costs else 0.0
            options[node.name].append(Option(_sides(True, False), us))
    return options


def _sides(on_gpu: bool, on_cpu: bool) -> frozenset[Side]:
    sides: list[Side] = [*(["gpu"] if on_gpu else []), *(["cpu"] if on_cpu else [])]  # type: ignore[list-item]
    return frozenset(sides)


def _hand_over_us(costs: OpCosts | None, resources: Resources) -> float:
    if costs is None:
        return 1.0
    return costs.sync_us() if resources.split else costs.turn_us()


def _with_hand_over(choice: Choice, hand_over_us: float) -> Choice:
    own = choice.costs
    costs = Costs(own.cpu_us, own.gpu_us, hand_over_us, max(own.cpu_us, own.gpu_us) + hand_over_us)
    return replace(choice, costs=costs)


def evaluate(graph: Graph, costs: CostSource, resources: Resources) -> list[Evaluated]:
    """What every candidate cut of every split node should cost; one batched prediction per kind and side."""
    nodes = graph.split_nodes()
    traits = resources.traits
    if traits is None:
        candidates = [Candidates(node, ["channel"], [0]) for node in nodes]
    else:
        candidates = [_candidates(node, resources) for node in nodes]
    gpu_us = _predict(candidates, "gpu", lambda kind, parts: _gpu_us(costs, kind, parts, resources))
    routine_us = _predict(candidates, "cpu", lambda kind, parts: costs.cpu_us(kind, parts, resources.cpu_threads))
    kernel_us = [np.full(len(c.cuts), np.inf) for c in candidates]
    if resources.cpu_traits is not None and costs.knows_cpu_kernels(resources.cpu_threads):
        kernel_us = _predict(candidates, "cpu", lambda kind, parts: _cpu_kernel_us(costs, kind, parts, resources))
    evaluated = []
    for layer, gpu, routine, kernel in zip(candidates, gpu_us, routine_us, kernel_us, strict=True):
        cpu = np.minimum(routine, kernel)
        both = (gpu > 0) & (cpu > 0)
        slower = np.where(both, 1 + costs.slowdown(), 1.0)
        sync = np.where(both, costs.sync_us(), 0.0)
        sides = (cpu * slower, gpu * slower, sync, kernel <= routine)
        evaluated.append(Evaluated(layer.node, layer.axes, layer.cuts, *sides))
    return evaluated


def assemble(graph: Graph, choices: Mapping[str, Choice], costs: OpCosts | None, resources: Resources) -> Plan:
    """The plan that carries out these choices, layer by layer."""
    layer_us = sum(choice.costs.predicted_us for choice in choices.values())
    others = place_others(graph, choices, costs, resources)
    sides = {name: next(iter(step.option.sides)) for name, step in others.items()}
    tasks = tuple(add_waits(graph, layer_tasks(graph, choices, sides, resources)))
    on_cpu = any(runs_kernel(task) for task in tasks if task.side == "cpu")
    return Plan(
        model=graph.name,
        signature=graph.signature(),
        device=resources.device,
        device_name=resources.device_name,
        compute_units=resources.traits.compute_units if resources.traits else 0,
        cpu_threads=resources.cpu_threads,
        sync=resources.sync,
        tasks=tasks,
        units={n.name: (n.op.kind, _units(n, choices[n.name].axis)) for n in graph.split_nodes()},
        costs={name: choice.costs for name, choice in choices.items()},
        predicted_ms=(layer_us + sum(step.option.us + step.hand_over_us for step in others.values())) / 1e3,
        costs_from=costs.name if costs else "no costs",
        options={},
        input_shapes=graph.input_shapes(),
        cpu_device=resources.cpu_device if on_cpu else "",
        cpu_device_name=resources.cpu_device_name if on_cpu else "",
    )


def place_others(
    graph: Graph, choices: Mapping[str, Choice], costs: OpCosts | None, resources: Resources
) -> dict[str, Step]:
    """Which side runs each node that is not split, given how the others are cut."""
    options: dict[str, list[Option]] = dict(_other_options(graph, costs, resources))
    for node in graph.split_nodes():
        choice = choices[node.name]
        sides = _sides(choice.cut > 0, choice.cut < _units(node, choice.axis))
        options[node.name] = [Option(sides, max(choice.costs.cpu_us, choice.costs.gpu_us), choice)]
    steps = best_path(graph, options, _hand_over_us(costs, resources))
    return {name: step for name, step in steps.items() if step.option.choice is None}


def layer_tasks(
    graph: Graph, choices: Mapping[str, Choice], sides: Mapping[str, Side], resources: Resources
) -> list[Task]:
    """Tasks in graph order: of each layer the GPU's part, then the CPU's. Waits are not set yet."""
    tasks: list[Task] = []
    for node in graph.nodes:
        choice = choices.get(node.name)
        if choice is not None:
            tasks.extend(parts_of(node, choice, resources))
        elif node.name in sides:
            side, op = sides[node.name], graph.device_ops.get(node.name)
            traits = resources.traits if side == "gpu" else resources.cpu_traits
            code = "" if op is None or traits is None else _kernel(op, traits)
            tasks.append(Task(side, node.name, "none", 0, 1, code, 0))
    return tasks


def parts_of(node: Node, choice: Choice, resources: Resources) -> list[Task]:
    """The one or two tasks of a split layer, with the implementations that the rules choose."""
    op = node.op
    assert isinstance(op, SplitOp)
    units, cut = op.units(choice.axis), choice.cut
    tasks = []
    if cut > 0:
        assert resources.traits is not None
        name = _kernel(op.part(choice.axis, 0, cut).op, resources.traits)
        tasks.append(Task("gpu", node.name, choice.axis, 0, cut, name, 0))
    if cut < units:
        part, traits = op.part(choice.axis, cut, units).op, resources.cpu_traits
        name = _kernel(part, traits) if traits is not None and choice.cpu_kernel else variant_for(part).name
        tasks.append(Task("cpu", node.name, choice.axis, cut, units, name, 0))
    return tasks


def _kernel(op: DeviceOp, traits: GpuTraits) -> str:
    return launch(op.kind, op.columns(), traits).names()[0]


def share_choices(graph: Graph, axis: Axis, share: float) -> dict[str, Choice]:
    """Every layer cut at about the same share of the GPU, 0 to 1, along one axis."""
    choices = {}
    for node in graph.split_nodes():
        op = node.op
        assert isinstance(op, SplitOp)
        units, step = op.units(axis), op.step(axis)
        choices[node.name] = Choice(axis, min(units, round(share * units / step) * step))
    return choices


def aligned_cuts(
    op: SplitOp, axis: Axis, resources: Resources, step: int | None = None, most: int = MAX_CUTS
) -> list[int]:
    """Cuts strictly between both exclusive choices, evenly spread, at most so many.

    They lie at multiples of ``step``, or else of the alignments of both sides' implementations, where the axis
    is long enough for that.
    """
    if step is None:
        step = variant_for(op).alignment(axis)
        for traits in filter(None, (resources.traits, resources.cpu_traits)):
            kernel, _ = launch(op.kind, op.columns(), traits).one()
            step = math.lcm(step, kernel.alignment(axis, traits))
        if math.lcm(op.step(axis), step) >= op.units(axis):
            step = 1
    step = math.lcm(op.step(axis), step)
    cuts = list(range(step, op.units(axis), step))
    if len(cuts) > most:
        cuts = [cuts[i] for i in np.unique(np.linspace(0, len(cuts) - 1, most).astype(int))]
    return cuts


def _candidates(node: Node, resources: Resources) -> Candidates:
    op = node.op
    assert isinstance(op, SplitOp)
    if not resources.split:
        return Candidates(node, ["channel"], [op.units("channel")])
    axes: list[Axis] = ["channel", "channel"]
    cuts = [0, op.units("channel")]
    for axis in op.axes:
        for cut in aligned_cuts(op, axis, resources):
            axes.append(axis)
            cuts.append(cut)
    return Candidates(node, axes, cuts)


def _predict(candidates: Sequence[Candidates], side: Side, us_of: Callable[[str, Columns], Floats]) -> list[Floats]:
    """Microseconds of one side's part for every candidate by ``us_of`` (kind, parts); 0 for an empty part."""
    results = [np.zeros(len(c.cuts)) for c in candidates]
    for kind in dict.fromkeys(c.op.kind for c in candidates):
        rows: list[tuple[int, int]] = []
        parts: list[Columns] = []
        for i, layer in enumerate(candidates):
            if layer.op.kind == kind:
                index, columns = _side_columns(layer, side)
                rows += [(i, j) for j in index]
                parts += columns
        if rows:
            for (i, j), value in zip(rows, us_of(kind, stack_columns(parts)), strict=True):
                results[i][j] = max(float(value), 0.1)
    return results


def _gpu_us(costs: CostSource, kind: str, parts: Columns, resources: Resources) -> Floats:
    assert resources.traits is not None  # else no candidate has a part for the GPU
    return costs.gpu_us(kind, parts, resources.traits)


def _cpu_kernel_us(costs: CostSource, kind: str, parts: Columns, resources: Resources) -> Floats:
    assert resources.cpu_traits is not None
    return costs.cpu_kernel_us(kind, parts, resources.cpu_traits)


def _side_columns(layer: Candidates, side: Side) -> tuple[list[int], list[Columns]]:
    """Rows of candidates in which the side has a part, and the columns of those parts."""
    index: list[int] = []
    columns: list[Columns] = []
    base = layer.op.columns()
    base["activation"] = np.array([layer.op.activation.code])
    for axis in dict.fromkeys(layer.axes):
        units = layer.op.units(axis)
        own = [j for j, a in enumerate(layer.axes) if a == axis]
        cuts = np.array([layer.cuts[j] for j in own], np.int64)
        start, stop = (np.zeros_like(cuts), cuts) if side == "gpu" else (cuts, np.full_like(cuts, units))
        keep = stop > start
        if keep.any():
            index += [j for j, k in zip(own, keep, strict=True) if k]
            columns.append(layer.op.cut_columns(axis, base, start[keep], stop[keep]))
    return index, columns


def _units(node: Node, axis: Axis) -> int:
    assert isinstance(node.op, SplitOp)
    return node.op.units(axis)
