"""The main job on one model, and its figures: planned, run split, checked, timed layer by layer and as a whole."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coexec.api import load_graph
from coexec.device import DeviceInfo, cpu_cores
from coexec.executor import Executor
from coexec.experiments.network_timing import plan_timer, random_feeds
from coexec.experiments.reference_check import Check, check_against_onnxruntime
from coexec.experiments.setting import ideal_us, only_gpu
from coexec.graph import Graph
from coexec.kernels import KERNEL_BY_NAME
from coexec.layout import Array
from coexec.measure import LayerRig, interleaved, settled
from coexec.measured_plan import whole_on_cpu
from coexec.ops.base import SplitOp
from coexec.plan import LayerPlan, Plan, Side
from coexec.planner import Choice, Resources, assemble, share_choices
from coexec.planning import Planned, plan_here
from coexec.progress import Progress, quiet
from coexec.sync import Sync, opened
from coexec.ways import Machine, Way

LAYERS_S = 12.0
"""Measuring time for all layers together."""
NETWORK_S = 8.0
"""Measuring time for the whole network in all its ways."""

Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class LayerTimes:
    """Measured microseconds of one layer; None for a side that is not there or has no part.

    Attributes:
        layer_us: as planned, hand-overs included.
        cpu_us, gpu_us: each side's part, run alone.
        cpu_whole_us, gpu_whole_us: the whole layer on one side.
    """

    layer_us: float
    cpu_us: float | None
    gpu_us: float | None
    cpu_whole_us: float
    gpu_whole_us: float | None

    @property
    def ideal_us(self) -> float | None:
        """Both sides at work all the time, hand-over free."""
        return None if self.gpu_whole_us is None else ideal_us(self.cpu_whole_us, self.gpu_whole_us)


def demo(
    model: Any,
    title: str,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    device: str | None = None,
    profile: str | None = None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Plan, run and measure ``model`` (path or ModelProto); the document of `coexec demo --json`.

    Raises CoexecError as ``coexec.partition`` does.
    """
    progress(0, 1, "reading and planning")
    graph = load_graph(model, input_shapes)
    planned = plan_here(graph, device, profile, cpu_threads, compute_units, sync, split_only=True)
    plan, info = planned.plan, planned.info
    link = opened(info, plan.compute_units, sync) if info else None
    distinct = _distinct(graph, plan)
    steps = len(distinct) + 3
    progress(1, steps, "running and checking")
    feeds = random_feeds(graph)
    check = _run_and_check(model, graph, plan, link, feeds)
    progress(2, steps, "whole network")
    totals = measure_network(planned, link, feeds, sync)
    gc.collect()  # the timed executors hold every way's packed weights
    times: dict[tuple[SplitOp, str, int], LayerTimes] = {}
    for done, (key, row) in enumerate(distinct.items()):
        progress(3 + done, steps, row.name)
        choice = Choice(row.axis, row.cut, cpu_kernel=row.cpu_impl in KERNEL_BY_NAME)
        times[key] = measure_layer(key[0], choice, link, planned.use, LAYERS_S / len(distinct))
    progress(steps, steps, "done")
    ops = {node.name: node.op for node in graph.split_nodes()}
    layers = []
    for row in plan.layers:
        op = ops[row.name]
        assert isinstance(op, SplitOp)
        layers.append(_layer_json(row, op, times[op, row.axis, row.cut]))
    return {**_head(title, planned, link), **_check_json(check), **totals, "layers": layers}


def measure_network(planned: Planned, link: Sync | None, feeds: Feeds, sync: str | None) -> dict[str, Any]:
    """Milliseconds of the plan, of each side alone with its share, and of each on all cores; all in turn."""
    graph, plan, info = planned.graph, planned.plan, planned.info
    cores = cpu_cores()
    cpu_choices, gpu_choices = share_choices(graph, "channel", 0.0), share_choices(graph, "channel", 1.0)
    shared = Executor(graph, link, plan.cpu_threads)
    ways: dict[str, tuple[Executor, Plan]] = {
        "coexec_ms": (shared, plan),
        "cpu_ms": (shared, assemble(graph, cpu_choices, None, planned.use)),
    }
    if plan.cpu_threads != cores:
        all_cores = Resources("", "", None, cores)
        ways["cpu_all_cores_ms"] = (Executor(graph, None, cores), assemble(graph, cpu_choices, None, all_cores))
    if info is not None:
        ways["gpu_ms"] = (shared, assemble(graph, gpu_choices, None, planned.use))
        units = _all_units(info)
        if (plan.compute_units, plan.cpu_threads) != (units, 1):
            whole = Machine.here(info).resources(Way("all cores", units, 1), sync)
            executor = Executor(graph, opened(info, units, sync), 1)
            ways["gpu_all_cores_ms"] = (executor, assemble(graph, gpu_choices, None, whole))
    timers = [settled(plan_timer(executor, way, feeds), cores) for executor, way in ways.values()]
    timings = interleaved(timers, warm_up_s=0.5, min_rounds=3, max_rounds=40, budget_s=NETWORK_S)
    ms: dict[str, float | None] = {name: t.median_us / 1e3 for name, t in zip(ways, timings, strict=True)}
    ms.setdefault("gpu_ms", None)
    ms.setdefault("cpu_all_cores_ms", ms["cpu_ms"])
    ms.setdefault("gpu_all_cores_ms", ms["gpu_ms"])
    alone = [value for value in (ms["cpu_ms"], ms["gpu_ms"]) if value is not None]
    coexec_ms = timings[0].median_us / 1e3
    return {**ms, "speedup": min(alone) / coexec_ms, "noise": timings[0].spread}


def measure_layer(op: SplitOp, choice: Choice, link: Sync | None, use: Resources, seconds: float) -> LayerTimes:
    """One layer at one cut: as a whole, its parts alone, and each side alone with the whole of it; all in turn."""
    rig = LayerRig(op, link, use)
    timers = {"cpu whole": rig.timer(whole_on_cpu(rig))}
    if link is not None:
        timers["gpu whole"] = rig.timer(only_gpu(op))
    split = 0 < choice.cut < op.units(choice.axis)
    if split:
        timers["layer"] = rig.timer(choice)
        timers["cpu"] = _side_timer(rig, choice, use, "cpu")
        timers["gpu"] = _side_timer(rig, choice, use, "gpu")
    timings = interleaved(list(timers.values()), min_rounds=3, max_rounds=25, budget_s=seconds)
    us = {name: timing.median_us for name, timing in zip(timers, timings, strict=True)}
    if not split:
        side = "cpu" if choice.cut == 0 else "gpu"
        us["layer"] = us[side] = us[f"{side} whole"]
    return LayerTimes(us["layer"], us.get("cpu"), us.get("gpu"), us["cpu whole"], us.get("gpu whole"))


def _side_timer(rig: LayerRig, choice: Choice, use: Resources, side: Side) -> Callable[[], float]:
    """A function that runs one side's parts of all copies, the other side's left out; microseconds per layer."""
    whole = assemble(rig.graph, {node.name: choice for node in rig.graph.nodes}, None, use)
    alone = replace(whole, tasks=tuple(replace(task, wait_for=0) for task in whole.tasks if task.side == side))

    def run() -> float:
        rig.executor.load(alone)
        start = time.perf_counter()
        rig.executor.run_loaded()
        return (time.perf_counter() - start) / rig.copies * 1e6

    return run


def _run_and_check(model: Any, graph: Graph, plan: Plan, link: Sync | None, feeds: Feeds) -> Check:
    executor = Executor(graph, link, plan.cpu_threads)
    executor.load(plan)
    return check_against_onnxruntime(model, feeds, executor.run(feeds))


def _all_units(info: DeviceInfo) -> int:
    return min(info.compute_units, cpu_cores()) if info.emulated_gpu else info.compute_units


def _distinct(graph: Graph, plan: Plan) -> dict[tuple[SplitOp, str, int], LayerPlan]:
    """Layers that differ in op or cut, each with the first row of the plan that has it."""
    ops = {node.name: node.op for node in graph.split_nodes()}
    distinct: dict[tuple[SplitOp, str, int], LayerPlan] = {}
    for row in plan.layers:
        op = ops[row.name]
        assert isinstance(op, SplitOp)
        distinct.setdefault((op, row.axis, row.cut), row)
    return distinct


def _layer_json(row: LayerPlan, op: SplitOp, times: LayerTimes) -> dict[str, Any]:
    ideal = times.ideal_us
    return {
        "name": row.name,
        "op": row.op,
        "shape": op.shape_text,
        "axis": row.axis,
        "cut": row.cut,
        "units": row.units,
        "gpu_share": row.gpu_share,
        "cpu_impl": row.cpu_impl,
        "gpu_impl": row.gpu_impl,
        "predicted_cpu_us": row.cpu_us,
        "predicted_gpu_us": row.gpu_us,
        "predicted_us": row.predicted_us,
        "cpu_us": times.cpu_us,
        "gpu_us": times.gpu_us,
        "measured_us": times.layer_us,
        "cpu_whole_us": times.cpu_whole_us,
        "gpu_whole_us": times.gpu_whole_us,
        "ideal_us": ideal,
        "efficiency": None if ideal is None else ideal / times.layer_us,
    }


def _head(title: str, planned: Planned, link: Sync | None) -> dict[str, Any]:
    plan, info = planned.plan, planned.info
    return {
        "model": title,
        "device": info.id if info else None,
        "device_name": plan.device_name,
        "sync": link.name if link else None,
        "emulated_gpu": bool(info and info.emulated_gpu),
        "compute_units": plan.compute_units,
        "cpu_threads": plan.cpu_threads,
        "cores": cpu_cores(),
        "costs_from": plan.costs_from,
        "planning_ms": planned.planning_ms,
        "predicted_ms": plan.predicted_ms,
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "max_rel_error": check.max_rel_error,
        "checked_against": check.against or None,
        "not_checked": check.reason,
        "correct": check.passed if check.against else None,
    }
