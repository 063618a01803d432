"""Measures single layers as a network would run them: cold weights, real hand-overs, interleaved, medians.

A layer is measured in a graph of several copies with weights, inputs and outputs of their own, one after
the other, each waiting for both sides of the one before. So no copy finds its own data in the caches, and
the hand-over is part of a split layer's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coexec.executor import Executor
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Layout, Shape
from coexec.ops.base import SplitOp
from coexec.plan import Task
from coexec.planner import Choice, Resources, assemble, parts_of
from coexec.sync import Sync

FOOTPRINT_BYTES = 48 << 20
"""The copies together should not fit into the caches that a core has to itself."""
MAX_COPIES = 24
REST_S = 0.1
"""Threads of OpenBLAS (0.3) and onnxruntime (1.32) spin for so long after their last work, on any core."""
SETTLING_S = 0.005
"""Untimed runs before a settled one take so long at least."""


@dataclass(frozen=True)
class Timing:
    """Median of repeated measurements and their spread (interquartile range over median)."""

    median_us: float
    spread: float
    repeats: int


class LayerRig:
    """Copies of one layer, ready to be run at any cut, on ``sync`` with what ``use`` says of the machine."""

    def __init__(self, op: SplitOp, sync: Sync | None, use: Resources, copies: int | None = None) -> None:
        self.op, self.use = op, use
        shapes = op.array_shapes
        footprint = 4 * sum(int(np.prod(s, dtype=np.int64)) for s in shapes.values())
        weight_bytes = 4 * int(np.prod(shapes["weight"], dtype=np.int64))
        fewest = 1 if weight_bytes >= FOOTPRINT_BYTES else 2  # such weights are never warm
        self.copies = copies or int(np.clip(FOOTPRINT_BYTES // max(footprint, 1), fewest, MAX_COPIES))
        self.graph = _copies_graph(op, shapes, self.copies)
        self.executor = Executor(self.graph, sync, use.cpu_threads)
        rng = np.random.default_rng(1)
        for name in self.graph.inputs:
            view = self.executor.tensors.view(name)
            view[...] = rng.standard_normal(view.shape, np.float32)

    def timer(self, choice: Choice) -> Callable[[], float]:
        """A function that runs all copies at this cut once and returns microseconds per layer."""
        choices = {node.name: choice for node in self.graph.nodes}
        plan = assemble(self.graph, choices, None, self.use)
        plan = replace(plan, tasks=tuple(_in_turn(self.graph, choice, self.use)))

        def run() -> float:
            self.executor.load(plan)
            start = time.perf_counter()
            self.executor.run_loaded()
            return (time.perf_counter() - start) / self.copies * 1e6

        return run

    def output(self) -> Array:
        """Output of the first copy after a run, logical."""
        return self.executor.tensors.view(self.graph.outputs[0])


def interleaved(
    timers: Sequence[Callable[[], float]],
    warm_up_s: float = 0.05,
    min_rounds: int = 7,
    max_rounds: int = 40,
    budget_s: float = 2.0,
    seed: int = 0,
) -> list[Timing]:
    """Time several things in turn, in a random order each round, after a warm-up by time.

    Stops after ``max_rounds``, or when ``budget_s`` is over and ``min_rounds`` are done.
    """
    rng = np.random.default_rng(seed)
    samples: list[list[float]] = [[] for _ in timers]
    started = time.perf_counter()
    while time.perf_counter() - started < warm_up_s:
        for timer in timers:
            timer()
    started = time.perf_counter()
    for rounds in range(max_rounds):
        if rounds >= min_rounds and time.perf_counter() - started > budget_s:
            break
        for i in rng.permutation(len(timers)):
            samples[i].append(timers[i]())
    return [summary(values) for values in samples]


def settled(timer: Callable[[], float], threads: int) -> Callable[[], float]:
    """The timer, but after untimed runs, and not before what ran before has stopped spinning.

    ``threads`` is the most that anything timed in turn with it has; with 1 nothing spins on.
    """

    def timed() -> float:
        if threads > 1:
            time.sleep(REST_S)
        until = time.perf_counter() + SETTLING_S
        timer()
        while time.perf_counter() < until:
            timer()
        return timer()

    return timed


def summary(values: Sequence[float]) -> Timing:
    """Median and relative interquartile range."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return Timing(float(median), float((high - low) / median), len(values))


def random_constants(shapes: dict[str, Shape], seed: int) -> dict[str, Array]:
    """He-scaled weight and small bias."""
    rng = np.random.default_rng(seed)
    weight = shapes["weight"]
    fan_in = weight[0] if len(weight) == 2 else int(np.prod(weight[1:]))
    made = {"weight": rng.standard_normal(weight, np.float32) * np.float32((2 / fan_in) ** 0.5)}
    if "bias" in shapes:
        made["bias"] = rng.standard_normal(shapes["bias"], np.float32) * np.float32(0.1)
    return made


def _copies_graph(op: SplitOp, shapes: dict[str, Shape], copies: int) -> Graph:
    f4 = np.dtype(np.float32)
    nodes, tensors, constants = [], {}, {}
    inputs, outputs = [], []
    for i in range(copies):
        for role in ("x", "residual", "y"):
            if role in shapes:
                shape = shapes[role]
                tensors[f"{role}{i}"] = Tensor(f"{role}{i}", shape, f4, Layout.channels_last(len(shape)))
        for role, value in random_constants(shapes, seed=i).items():
            constants[f"{role}{i}"] = value
        names = tuple(f"{role}{i}" if role in shapes else "" for role in ("x", "weight", "bias", "residual"))
        nodes.append(Node(f"copy{i}", op, names, (f"y{i}",)))
        inputs += [n for n in (names[0], names[3]) if n]
        outputs.append(f"y{i}")
    return Graph(op.kind, tuple(nodes), tensors, constants, tuple(inputs), tuple(outputs))


def _in_turn(graph: Graph, choice: Choice, use: Resources) -> list[Task]:
    """Tasks of the copies, each waiting for both sides of the copy before."""
    done = {"cpu": 0, "gpu": 0}
    tasks = []
    for node in graph.nodes:
        before = dict(done)
        for task in parts_of(node, choice, use):
            done[task.side] += 1
            tasks.append(replace(task, wait_for=before["gpu" if task.side == "cpu" else "cpu"]))
    return tasks
