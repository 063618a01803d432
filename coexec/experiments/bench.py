"""Layers and networks on coexec, on each side alone, and on the libraries that one would pick instead.

All in one run: everything that is compared takes turns, in a random order each round, each timed run after an
untimed one. Times are medians. Weights and inputs of layers rotate over copies, for the peers as well, so that
caches are as a network leaves them. Of a layer or network all is let go before the next one is loaded.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coexec.api import best_plan, cost_source, load_graph
from coexec.arguments import model_title, named_model
from coexec.costs import CostSource
from coexec.errors import InputError
from coexec.executor import Executor
from coexec.experiments.bench_summary import against_best, difference_notes, summary
from coexec.experiments.network_timing import plan_timer, random_feeds
from coexec.experiments.peers import Peer, Run, choose_peers, load_all
from coexec.experiments.setting import (
    Setting,
    choose_cut,
    environment,
    ideal_us,
    only_cpu,
    only_gpu,
    open_setting,
)
from coexec.experiments.suites import NamedLayer
from coexec.graph import Graph
from coexec.measure import LayerRig, interleaved, settled
from coexec.plan import Plan
from coexec.planner import Resources, assemble, share_choices
from coexec.progress import Progress, quiet
from coexec.sync import opened
from coexec.ways import Machine, Way

MODEL_SUITE = ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "inception_v3", "squeezenet", "vit_b32")
"""Networks of ``coexec.zoo`` that stand for their kind."""

Timer = Callable[[], float]


@dataclass(frozen=True)
class Effort:
    """How long a benchmark measures: rounds at least, and seconds per layer or network."""

    rounds: int = 20
    seconds: float = 2.0


def bench_layers(
    layers: Sequence[NamedLayer],
    *,
    peers: list[str] | None = None,
    threads: int = 1,
    device: str | None = None,
    profile: str | None = "measure",
    sync: str | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time single layers: split as planned, on each side alone, and on the peers.

    Args:
        layers: what `coexec.experiments.suites.load_layers` returns.
        peers: names in ``coexec.experiments.peers.PEERS``; None takes all. One that is missing gets null and a note.
        threads: of each peer. An emulated GPU shares as many cores with the CPU side; with 1, either side
            has one core of its own.
        profile: "measure" searches each layer's cut by measuring; else as for ``coexec.partition``.

    Returns:
        The document of `coexec bench --json`, its "models" empty.
    """
    setting, chosen, effort = _start(peers, threads, device, sync, effort)
    costs = None if profile == "measure" else cost_source(setting.info, profile)
    progress = progress or quiet
    rows = []
    for done, layer in enumerate(layers):
        progress(done, len(layers), layer.name)
        rows.append(_bench_layer(layer, setting, costs, chosen, threads, effort))
    progress(len(layers), len(layers), "done")
    return _document(_environment(setting, chosen, threads, effort), layers=rows)


def bench_models(
    models: Sequence[Any],
    *,
    peers: list[str] | None = None,
    threads: int = 1,
    device: str | None = None,
    profile: str | None = None,
    sync: str | None = None,
    effort: Effort | None = None,
    planning_seconds: float | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time networks, from arrays in user memory to arrays in user memory: by plan, on each side alone, on the peers.

    The plan is what ``coexec.partition`` would choose on a machine of ``threads`` cores. Where that is not the
    even split, that is timed beside it, since it is what both sides alone compare with.

    Args:
        models: names of ``coexec.zoo``, paths of ONNX files, or ``onnx.ModelProto``s.
        planning_seconds: what ``profile="measure"`` may take for each network.
        peers, threads, device, profile, sync, progress: as for :func:`bench_layers`.

    Returns:
        The document of `coexec bench --json`, its "layers" empty.
    """
    setting, chosen, effort = _start(peers, threads, device, sync, effort)
    progress = progress or quiet
    rows = []
    for done, given in enumerate(models):
        name = model_name(given)
        progress(done, len(models), name)
        model = named_model(given) if isinstance(given, str) else given
        graph = load_graph(model)

        def plan(ways: Sequence[Way], graph: Graph = graph) -> Plan:
            return best_plan(graph, setting.info, ways, profile, sync, planning_seconds)

        plans = _Plans(plan(_ways(setting, threads)), plan([setting.way]))
        rows.append({"model": name, **_bench_model(model, graph, plans, setting, chosen, threads, effort)})
    progress(len(models), len(models), "done")
    return _document(_environment(setting, chosen, threads, effort), models=rows)


def model_name(given: Any) -> str:
    """What a report calls a model: by its file, its zoo name, or what it calls itself."""
    return model_title(os.fspath(given)) if isinstance(given, str | os.PathLike) else str(given.graph.name)


def _start(
    peers: list[str] | None, threads: int, device: str | None, sync: str | None, effort: Effort | None
) -> tuple[Setting, list[Peer], Effort]:
    if threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    chosen = choose_peers(peers)
    return open_setting(device, sync=sync, cores=threads), chosen, effort or Effort()


def _ways(setting: Setting, threads: int) -> list[Way]:
    """What ``coexec.partition`` chooses from on a machine of so many cores."""
    machine = Machine.here(setting.info)
    return replace(machine, cores=min(threads, machine.cores)).ways()


def _environment(setting: Setting, peers: Sequence[Peer], threads: int, effort: Effort) -> dict[str, Any]:
    packages = [package for peer in peers for package in peer.packages]
    return {**environment(setting, packages), "peer_threads": threads, "rounds": effort.rounds}


def _document(
    where: dict[str, Any], models: Sequence[dict[str, Any]] = (), layers: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    rows = [*models, *layers]
    return {
        "environment": where,
        "models": list(models),
        "layers": list(layers),
        "noise": statistics.median(row["noise"] for row in rows) if rows else None,
        "summary": summary(layers, models),
        "notes": difference_notes(rows),
    }


def _bench_layer(
    layer: NamedLayer,
    setting: Setting,
    costs: CostSource | None,
    peers: Sequence[Peer],
    threads: int,
    effort: Effort,
) -> dict[str, Any]:
    op = layer.op
    rig = LayerRig(op, setting.sync, setting.use)
    choice = choose_cut(rig, setting, costs, effort.seconds)
    timers = {
        "coexec": rig.timer(choice),
        "again": rig.timer(choice),
        "cpu": rig.timer(only_cpu()),
        "numpy": rig.timer(only_cpu(by_kernel=False)),
        "gpu": rig.timer(only_gpu(op)),
    }
    if _all_cores(setting, threads):
        use = Machine.here(setting.info).resources(Way("", threads, threads), setting.use.sync)
        rig_all = LayerRig(op, opened(setting.info, threads, setting.use.sync or None), use)
        timers["cpu_all_cores"], timers["gpu_all_cores"] = rig_all.timer(only_cpu()), rig_all.timer(only_gpu(op))
    found = load_all(peers, lambda p: p.load_layer(op, rig.copies, threads))
    timers |= {f"peer {name}": _timer(run, rig.copies) for name, run in found.runs.items()}
    us = _medians(timers, effort, threads)
    measured = (us["coexec"] + us["again"]) / 2
    us["cpu"] = min(us["cpu"], us["numpy"])
    slower, faster = max(us["cpu"], us["gpu"]), min(us["cpu"], us["gpu"])
    peer_us = {peer.name: us.get(f"peer {peer.name}") for peer in peers}
    cpu_alike = setting.cpu_threads == threads
    gpu_alike = not setting.info.emulated_gpu or setting.way.compute_units == threads
    ratios = against_best(
        peer_us,
        "us",
        ratio=measured,
        cpu_ratio=us["cpu"] if cpu_alike else None,
        gpu_ratio=us["gpu"] if gpu_alike else None,
    )
    return {
        "name": layer.name,
        "op": op.kind,
        "gflop": op.flops() / 1e9,
        "axis": choice.axis,
        "cut": choice.cut,
        "units": op.units(choice.axis),
        "coexec_us": measured,
        "cpu_us": us["cpu"],
        "numpy_us": us["numpy"],
        "gpu_us": us["gpu"],
        "cpu_all_cores_us": us.get("cpu_all_cores"),
        "gpu_all_cores_us": us.get("gpu_all_cores"),
        "efficiency": ideal_us(us["cpu"], us["gpu"]) / measured,
        "speedup": faster / measured,
        "speedup_cap": 1 + faster / slower,
        "noise": abs(us["coexec"] - us["again"]) / measured,
        "peers": peer_us,
        **ratios,
        "differences": found.differences,
        "notes": found.notes,
    }


@dataclass(frozen=True)
class _Plans:
    """What ``coexec.partition`` chooses, and the best plan with both sides at once on even shares of the cores."""

    chosen: Plan
    split: Plan


def _bench_model(
    model: Any, graph: Graph, plans: _Plans, setting: Setting, peers: Sequence[Peer], threads: int, effort: Effort
) -> dict[str, Any]:
    feeds = random_feeds(graph)
    executors: dict[tuple[int, int], Executor] = {}

    def timer(plan: Plan) -> Timer:
        shares = _shares(plan)
        if shares not in executors:
            link = opened(setting.info, plan.compute_units, setting.use.sync or None) if plan.compute_units else None
            executors[shares] = Executor(graph, link, plan.cpu_threads)
        return plan_timer(executors[shares], plan, feeds)

    timers = {
        "coexec": timer(plans.chosen),
        "again": timer(plans.chosen),
        "cpu": timer(_exclusive(graph, setting.use, "cpu")),
        "gpu": timer(_exclusive(graph, setting.use, "gpu")),
    }
    if plans.split.tasks != plans.chosen.tasks or _shares(plans.split) != _shares(plans.chosen):
        timers["split"] = timer(plans.split)
    if _all_cores(setting, threads):
        machine = Machine.here(setting.info)
        for side, way in (("cpu", Way("", 0, threads)), ("gpu", Way("", threads, 1))):
            whole = machine.resources(way, setting.use.sync)
            timers[f"{side}_all_cores"] = timer(_exclusive(graph, whole, side))
    found = load_all(peers, lambda p: p.load_model(model, feeds, threads))
    timers |= {f"peer {name}": _timer(run) for name, run in found.runs.items()}
    ms = {name: us / 1e3 for name, us in _medians(timers, effort, threads).items()}
    measured = (ms["coexec"] + ms["again"]) / 2
    split = ms.get("split", measured)
    peer_ms = {peer.name: ms.get(f"peer {peer.name}") for peer in peers}
    return {
        "coexec_ms": measured,
        "way": min(plans.chosen.options, key=lambda name: plans.chosen.options[name]),
        "split_ms": split,
        "split_way": setting.way.name,
        "cpu_ms": ms["cpu"],
        "gpu_ms": ms["gpu"],
        "cpu_all_cores_ms": ms.get("cpu_all_cores"),
        "gpu_all_cores_ms": ms.get("gpu_all_cores"),
        "predicted_ms": plans.chosen.predicted_ms,
        "costs_from": plans.chosen.costs_from,
        "speedup": min(ms["cpu"], ms["gpu"]) / split,
        "noise": abs(ms["coexec"] - ms["again"]) / measured,
        "peers": peer_ms,
        **against_best(peer_ms, "ms", ratio=measured, split_ratio=split),
        "differences": found.differences,
        "notes": [*graph.notes, *found.notes],
    }


def _shares(plan: Plan) -> tuple[int, int]:
    return plan.compute_units, plan.cpu_threads


def _exclusive(graph: Graph, use: Resources, side: str) -> Plan:
    return assemble(graph, share_choices(graph, "channel", float(side == "gpu")), None, use)


def _all_cores(setting: Setting, threads: int) -> bool:
    """Whether to time either side with all the cores that the peers have: where a side has less than that."""
    return setting.info.emulated_gpu and 2 <= threads <= setting.info.compute_units


def _timer(run: Run, layers: int = 1) -> Timer:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) / layers * 1e6

    return timed


def _medians(timers: Mapping[str, Timer], effort: Effort, threads: int) -> dict[str, float]:
    timings = interleaved(
        [settled(timer, threads) for timer in timers.values()],
        min_rounds=effort.rounds,
        max_rounds=max(effort.rounds, 60),
        budget_s=effort.seconds,
    )
    return {name: t.median_us for name, t in zip(timers, timings, strict=True)}
