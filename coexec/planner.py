"""Chooses each layer's cut. Pure search: a graph and a cost source in, a plan out; no I/O, no OpenCL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coexec.backends.cpu import variant_for
from coexec.costs import CostSource, Floats, OpCosts
from coexec.dependencies import add_waits
from coexec.graph import Graph, Node
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.ops.base import Axis, Columns, SplitOp, stack_columns
from coexec.plan import Costs, Plan, Task

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
        split: whether layers may be split; otherwise each runs on one side, in turn.
    """

    device: str
    device_name: str
    traits: GpuTraits | None
    cpu_threads: int
    sync: str = ""
    split: bool = True


NO_COSTS = Costs(0.0, 0.0, 0.0, 0.0)
"""Of a choice that was not predicted."""


@dataclass(frozen=True)
class Choice:
    """How one layer is cut: the GPU computes the first ``cut`` units of ``axis``."""

    axis: Axis
    cut: int
    costs: Costs = NO_COSTS


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
    """Candidate cuts with what they should cost; a side without a part has 0 us."""

    cpu_us: Floats
    gpu_us: Floats
    sync_us: Floats

    @property
    def total_us(self) -> Floats:
        """Of the layer: the longer side and the hand-over."""
        return np.asarray(np.maximum(self.gpu_us, self.cpu_us) + self.sync_us)

    def choice(self, index: int) -> Choice:
        """One of the candidates with its costs."""
        us = (float(array[index]) for array in (self.cpu_us, self.gpu_us, self.sync_us, self.total_us))
        return Choice(self.axes[index], self.cuts[index], Costs(*us))


def make_plan(graph: Graph, costs: CostSource, resources: Resources) -> Plan:
    """Each layer at the cut that lets both sides finish soonest, by ``costs``."""
    return assemble(graph, choose_cuts(graph, costs, resources), costs, resources)


def choose_cuts(graph: Graph, costs: CostSource, resources: Resources) -> dict[str, Choice]:
    """The best choice per split node."""
    choices = {}
    for layer in evaluate(graph, costs, resources):
        split = (layer.gpu_us > 0) & (layer.cpu_us > 0)
        # Between equals a choice with one side is preferred: it cannot be held up by the other.
        handicap = np.where(split, 1e-3 * layer.total_us, 0.0)
        choices[layer.node.name] = layer.choice(int(np.argmin(layer.total_us + handicap)))
    return choices


def evaluate(graph: Graph, costs: CostSource, resources: Resources) -> list[Evaluated]:
    """What every candidate cut of every split node should cost; one batched prediction per kind and side."""
    nodes = graph.split_nodes()
    traits = resources.traits
    if traits is None:
        candidates = [Candidates(node, ["channel"], [0]) for node in nodes]
    else:
        candidates = [_candidates(node, traits, resources.split) for node in nodes]
    gpu_us, cpu_us = _predict(candidates, costs, resources)
    evaluated = []
    for layer, gpu, cpu in zip(candidates, gpu_us, cpu_us, strict=True):
        sync = np.where(gpu > 0, costs.sync_us(), 0.0)
        evaluated.append(Evaluated(layer.node, layer.axes, layer.cuts, cpu, gpu, sync))
    return evaluated


def assemble(graph: Graph, choices: Mapping[str, Choice], costs: OpCosts | None, resources: Resources) -> Plan:
    """The plan that carries out these choices, layer by layer."""
    layer_us = sum(choice.costs.predicted_us for choice in choices.values())
    other_us = 0.0 if costs is None else sum(costs.op_us(graph, n) for n in graph.nodes if n.name not in choices)
    return Plan(
        model=graph.name,
        signature=graph.signature(),
        device=resources.device,
        device_name=resources.device_name,
        compute_units=resources.traits.compute_units if resources.traits else 0,
        cpu_threads=resources.cpu_threads,
        sync=resources.sync,
        tasks=tuple(add_waits(graph, layer_tasks(graph, choices, resources.traits))),
        units={n.name: (n.op.kind, _units(n, choices[n.name].axis)) for n in graph.split_nodes()},
        costs={name: choice.costs for name, choice in choices.items()},
        predicted_ms=(layer_us + other_us) / 1e3,
        costs_from=costs.name if costs else "no costs",
        options={},
        input_shapes=graph.input_shapes(),
    )


def layer_tasks(graph: Graph, choices: Mapping[str, Choice], traits: GpuTraits | None) -> list[Task]:
    """Tasks in graph order: of each layer the GPU's part, then the CPU's. Waits are not set yet."""
    tasks: list[Task] = []
    for node in graph.nodes:
        choice = choices.get(node.name)
        if choice is None:
            tasks.append(Task("cpu", node.name, "none", 0, 1, "", 0))
            continue
        tasks.extend(parts_of(node, choice, traits))
    return tasks


def parts_of(node: Node, choice: Choice, traits: GpuTraits | None) -> list[Task]:
    """The one or two tasks of a split layer, with the implementations that the rules choose."""
    op = node.op
    assert isinstance(op, SplitOp)
    units, cut = op.units(choice.axis), choice.cut
    tasks = []
    if cut > 0:
        assert traits is not None
        part = op.part(choice.axis, 0, cut).op
        name = launch(part.kind, part.columns(), traits).names()[0]
        tasks.append(Task("gpu", node.name, choice.axis, 0, cut, name, 0))
    if cut < units:
        part = op.part(choice.axis, cut, units).op
        name = variant_for(part).name
        tasks.append(Task("cpu", node.name, choice.axis, cut, units, name, 0))
    return tasks


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
    op: SplitOp, axis: Axis, traits: GpuTraits, step: int | None = None, most: int = MAX_CUTS
) -> list[int]:
    """Cuts strictly between both exclusive choices, evenly spread, at most so many.

    They lie at multiples of ``step``, or else of the alignments of both sides' implementations, where the axis
    is long enough for that.
    """
    if step is None:
        kernel, _ = launch(op.kind, op.columns(), traits).one()
        step = math.lcm(kernel.alignment(axis, traits), variant_for(op).alignment(axis))
        if math.lcm(op.step(axis), step) >= op.units(axis):
            step = 1
    step = math.lcm(op.step(axis), step)
    cuts = list(range(step, op.units(axis), step))
    if len(cuts) > most:
        cuts = [cuts[i] for i in np.unique(np.linspace(0, len(cuts) - 1, most).astype(int))]
    return cuts


def _candidates(node: Node, traits: GpuTraits, split: bool) -> Candidates:
    op = node.op
    assert isinstance(op, SplitOp)
    axes: list[Axis] = ["channel", "channel"]
    cuts = [0, op.units("channel")]
    for axis in op.axes if split else ():
        for cut in aligned_cuts(op, axis, traits):
            axes.append(axis)
            cuts.append(cut)
    return Candidates(node, axes, cuts)


def _predict(
    candidates: Sequence[Candidates], costs: CostSource, resources: Resources
) -> tuple[list[Floats], list[Floats]]:
    """Microseconds of the GPU's and of the CPU's part for every candidate; 0 for an empty part."""
    gpu = [np.zeros(len(c.cuts)) for c in candidates]
    cpu = [np.zeros(len(c.cuts)) for c in candidates]
    for kind in dict.fromkeys(c.op.kind for c in candidates):
        for side, results in (("gpu", gpu), ("cpu", cpu)):
            rows: list[tuple[int, int]] = []
            parts: list[Columns] = []
            for i, layer in enumerate(candidates):
                if layer.op.kind == kind:
                    index, columns = _side_columns(layer, side)
                    rows += [(i, j) for j in index]
                    parts += columns
            if not rows:
                continue
            stacked = stack_columns(parts)
            if side == "gpu":
                assert resources.traits is not None
                us = costs.gpu_us(kind, stacked, resources.traits)
            else:
                us = costs.cpu_us(kind, stacked, resources.cpu_threads)
            for (i, j), value in zip(rows, us, strict=True):
                results[i][j] = max(float(value), 0.1)
    return gpu, cpu


def _side_columns(layer: Candidates, side: str) -> tuple[list[int], list[Columns]]:
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
