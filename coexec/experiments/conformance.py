"""Split runs against onnxruntime: every tensor that survives fusion, at every cut, on every device.

All tensors are filled with NaN before each run, on both sides, so that what a part leaves out is seen. Each case
runs twice, with all tensors kept and with intermediate ones sharing memory, and must give the same bits.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto

from coexec.api import load_graph
from coexec.device import DeviceInfo, cpu_cores, find_devices
from coexec.executor import Executor
from coexec.experiments.network_timing import random_feeds
from coexec.experiments.reference_check import relative_error
from coexec.graph import Graph
from coexec.layout import Array
from coexec.ops.base import Axis
from coexec.plan import Plan
from coexec.planner import Resources, assemble, share_choices
from coexec.progress import Progress, quiet
from coexec.sync import opened, proven_strategies
from coexec.sync.events import copy_region
from coexec.sync.queues import poll_event
from coexec.transfers import written
from coexec.ways import Machine, Way

TOLERANCE = 1e-4
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
AXES: tuple[Axis, ...] = ("channel", "row")
TWIN = ":rows"
"""The frontend calls a row-major copy of tensor ``x`` ``x:rows``."""


@dataclass(frozen=True)
class Link:
    """A device and one of the synchronisation strategies that it supports."""

    info: DeviceInfo
    sync: str

    def __str__(self) -> str:
        return f"{self.info.id} {self.sync}"


@dataclass(frozen=True)
class Cut:
    """Every layer cut along one axis at about one share of the GPU; the CPU's parts by NumPy or by kernels."""

    axis: Axis
    share: float
    cpu_kernels: bool = False


@dataclass(frozen=True)
class Result:
    """One case: the largest error over all tensors, relative to the largest value of the same tensor."""

    model: str
    device: str
    sync: str
    axis: Axis
    share: float
    cpu_kernels: bool
    tensors: int
    skipped: int
    max_rel_error: float
    worst: str
    bit_equal: bool

    @property
    def ok(self) -> bool:
        return self.bit_equal and self.max_rel_error <= TOLERANCE and self.tensors > 0


def find_links() -> list[Link]:
    """Every usable device with every strategy that proves itself on it."""
    return [Link(info, name) for info in find_devices() if info.usable for name in proven_strategies(info)[0]]


def compute_units(info: DeviceInfo) -> int:
    """An emulated GPU leaves the CPU side a core."""
    return max(1, min(info.compute_units, cpu_cores() - 1)) if info.emulated_gpu else info.compute_units


def all_cases(models: Sequence[str], links: Sequence[Link]) -> dict[str, dict[Link, list[Cut]]]:
    """Model -> device and strategy -> cuts: every combination."""
    return {model: dict.fromkeys(links, _cuts(links)) for model in models}


def _cuts(links: Sequence[Link]) -> list[Cut]:
    """By NumPy, and where the CPU side can run kernels also by these, where they have a part."""
    kernels = any(resources_of(link).cpu_traits is not None for link in links)
    cuts = [(axis, share) for share in SHARES for axis in AXES]
    return [Cut(*cut) for cut in cuts] + [Cut(*cut, True) for cut in cuts if kernels and cut[1] < 1]


def resources_of(link: Link) -> Resources:
    """What a check uses of the machine."""
    units = compute_units(link.info)
    threads = max(1, cpu_cores() - units) if link.info.emulated_gpu else cpu_cores()
    return Machine.here(link.info).resources(Way("check", units, threads), link.sync)


def sample_cases(models: Sequence[str], links: Sequence[Link]) -> dict[str, dict[Link, list[Cut]]]:
    """A small part of ``all_cases`` in which each model, device with strategy, axis and share occurs."""
    cuts = _cuts(links)
    rounds = max(len(models), len(links))
    pairs = [(models[i % len(models)], links[i % len(links)]) for i in range(rounds)]
    each = max(2, -(-len(cuts) // rounds))
    # A stride that has no factor in common with the number of cuts visits them all.
    order = itertools.cycle([cuts[(7 * i) % len(cuts)] for i in range(len(cuts))])
    cases: dict[str, dict[Link, list[Cut]]] = {model: {} for model in models}
    for model, link in pairs:
        cases[model].setdefault(link, []).extend(itertools.islice(order, each))
    return cases


def check_models(
    models: Mapping[str, Callable[[], ModelProto]],
    cases: Mapping[str, Mapping[Link, Sequence[Cut]]],
    progress: Progress | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run the cases and compare; one model's memory is freed before the next is built.

    Args:
        models: name -> function that makes the ONNX model; only those in ``cases`` are made.
        on_result: called with each result as it comes.
    """
    progress = progress or quiet
    total = sum(len(cuts) for links in cases.values() for cuts in links.values())
    results: list[Result] = []
    for name, links in cases.items():
        progress(len(results), total, name)
        proto = models[name]()
        graph = load_graph(proto)
        feeds = random_feeds(graph)
        reference = reference_tensors(proto, graph, feeds)
        del proto
        for link, cuts in links.items():
            for result in _check_link(name, graph, feeds, reference, link, cuts):
                results.append(result)
                progress(len(results), total, f"{name} {link}")
                if on_result:
                    on_result(result)
        del graph, reference
        gc.collect()
    return results


def report(results: Iterable[Result]) -> dict[str, Any]:
    """The results as a JSON document."""
    rows = [{**asdict(r), "ok": r.ok} for r in results]
    return {
        "tolerance": TOLERANCE,
        "cases": len(rows),
        "failed": sum(not row["ok"] for row in rows),
        "max_rel_error": max((row["max_rel_error"] for row in rows), default=0.0),
        "results": rows,
    }


def reference_tensors(proto: ModelProto, graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """onnxruntime's value of every tensor of the graph that has one of its name, a twin's under the twin's name.

    Outputs after a final softmax are left out: it turns absolute errors into relative ones.
    """
    import onnxruntime

    made = {name for node in proto.graph.node for name in node.output if name}
    wanted = {name: name.removesuffix(TWIN) for name in graph.tensors if name not in graph.inputs}
    skip = _final_softmax(graph)
    wanted = {name: source for name, source in wanted.items() if source in made and name not in skip}
    kept = list(proto.graph.output)
    extra = ModelProto()
    extra.CopyFrom(proto)
    del extra.graph.output[:]
    known = {value.name: value for value in kept}
    extra.graph.output.extend(known.get(n) or ValueInfoProto(name=n) for n in dict.fromkeys(wanted.values()))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(extra.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    return {name: np.asarray(values[source]) for name, source in wanted.items()}


def _final_softmax(graph: Graph) -> set[str]:
    return {
        name for node in graph.nodes for name in node.outputs if "softmax" in node.op.kind and name in graph.outputs
    }


def _check_link(
    name: str,
    graph: Graph,
    feeds: Mapping[str, Array],
    reference: Mapping[str, Array],
    link: Link,
    cuts: Sequence[Cut],
) -> Iterable[Result]:
    use, threads = resources_of(link), resources_of(link).cpu_threads
    sync = opened(link.info, compute_units(link.info), link.sync)
    keeping, sharing = Executor(graph, sync, threads, keep_all=True), Executor(graph, sync, threads)
    for cut in cuts:
        own = use if cut.cpu_kernels else replace(use, cpu_traits=None)
        plan = assemble(graph, share_choices(graph, cut.axis, cut.share), None, own)
        first, second = (
            {key: value.copy() for key, value in run_poisoned(executor, plan, feeds).items()}
            for executor in (keeping, sharing)
        )
        equal = all(_same_bits(first[key], second[key]) for key in graph.outputs if key in first)
        worst, error = _worst(first, reference)
        skipped = len(graph.tensors) - len(graph.inputs) - len(reference)
        case = (name, link.info.id, link.sync, cut.axis, cut.share, cut.cpu_kernels)
        yield Result(*case, len(reference), skipped, error, worst, equal)


def run_poisoned(executor: Executor, plan: Plan, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run once on tensors full of NaN; every tensor afterwards, as views of the executor's memory.

    Where intermediate tensors share memory, only inputs and outputs are what they should be.
    """
    graph, sync = executor.graph, executor.sync
    executor.load(plan)
    separate = sync is not None and not sync.in_kernel
    for name in graph.tensors:
        view = executor.tensors.view(name)
        view.fill(np.nan if view.dtype.kind == "f" else np.iinfo(view.dtype).max if view.dtype.kind in "iu" else True)
        if separate:
            _copy(executor, name, view, to_device=True)
    executor.run(feeds)
    if separate:
        for task in plan.tasks:
            for region, view in written(executor.tensors, task) if task.side == "gpu" else ():
                _copy(executor, region.name, view, to_device=False)
    return {name: executor.tensors.view(name) for name in graph.tensors}


def _copy(executor: Executor, name: str, view: Array, to_device: bool) -> None:
    sync = executor.sync
    assert sync is not None
    events = copy_region(sync.session.queue, executor.tensors.memory(name), view, to_device)
    sync.session.queue.flush()
    for event in events:
        poll_event(event, sync.session)


def _same_bits(a: Array, b: Array) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _worst(values: Mapping[str, Array], reference: Mapping[str, Array]) -> tuple[str, float]:
    errors = {name: relative_error(values[name], expected) for name, expected in reference.items()}
    worst = max(errors, key=lambda name: errors[name], default="")
    return worst, errors.get(worst, 0.0)
