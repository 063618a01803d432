"""Times whole plans of one network against one another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coexec.executor import Executor
from coexec.experiments.setting import Setting
from coexec.graph import Graph
from coexec.layout import Array
from coexec.measure import interleaved
from coexec.ops.base import SplitOp
from coexec.plan import Plan
from coexec.planner import Choice, aligned_cuts, assemble, share_choices

SHARES = (0.25, 0.5, 0.75)
PERTURBED = 6
PACKED_BYTES = 3 << 30
"""Weights that all plans of one executor may hold packed together."""

Choices = Mapping[str, Choice]


def plan_timer(executor: Executor, plan: Plan, feeds: Mapping[str, Array]) -> Callable[[], float]:
    """A function that makes the plan current, runs it once on ``feeds`` and returns microseconds."""

    def run() -> float:
        executor.load(plan)
        start = time.perf_counter()
        executor.run(feeds)
        return (time.perf_counter() - start) * 1e6

    return run


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Normal values for floating inputs, zeros (which are valid indices) for all others."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        floating = tensor.dtype.kind == "f"
        values = rng.standard_normal(tensor.shape, np.float32) if floating else np.zeros(tensor.shape)
        feeds[name] = values.astype(tensor.dtype)
    return feeds


def compare_plans(
    graph: Graph, setting: Setting, chosen: Choices, oracles: Choices, seconds: float
) -> tuple[dict[str, float], float]:
    """Milliseconds of the chosen plan and of its rivals, and the relative noise of these times.

    Uniform shares and seeded perturbations of the chosen cuts are timed first, next to the chosen plan; the
    best of them is then timed again with all others.
    """

    def plan(choices: Choices) -> Plan:
        return assemble(graph, choices, None, setting.use)

    candidates = [share_choices(graph, axis, share) for axis in ("channel", "row") for share in SHARES]
    candidates += [perturbed(graph, setting, chosen, seed) for seed in range(PERTURBED)]
    challenger = _best_of(graph, setting, plan(chosen), [plan(c) for c in candidates], seconds)
    plans = [
        plan(chosen),
        plan(chosen),
        plan(share_choices(graph, "channel", 0.0)),
        plan(share_choices(graph, "channel", 1.0)),
        plan(oracles),
        challenger,
    ]
    times = _time(graph, setting, plans, seconds)
    own = (times[0] + times[1]) / 2
    result = {"plan_ms": own, "cpu_ms": times[2], "gpu_ms": times[3], "per_layer_ms": times[4]}
    result["best_found_ms"] = min(*result.values(), times[5])
    return result, abs(times[0] - times[1]) / own


def perturbed(graph: Graph, setting: Setting, chosen: Choices, seed: int) -> dict[str, Choice]:
    """The chosen cuts, about half of them moved by one or two alignment steps."""
    rng = np.random.default_rng(seed)
    moved = dict(chosen)
    for node in graph.split_nodes():
        op, choice = node.op, chosen[node.name]
        assert isinstance(op, SplitOp)
        if rng.random() < 0.5:
            continue
        inner = aligned_cuts(op, choice.axis, setting.use)
        cuts = [0, *inner, op.units(choice.axis)]
        nearest = min(range(len(cuts)), key=lambda i: abs(cuts[i] - choice.cut))
        target = int(np.clip(nearest + rng.choice([-2, -1, 1, 2]), 0, len(cuts) - 1))
        moved[node.name] = replace(choice, cut=cuts[target])
    return moved


def _best_of(graph: Graph, setting: Setting, anchor: Plan, plans: Sequence[Plan], seconds: float) -> Plan:
    """The fastest of ``plans``, each measured relative to ``anchor`` in groups that fit into memory."""
    weights = sum(c.nbytes for c in graph.constants.values())
    size = int(np.clip(PACKED_BYTES // max(1, 2 * weights), 1, len(plans)))
    ratios: list[float] = []
    for start in range(0, len(plans), size):
        group = plans[start : start + size]
        times = _time(graph, setting, [anchor, *group], seconds * len(group) / len(plans))
        ratios += [t / times[0] for t in times[1:]]
    return plans[int(np.argmin(ratios))]


def _time(graph: Graph, setting: Setting, plans: Sequence[Plan], seconds: float) -> list[float]:
    """Milliseconds of each plan, timed in turn."""
    executor = Executor(graph, setting.sync, setting.cpu_threads)
    feeds = random_feeds(graph)
    timers: list[Any] = [plan_timer(executor, plan, feeds) for plan in plans]
    return [t.median_us / 1e3 for t in interleaved(timers, min_rounds=5, max_rounds=60, budget_s=seconds)]
