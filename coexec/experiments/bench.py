"""Layers and networks on coexec, on each side alone, and on the libraries that one would pick instead.

All in one run: everything that is compared takes turns, in a random order each round, each timed run after an
untimed one. Times are medians. Weights and inputs of layers rotate over copies, for the peers as well, so that
caches are as a network leaves them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coexec.api import best_plan, cost_source, load_graph
from coexec.arguments import model_title, named_model
from coexec.costs import CostSource
from coexec.errors import InputError
from coexec.executor import Executor
from coexec.experiments.network_timing import plan_timer, random_feeds
from coexec.experiments.peers import Peer, Run, choose_peers, loaded
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
from coexec.measure import LayerRig, interleaved
from coexec.plan import Plan
from coexec.planner import Resources, assemble, share_choices
from coexec.progress import Progress, quiet
from coexec.sync import Sync, opened

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
    return {"environment": _environment(setting, chosen, threads, effort), "models": [], "layers": rows}


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
    """Time networks, from arrays in user memory to arrays in user memory: split, on each side alone, on the peers.

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
        plan = best_plan(graph, setting.info, [setting.way], profile, sync, planning_seconds)
        rows.append({"model": name, **_bench_model(model, graph, plan, setting, chosen, threads, effort)})
    progress(len(models), len(models), "done")
    return {"environment": _environment(setting, chosen, threads, effort), "models": rows, "layers": []}


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


def _environment(setting: Setting, peers: Sequence[Peer], threads: int, effort: Effort) -> dict[str, Any]:
    packages = [peer.package for peer in peers]
    return {**environment(setting, packages), "peer_threads": threads, "rounds": effort.rounds}


def _bench_layer(
    layer: NamedLayer,
    setting: Setting,
    costs: CostSource | None,
    peers: Sequence[Peer],
    threads: int,
    effort: Effort,
) -> dict[str, Any]:
    op = layer.op
    rig = LayerRig(op, setting.sync, setting.cpu_threads)
    choice = choose_cut(rig, setting, costs, effort.seconds)
    timers = {
        "coexec": rig.timer(choice),
        "again": rig.timer(choice),
        "cpu": rig.timer(only_cpu()),
        "gpu": rig.timer(only_gpu(op)),
    }
    whole = _all_cores(setting, threads)
    if whole is not None:
        rig_all = LayerRig(op, whole, threads)
        timers["cpu_all_cores"], timers["gpu_all_cores"] = rig_all.timer(only_cpu()), rig_all.timer(only_gpu(op))
    notes = []
    for peer in peers:
        run, reason = loaded(peer, lambda p: p.load_layer(op, rig.copies, threads))
        if run is None:
            notes.append(str(reason))
        else:
            timers[f"peer {peer.name}"] = _timer(run, rig.copies)
    us = _medians(timers, effort)
    measured = (us["coexec"] + us["again"]) / 2
    slower, faster = max(us["cpu"], us["gpu"]), min(us["cpu"], us["gpu"])
    return {
        "name": layer.name,
        "op": op.kind,
        "gflop": op.flops() / 1e9,
        "axis": choice.axis,
        "cut": choice.cut,
        "units": op.units(choice.axis),
        "coexec_us": measured,
        "cpu_us": us["cpu"],
        "gpu_us": us["gpu"],
        "cpu_all_cores_us": us.get("cpu_all_cores"),
        "gpu_all_cores_us": us.get("gpu_all_cores"),
        "efficiency": ideal_us(us["cpu"], us["gpu"]) / measured,
        "speedup": faster / measured,
        "speedup_cap": 1 + faster / slower,
        "noise": abs(us["coexec"] - us["again"]) / measured,
        "peers": {peer.name: us.get(f"peer {peer.name}") for peer in peers},
        "notes": notes,
    }


def _bench_model(
    model: Any, graph: Graph, plan: Plan, setting: Setting, peers: Sequence[Peer], threads: int, effort: Effort
) -> dict[str, Any]:
    feeds = random_feeds(graph)
    executor = Executor(graph, setting.sync, setting.cpu_threads)
    cpu, gpu = (_exclusive(graph, setting.use, side) for side in ("cpu", "gpu"))
    timers = {
        "coexec": plan_timer(executor, plan, feeds),
        "again": plan_timer(executor, plan, feeds),
        "cpu": plan_timer(executor, cpu, feeds),
        "gpu": plan_timer(executor, gpu, feeds),
    }
    whole = _all_cores(setting, threads)
    if whole is not None:
        executor_all = Executor(graph, whole, threads)
        use = replace(setting.use, traits=whole.session.traits, cpu_threads=threads)
        for side in ("cpu", "gpu"):
            timers[f"{side}_all_cores"] = plan_timer(executor_all, _exclusive(graph, use, side), feeds)
    notes = []
    for peer in peers:
        run, reason = loaded(peer, lambda p: p.load_model(model, feeds, threads))
        if run is None:
            notes.append(str(reason))
        else:
            timers[f"peer {peer.name}"] = _timer(run)
    ms = {name: us / 1e3 for name, us in _medians(timers, effort).items()}
    measured = (ms["coexec"] + ms["again"]) / 2
    return {
        "coexec_ms": measured,
        "cpu_ms": ms["cpu"],
        "gpu_ms": ms["gpu"],
        "cpu_all_cores_ms": ms.get("cpu_all_cores"),
        "gpu_all_cores_ms": ms.get("gpu_all_cores"),
        "predicted_ms": plan.predicted_ms,
        "costs_from": plan.costs_from,
        "speedup": min(ms["cpu"], ms["gpu"]) / measured,
        "noise": abs(ms["coexec"] - ms["again"]) / measured,
        "peers": {peer.name: ms.get(f"peer {peer.name}") for peer in peers},
        "notes": [*graph.notes, *notes],
    }


def _exclusive(graph: Graph, use: Resources, side: str) -> Plan:
    return assemble(graph, share_choices(graph, "channel", float(side == "gpu")), None, use)


def _all_cores(setting: Setting, threads: int) -> Sync | None:
    """An emulated GPU with all of the cores that the peers have; None where that is what a side has anyway."""
    if not setting.info.emulated_gpu or threads < 2 or threads > setting.info.compute_units:
        return None
    return opened(setting.info, threads, setting.use.sync or None)


def _timer(run: Run, layers: int = 1) -> Timer:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) / layers * 1e6

    return timed


def _settled(timer: Timer) -> Timer:
    """Times a second run: the first one finds the threads of whatever ran before still spinning."""

    def timed() -> float:
        timer()
        return timer()

    return timed


def _medians(timers: Mapping[str, Timer], effort: Effort) -> dict[str, float]:
    timings = interleaved(
        [_settled(timer) for timer in timers.values()],
        min_rounds=effort.rounds,
        max_rounds=max(effort.rounds, 60),
        budget_s=effort.seconds,
    )
    return {name: t.median_us for name, t in zip(timers, timings, strict=True)}
