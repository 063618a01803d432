"""Plans without a profile: times this model's own layers on the spot (``profile="measure"``).

Each distinct layer is timed alone on either side; from that follows the cut at which both should finish
together, along each axis; that cut and its neighbours are then timed, and the fastest is kept.
"""

from __future__ import annotations

import time
from dataclasses import replace

from coexec.api import Option, opened, resources
from coexec.costs import unsplit_op_us
from coexec.device import DeviceInfo
from coexec.graph import Graph, Node
from coexec.launch import launch
from coexec.measure import LayerRig, interleaved
from coexec.ops.base import Axis, SplitOp
from coexec.plan import Costs, Plan
from coexec.planner import Choice, Resources, aligned_cuts, assemble
from coexec.sync import Sync


class _Measured:
    """Stands as the plan's cost source for the ops that are not split."""

    name = "measurement"

    def op_us(self, graph: Graph, node: Node) -> float:
        return unsplit_op_us(graph, node)


def measured_plan(graph: Graph, info: DeviceInfo, ways: list[Option], sync: str | None, effort_s: float) -> Plan:
    """The fastest of the measured plans over all ways to use the machine, in about ``effort_s`` seconds."""
    plans = {}
    for way in ways:
        use = resources(info, way, sync)
        link = opened(info, way.compute_units, sync)
        choices = measure_choices(graph, link, use, effort_s / len(ways))
        plans[way.name] = assemble(graph, choices, _Measured(), use)
    best = min(plans.values(), key=lambda plan: plan.predicted_ms)
    return replace(best, options={name: plan.predicted_ms for name, plan in plans.items()})


def measure_choices(graph: Graph, sync: Sync, use: Resources, effort_s: float) -> dict[str, Choice]:
    """The fastest measured cut of every split node; equal layers are measured once."""
    distinct: dict[SplitOp, list[str]] = {}
    for node in graph.split_nodes():
        assert isinstance(node.op, SplitOp)
        distinct.setdefault(node.op, []).append(node.name)
    choices = {}
    for i, (op, names) in enumerate(distinct.items()):
        started = time.perf_counter()
        choice = best_cut(op, sync, use, effort_s / (len(distinct) - i))
        effort_s = max(0.0, effort_s - (time.perf_counter() - started))
        choices.update(dict.fromkeys(names, choice))
    return choices


def best_cut(op: SplitOp, sync: Sync, use: Resources, budget_s: float) -> Choice:
    """The fastest of a few measured cuts of one layer."""
    rig = LayerRig(op, sync, use.cpu_threads)
    whole = op.units("channel")
    alone = interleaved(
        [rig.timer(Choice("channel", cut)) for cut in (0, whole)], max_rounds=10, min_rounds=3, budget_s=budget_s / 4
    )
    cpu_us, gpu_us = (t.median_us for t in alone)
    tried = [Choice("channel", 0), Choice("channel", whole)]
    for axis in op.axes if use.split else ():
        tried += [Choice(axis, cut) for cut in _around_balance(op, axis, cpu_us, gpu_us, use)]
    timings = interleaved(
        [rig.timer(c) for c in tried], max_rounds=20, min_rounds=3, budget_s=budget_s * 3 / 4, warm_up_s=0.0
    )
    best = min(range(len(tried)), key=lambda i: timings[i].median_us)
    choice, us = tried[best], timings[best].median_us
    share = choice.cut / op.units(choice.axis)
    costs = Costs(cpu_us * (1 - share), gpu_us * share, max(0.0, us - max(cpu_us * (1 - share), gpu_us * share)), us)
    return replace(choice, costs=costs)


def _around_balance(op: SplitOp, axis: Axis, cpu_us: float, gpu_us: float, use: Resources) -> list[int]:
    """The aligned cut at which both sides should finish together, and its neighbours."""
    assert use.traits is not None
    variant, _ = launch(op.kind, op.columns(), use.traits).one()
    cuts = aligned_cuts(op, axis, variant.alignment(axis, use.traits))
    if not cuts:
        return []
    balance = op.units(axis) * cpu_us / (cpu_us + gpu_us)
    nearest = min(range(len(cuts)), key=lambda i: abs(cuts[i] - balance))
    return cuts[max(0, nearest - 2) : nearest + 3]
