"""A plan: which side computes what, in which order, waiting for what. Plain data, and its file format."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from coexec.documents import Count, Duration, Size, Workers, checked, parse, read_bytes
from coexec.errors import PlanError
from coexec.graph import Graph, Node
from coexec.ops.base import Axis, DeviceOp, SplitOp
from coexec.whole_file import replacing

SCHEMA = 1
Side = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Task:
    """One part of one node on one side.

    Attributes:
        node: its name in the graph.
        axis, start, stop: the units (output channels or rows) that it computes; axis "none" is all of it.
        implementation: kernel variant (on either side) or CPU routine; "" for the NumPy routine of an op that is not
            split.
        wait_for: how many tasks of the other side, from its first, must be done before this one begins.
    """

    side: Side
    node: str
    axis: Axis
    start: Count
    stop: Count
    implementation: str
    wait_for: Count


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the planner expects of one layer, in microseconds (``sync_us`` is within ``predicted_us``)."""

    cpu_us: Duration
    gpu_us: Duration
    sync_us: Duration
    predicted_us: Duration


@dataclass(frozen=True)
class LayerPlan:
    """A row of the table that is derived from the tasks: the first ``cut`` of ``units`` are the GPU's."""

    name: str
    op: str
    axis: Axis
    cut: int
    units: int
    cpu_impl: str
    gpu_impl: str
    cpu_us: float
    gpu_us: float
    sync_us: float
    predicted_us: float

    @property
    def gpu_share(self) -> float:
        """Share of the units that the GPU side computes, 0 to 1."""
        return self.cut / self.units


@dataclass(frozen=True)
class Plan:
    """Tasks for one model on one device, and what they are expected to cost.

    The annotations are also the schema of a plan file, as those of `Task` and `Costs` are.

    Attributes:
        model, signature: name and structure hash of the graph that it belongs to.
        device: id of the OpenCL device, "" for none.
        device_name: what that device calls itself, with its driver.
        compute_units: how many of the device's compute units are used.
        cpu_threads: how many threads the CPU side uses.
        cpu_device, cpu_device_name: the OpenCL device that runs the CPU side's kernels, "" for none.
        sync: synchronisation strategy, "" for the best that the device offers.
        costs: expectation per split node.
        predicted_ms: expected latency of a run.
        costs_from: where the expectations come from ("profile NAME", "measurement", "built-in estimate").
        options: predicted ms of each way of using the machine that was compared.
        input_shapes: of the model's inputs, so that a model which leaves them open can be loaded by its plan.
    """

    model: str
    signature: str
    device: str
    device_name: str
    compute_units: Annotated[int, Meta(ge=0, le=1 << 16)]
    cpu_threads: Workers
    sync: str
    tasks: tuple[Task, ...]
    units: Mapping[str, tuple[str, Size]] = field(repr=False)
    costs: Mapping[str, Costs]
    predicted_ms: Duration
    costs_from: str
    options: Mapping[str, Duration]
    input_shapes: Mapping[str, tuple[Count, ...]]
    cpu_device: str
    cpu_device_name: str

    @property
    def resources_text(self) -> str:
        """What it uses of the machine, in words."""
        threads = f"{self.cpu_threads} CPU thread{'s' * (self.cpu_threads != 1)}"
        if not self.device:
            return f"CPU only, {threads}"
        return f"{self.device}, {self.compute_units} compute unit{'s' * (self.compute_units != 1)} + {threads}"

    @property
    def layers(self) -> list[LayerPlan]:
        """One row per split node, derived from the tasks."""
        rows = []
        for name, (op, units) in self.units.items():
            own = [t for t in self.tasks if t.node == name]
            gpu = [t for t in own if t.side == "gpu"]
            cpu = [t for t in own if t.side == "cpu"]
            axis = own[0].axis
            whole = units if axis == own[0].axis != "none" else 1
            cost = self.costs.get(name, Costs(0.0, 0.0, 0.0, 0.0))
            rows.append(
                LayerPlan(
                    name=name,
                    op=op,
                    axis=axis,
                    cut=sum(t.stop - t.start for t in gpu),
                    units=whole,
                    cpu_impl=cpu[0].implementation if cpu else "",
                    gpu_impl=gpu[0].implementation if gpu else "",
                    **msgspec.structs.asdict(cost),
                )
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values; ``layers`` is for readers, ``tasks`` is what is loaded again."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "signature": self.signature,
            "device": self.device,
            "device_name": self.device_name,
            "compute_units": self.compute_units,
            "cpu_threads": self.cpu_threads,
            "cpu_device": self.cpu_device,
            "cpu_device_name": self.cpu_device_name,
            "sync": self.sync,
            "costs_from": self.costs_from,
            "predicted_ms": self.predicted_ms,
            "options": dict(self.options),
            "input_shapes": {name: list(shape) for name, shape in self.input_shapes.items()},
            "units": {name: list(value) for name, value in self.units.items()},
            "costs": {name: msgspec.structs.asdict(cost) for name, cost in self.costs.items()},
            "tasks": [asdict(task) for task in self.tasks],
            "layers": [asdict(layer) for layer in self.layers],
        }

    @staticmethod
    def from_json(data: Any, what: str = "the plan") -> Plan:
        """The plan that ``to_json`` gave; PlanError, which calls it ``what``, if it is anything else."""
        plan = checked(data, Plan, SCHEMA, what, PlanError, "make it again")
        _check_sides(plan)
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON; an existing file is replaced in one step or stays as it was."""
        text = json.dumps(self.to_json(), indent=1) + "\n"
        with replacing(path, PlanError) as file:
            file.write(text.encode())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; PlanError with one line if it is missing or damaged."""
        what = f"the plan {os.fspath(path)}"
        content = read_bytes(Path(path), what, PlanError)
        return Plan.from_json(parse(content, what, PlanError, "make it again"), what)

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.resources_text}, predicted {self.predicted_ms:.2f} ms from {self.costs_from}",
            f"{'layer':32} {'op':8} {'axis':8} {'GPU':>11} {'cpu us':>8} {'gpu us':>8} {'layer us':>8}",
        ]
        for row in self.layers:
            lines.append(
                f"{row.name[:32]:32} {row.op:8} {row.axis:8} {row.cut:>5}/{row.units:<5} {row.cpu_us:8.0f} "
                f"{row.gpu_us:8.0f} {row.predicted_us:8.0f}"
            )
        return "\n".join(lines)


def check_plan(plan: Plan, graph: Graph) -> None:
    """Raise PlanError unless the plan computes exactly this graph and waits for all that it reads."""
    from coexec.dependencies import add_waits
    from coexec.sync import SYNC

    if plan.sync and plan.sync not in SYNC:
        raise PlanError(f"the plan names the sync strategy {plan.sync!r}; there are {', '.join(SYNC)}; make it again")
    if plan.signature != graph.signature():
        shapes = graph.input_shapes()
        if plan.model == graph.name and plan.input_shapes not in ({}, shapes):
            raise PlanError(
                f"the plan was made for input shapes {_shapes_text(plan.input_shapes)}, the model is read with "
                f"{_shapes_text(shapes)}; make one for them"
            )
        raise PlanError(f"the plan was made for another model ({plan.model!r}); make one with `coexec partition`")
    by_node: dict[str, list[Task]] = {}
    for task in plan.tasks:
        by_node.setdefault(task.node, []).append(task)
    working = [node for node in graph.nodes if node.name not in graph.placement.free]
    if set(by_node) != {node.name for node in working}:
        raise PlanError("the plan's tasks are not the model's nodes; make it again")
    for node in working:
        _check_cover(node.name, graph.device_ops.get(node.name), by_node[node.name])
    for node in graph.split_nodes():
        _check_units(plan, node, by_node[node.name])
    waits = add_waits(graph, plan.tasks)
    _check_order(graph, plan.tasks)
    before: dict[Side, int] = {"cpu": 0, "gpu": 0}
    for task, needed in zip(plan.tasks, waits, strict=True):
        if task.wait_for < needed.wait_for:
            raise PlanError(f"the plan starts {task.node!r} on the {task.side} before its inputs exist; make it again")
        if task.wait_for > before["gpu" if task.side == "cpu" else "cpu"]:
            raise PlanError(f"{task.node!r} on the {task.side} waits for what comes later; make the plan again")
        before[task.side] += 1


def _shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()) or "none"


def _check_sides(plan: Plan) -> None:
    """What can be told of a plan without its model."""
    if (plan.device != "") != (plan.compute_units > 0):
        raise PlanError(
            f"the plan has {plan.compute_units} compute units of device {plan.device!r}, which cannot be; make it again"
        )
    if plan.device == "" and any(task.side == "gpu" for task in plan.tasks):
        raise PlanError("the plan puts layers on a GPU but names no device; make it again")
    kernels = any(runs_kernel(task) for task in plan.tasks if task.side == "cpu")
    if (plan.cpu_device != "") != kernels:
        raise PlanError(
            f"the plan has {'' if kernels else 'no '}kernels on the CPU side and the device {plan.cpu_device!r} for "
            "them, which cannot be; make it again"
        )
    planned = {task.node for task in plan.tasks}
    if not set(plan.costs) <= set(plan.units) or not set(plan.units) <= planned:
        raise PlanError("the plan's layers are not those of its tasks; make it again")


def runs_kernel(task: Task) -> bool:
    """Whether a kernel computes a task, on either side."""
    from coexec.kernels import KERNEL_BY_NAME

    return task.side == "gpu" or task.implementation in KERNEL_BY_NAME


def _check_units(plan: Plan, node: Node, tasks: Sequence[Task]) -> None:
    """The layer's entry in the table of units, and its implementations."""
    from coexec.backends.cpu import CPU_BY_NAME
    from coexec.kernels import KERNEL_BY_NAME

    assert isinstance(node.op, SplitOp)
    expected = (node.op.kind, node.op.units(tasks[0].axis))
    found = plan.units.get(node.name, ("", 0))
    if found != expected:
        raise PlanError(f"the plan counts {found} units of {node.name!r}, not {expected}; make it again")
    for task in tasks:
        known: Mapping[str, Any] = KERNEL_BY_NAME if runs_kernel(task) else CPU_BY_NAME
        if task.implementation and getattr(known.get(task.implementation), "kind", "") != node.op.kind:
            raise PlanError(
                f"the plan runs {node.name!r} by {task.implementation!r}, which is no such code; make it again"
            )


def _check_order(graph: Graph, tasks: Sequence[Task]) -> None:
    """No task comes before one that writes what it reads."""
    from coexec.dependencies import overlap, regions

    nodes = {node.name: node for node in graph.nodes}
    later: dict[str, list[Any]] = {}
    for task in reversed(tasks):
        reads, writes = regions(graph, nodes[task.node], task)
        for region in writes:
            later.setdefault(region.root, []).append(region.root_box)
        for region in reads:
            shape = graph.tensors[region.root].shape
            if any(overlap(region.root_box, other, shape) for other in later.get(region.root, ())):
                raise PlanError(f"the plan runs {task.node!r} before its inputs are made; make it again")


def _check_cover(name: str, op: DeviceOp | None, tasks: Sequence[Task]) -> None:
    """The tasks of one node cover its units exactly once, along one axis, at allowed cuts."""
    from coexec.kernels import KERNEL_BY_NAME

    axis = tasks[0].axis
    ranges = sorted((t.start, t.stop) for t in tasks)
    if not isinstance(op, SplitOp) or axis == "none":
        if len(tasks) != 1 or axis != "none" or (op is None and tasks[0].side != "cpu"):
            raise PlanError(f"the plan splits {name!r}, which cannot be split; make it again")
        code = tasks[0].implementation
        kernel = runs_kernel(tasks[0]) and getattr(KERNEL_BY_NAME.get(code), "kind", "") == getattr(op, "kind", None)
        if ranges != [(0, 1)] or (code and not kernel and not isinstance(op, SplitOp)):
            raise PlanError(f"the plan's task for {name!r} makes no sense; make it again")
        return
    ends = [0, *(stop for _, stop in ranges)]
    if (
        any(t.axis != axis for t in tasks)
        or [start for start, _ in ranges] != ends[:-1]
        or ends[-1] != op.units(axis)
        or any(a >= b or b % op.step(axis) for a, b in ranges)
    ):
        raise PlanError(f"the plan's parts of {name!r} do not make up the layer; make it again")
