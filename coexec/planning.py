"""Planning as the command line asks for it: here, or for a profiled device that need not be here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coexec.api import MEASURE, best_plan, choose_device, cost_source
from coexec.costs import CostSource, Estimate
from coexec.device import DeviceInfo
from coexec.errors import InputError
from coexec.explain import explain
from coexec.graph import Graph
from coexec.plan import Plan
from coexec.planner import Resources, make_plan
from coexec.progress import Progress, quiet
from coexec.timeline import save_timeline
from coexec.ways import Machine, Way, best_over


@dataclass(frozen=True)
class Planned:
    """A plan and where it comes from.

    Attributes:
        info: the device here; None for none, or for a plan for another machine.
        use: what the plan uses of the machine, and whether layers may be split then.
        costs: makes the cost source again; None for a plan that was measured.
        planning_ms: from the graph to the plan, loading of predictors included.
    """

    graph: Graph
    plan: Plan
    info: DeviceInfo | None
    use: Resources
    costs: Callable[[], CostSource] | None
    planning_ms: float

    def to_json(self) -> dict[str, Any]:
        """The document of `coexec partition --json`."""
        return {
            "plan": self.plan.to_json(),
            "resources": self.plan.resources_text,
            "planning_ms": self.planning_ms,
            "predicted_ms": self.plan.predicted_ms,
            "memory": self.graph.memory.to_json(),
        }


def plan_here(
    graph: Graph,
    device: str | None,
    profile: str | None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    effort: float | None = None,
    split_only: bool = False,
    progress: Progress = quiet,
) -> Planned:
    """The best plan for a device of this machine, as ``coexec.partition`` makes it.

    ``split_only`` leaves out the ways that use all cores for one side, where there is any other.
    """
    info = choose_device(device)
    machine = Machine.here(info)
    ways = machine.ways(cpu_threads, compute_units)
    if split_only:
        ways = [way for way in ways if way.both_sides] or ways
    start = time.perf_counter()
    plan = best_plan(graph, info, ways, profile, sync, effort, progress)
    planning_ms = (time.perf_counter() - start) * 1e3
    use = machine.resources(_way_of(plan, ways), sync)
    costs = None if profile == MEASURE and info is not None else lambda: cost_source(info, profile)
    return Planned(graph, plan, info, use, costs, planning_ms)


def plan_for_profile(
    graph: Graph, profile: str, cpu_threads: int | None = None, compute_units: int | None = None
) -> Planned:
    """The best plan for the device that a profile was measured on."""
    from coexec.predictors import load_predictors

    start = time.perf_counter()
    predictors = load_predictors(profile)
    machine = predictors.machine()
    ways = machine.ways(cpu_threads, compute_units)
    plan = best_over(ways, lambda way: make_plan(graph, predictors, machine.resources(way)))
    planning_ms = (time.perf_counter() - start) * 1e3
    return Planned(graph, plan, None, machine.resources(_way_of(plan, ways)), lambda: predictors, planning_ms)


def _way_of(plan: Plan, ways: Sequence[Way]) -> Way:
    """The one of ``ways`` that a plan was made for."""
    return next(w for w in ways if (w.compute_units, w.cpu_threads) == (plan.compute_units, plan.cpu_threads))


def result_of(planned: Planned, explained: bool, timeline: str | None, plan_file: str | None) -> dict[str, Any]:
    """The document of `coexec partition --json`, and the files that it names under "written"."""
    written = {}
    document = planned.to_json()
    if explained:
        if planned.costs is None:
            raise InputError("--explain shows predicted costs, and --profile measure predicts none; leave one out")
        document["explain"] = explain(planned.graph, planned.plan, planned.costs(), planned.use)
    if plan_file is not None:
        planned.plan.save(plan_file)
        written["plan"] = plan_file
    if timeline is not None:
        costs = planned.costs() if planned.costs else Estimate()
        save_timeline(timeline, planned.graph, planned.plan, costs, planned.use)
        written["timeline"] = timeline
    return {**document, "written": written}
