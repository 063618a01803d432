"""Plans without a profile: times this model's own layers on the spot (``profile="measure"``).

Each distinct layer is timed alone on either side; from that follows the cut at which both should finish
together, along each axis; from there a hill climb over measured cuts finds the fastest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from coexec.costs import Estimate, unsplit_kernel_us, unsplit_op_us
from coexec.device import DeviceInfo
from coexec.graph import Graph, Node
from coexec.kernels.variant import GpuTraits
from coexec.measure import REST_S, LayerRig, Timing, interleaved
from coexec.ops.base import DeviceOp, SplitOp
from coexec.plan import Costs, Plan
from coexec.planner import Choice, Resources, aligned_cuts, assemble
from coexec.progress import Progress, quiet
from coexec.sync import Sync, opened
from coexec.ways import Machine, Way, best_over

COPIES = 4
"""Copies of a layer that take turns; fewer than a profile uses, since every cut packs the weights of each."""

FEWEST = 3
"""Runs of each cut that is tried, at least."""


class _Measured:
    """Stands as the plan's cost source for the ops that are not split."""

    name = "measurement"

    def op_us(self, graph: Graph, node: Node) -> float:
        return unsplit_op_us(graph, node)

    def kernel_us(self, op: DeviceOp, traits: GpuTraits) -> float:
        return unsplit_kernel_us(op, traits)

    def sync_us(self) -> float:
        return Estimate().sync_us()

    def slowdown(self) -> float:
        return Estimate().slowdown()

    def turn_us(self) -> float:
        return Estimate().turn_us()


def measured_plan(
    graph: Graph,
    info: DeviceInfo,
    ways: Sequence[Way],
    sync: str | None,
    effort_s: float,
    progress: Progress = quiet,
) -> Plan:
    """The fastest of the measured plans over all ways to use the machine, in about ``effort_s`` seconds.

    However short that is, each distinct layer is run a few times.
    """
    machine = Machine.here(info)
    deadline = time.perf_counter() + effort_s
    distinct = graph.distinct_layers()
    total = len(ways) * len(distinct)
    done = 0

    def plan_for(way: Way) -> Plan:
        nonlocal done
        use = machine.resources(way, sync)
        time.sleep(REST_S if info.emulated_gpu else 0.0)  # the threads of the way before
        link = opened(info, way.compute_units, sync) if way.compute_units else None
        choices: dict[str, Choice] = {}
        for op, names in distinct.items():
            progress(done, total, f"{names[0]} on {way.name}")
            left_s = max(0.0, deadline - time.perf_counter())
            seconds = left_s / (total - done)
            choice = best_cut(op, link, use, seconds) if link and use.split else _whole(op, link, use, seconds)
            choices.update(dict.fromkeys(names, choice))
            done += 1
        return assemble(graph, choices, _Measured(), use)

    return best_over(ways, plan_for)


def _whole(op: SplitOp, sync: Sync | None, use: Resources, budget_s: float) -> Choice:
    """The layer on the only side that may have it, timed."""
    rig = LayerRig(op, sync, use, copies=COPIES)
    choice = Choice("channel", 0 if sync is None else op.units("channel"))
    us = _time(rig, [choice], 30, budget_s)[0].median_us
    return replace(choice, costs=Costs(*((us, 0.0) if sync is None else (0.0, us)), 0.0, us))


def best_cut(op: SplitOp, sync: Sync, use: Resources, budget_s: float) -> Choice:
    """The fastest measured cut of one layer.

    A hill climb along each axis from the cut at which both sides should finish together; the fastest few and
    both exclusive choices are then timed again, interleaved, since the minimum of noisy timings flatters.
    """
    deadline = time.perf_counter() + budget_s
    rig = LayerRig(op, sync, use, copies=COPIES)
    exclusive = [whole_on_cpu(rig), Choice("channel", op.units("channel"))]
    cpu_us, gpu_us = (t.median_us for t in _time(rig, exclusive, FEWEST))
    fastest: list[Choice] = []
    for axis in op.axes:
        cuts = [replace(exclusive[0], axis=axis, cut=cut) for cut in aligned_cuts(op, axis, use)]
        fastest += _climb(rig, cuts, cpu_us, gpu_us, deadline)
    finalists = [*exclusive, *fastest]
    left_s = max(0.0, deadline - time.perf_counter())
    timings = _time(rig, finalists, 30, budget_s=left_s)
    best = min(range(len(finalists)), key=lambda i: timings[i].median_us)
    cpu_us, gpu_us = timings[0].median_us, timings[1].median_us
    choice, us = finalists[best], timings[best].median_us
    share = choice.cut / op.units(choice.axis)
    parts = (cpu_us * (1 - share), gpu_us * share)
    return replace(choice, costs=Costs(*parts, max(0.0, us - max(parts)), us))


def whole_on_cpu(rig: LayerRig) -> Choice:
    """The layer on the CPU side by whatever is faster there: a NumPy routine, or a kernel where the side has any."""
    routine = Choice("channel", 0, cpu_kernel=False)
    if rig.use.cpu_traits is None:
        return routine
    kernel = Choice("channel", 0)
    routine_us, kernel_us = (t.median_us for t in _time(rig, [routine, kernel], FEWEST))
    return kernel if kernel_us <= routine_us else routine


def _climb(rig: LayerRig, cuts: list[Choice], cpu_us: float, gpu_us: float, deadline: float) -> list[Choice]:
    """The fastest two of the cuts along one axis; where time is out, the one that should be the best."""
    if not cuts:
        return []
    balance = rig.op.units(cuts[0].axis) * cpu_us / (cpu_us + gpu_us)
    here = min(range(len(cuts)), key=lambda i: abs(cuts[i].cut - balance))
    seen: dict[int, float] = {}
    while time.perf_counter() < deadline:
        new = [i for i in (here - 1, here, here + 1) if 0 <= i < len(cuts) and i not in seen]
        timings = _time(rig, [cuts[i] for i in new], FEWEST)
        seen |= {i: t.median_us for i, t in zip(new, timings, strict=True)}
        best = min(seen, key=lambda i: seen[i])
        if best == here:
            break
        here = best
    return [cuts[i] for i in sorted(seen, key=lambda i: seen[i])[:2] or [here]]


def _time(rig: LayerRig, choices: list[Choice], rounds: int, budget_s: float = 0.0) -> list[Timing]:
    timers = [rig.timer(choice) for choice in choices]
    return interleaved(timers, warm_up_s=0.0, min_rounds=FEWEST, max_rounds=rounds, budget_s=budget_s)
