"""The predicted course of a run, and its file format: Chrome's trace events (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from coexec.costs import OpCosts
from coexec.errors import InputError
from coexec.graph import Graph
from coexec.plan import Plan, Side, Task, runs_kernel
from coexec.planner import Resources
from coexec.whole_file import replacing

THREADS: dict[Side, int] = {"cpu": 0, "gpu": 1}


@dataclass(frozen=True)
class Span:
    """One task's time on its side, in microseconds from the run's start; before it, so much was waited."""

    task: Task
    start_us: float
    end_us: float
    wait_us: float


def predicted_spans(graph: Graph, plan: Plan, costs: OpCosts, use: Resources | None = None) -> list[Span]:
    """When each task should run: in order on its side, after what it waits for and one hand-over.

    Split nodes take what the plan expects of them, all others what ``costs`` says; ``use`` is what the plan was made
    for.
    """
    nodes = {node.name: node for node in graph.nodes}
    ends: dict[Side, list[float]] = {"cpu": [], "gpu": []}
    seen: dict[Side, int] = {"cpu": 0, "gpu": 0}
    spans = []
    for task in plan.tasks:
        other: Side = "gpu" if task.side == "cpu" else "cpu"
        own_us = ends[task.side][-1] if ends[task.side] else 0.0
        start_us = own_us
        if task.wait_for > seen[task.side]:
            # A later task that waits for no more than this one finds it done.
            seen[task.side] = task.wait_for
            start_us = max(own_us, ends[other][task.wait_for - 1] + _hand_over_us(plan))
        expected = plan.costs.get(task.node)
        if expected is not None:
            lasts_us = expected.cpu_us if task.side == "cpu" else expected.gpu_us
        elif use is not None and runs_kernel(task):
            traits = use.traits if task.side == "gpu" else use.cpu_traits
            assert traits is not None
            lasts_us = costs.kernel_us(graph.device_ops[task.node], traits)
        else:
            lasts_us = costs.op_us(graph, nodes[task.node])
        ends[task.side].append(start_us + lasts_us)
        spans.append(Span(task, start_us, start_us + lasts_us, start_us - own_us))
    return spans


def chrome_trace(plan: Plan, spans: list[Span]) -> dict[str, Any]:
    """Trace events of both sides; waits are events of their own."""
    names = {"cpu": f"CPU side, {plan.cpu_threads} threads", "gpu": f"GPU side, {plan.device or 'none'}"}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": names[side]}}
        for side, tid in THREADS.items()
    ]
    for span in spans:
        task = span.task
        place = {"ph": "X", "pid": 0, "tid": THREADS[task.side]}
        if span.wait_us > 0:
            events.append(
                {**place, "name": "wait", "cat": "wait", "ts": span.start_us - span.wait_us, "dur": span.wait_us}
            )
        part = {"axis": task.axis, "start": task.start, "stop": task.stop, "implementation": task.implementation}
        run = {"name": task.node, "cat": "task", "ts": span.start_us, "dur": span.end_us - span.start_us, "args": part}
        events.append({**place, **run})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"model": plan.model, "predicted": True}}


def save_timeline(path: str, graph: Graph, plan: Plan, costs: OpCosts, use: Resources | None = None) -> None:
    """Write the predicted timeline; an existing file is replaced in one step, or stays as it was."""
    text = json.dumps(chrome_trace(plan, predicted_spans(graph, plan, costs, use)))
    with replacing(path, InputError) as file:
        file.write(text.encode())


def _hand_over_us(plan: Plan) -> float:
    """What the plan expects of one hand-over."""
    return max((cost.sync_us for cost in plan.costs.values()), default=0.0)
