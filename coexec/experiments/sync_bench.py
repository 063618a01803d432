"""Measures what a hand-over costs with each synchronisation strategy of a device.

A chain of tiny layers alternates between the sides, run by the executor as any network is: the GPU side
computes a product of 16 numbers, the CPU side notes the time. From note to note is one round trip: the host
signals, the kernel starts, works and signals, the host sees it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from coexec.device import DeviceInfo, cpu_cores
from coexec.errors import InputError
from coexec.executor import Executor
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Layout
from coexec.ops.base import ArraySpec, Op
from coexec.ops.linear import Linear
from coexec.planner import Choice, assemble
from coexec.progress import Progress, quiet
from coexec.sync import opened, proven_strategies
from coexec.ways import Machine, Way

WIDTH = 16
CHAIN = 128
"""Round trips in one run."""


@dataclass(frozen=True)
class Stamp(Op):
    """Copies its input and notes when."""

    noted_s: list[float] = field(default_factory=list, compare=False)
    kind: ClassVar[str] = "stamp"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        assert inputs[0] is not None
        return (inputs[0],)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        self.noted_s.append(time.perf_counter())
        outputs[0][...] = inputs[0]


def sync_bench(info: DeviceInfo, rounds: int = 4096, progress: Progress = quiet) -> dict[str, Any]:
    """The document of `coexec sync --json`: median and 99th percentile of a round trip per strategy.

    Raises InputError for ``rounds`` < 1, DeviceError or SyncTimeout if the device fails on the way.
    """
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, not {rounds}")
    proven, refused = proven_strategies(info)
    strategies = []
    for done, name in enumerate(proven):
        progress(done, len(proven), name)
        trips_us = round_trips_us(info, name, rounds)
        median, p99 = np.percentile(trips_us, [50, 99])
        strategies.append({"name": name, "median_us": float(median), "p99_us": float(p99), "rounds": len(trips_us)})
    return {
        "device": info.id,
        "emulated_gpu": info.emulated_gpu,
        "strategies": strategies,
        "unavailable": refused,
    }


def round_trips_us(info: DeviceInfo, strategy: str, rounds: int) -> Array:
    """Microseconds of at least ``rounds`` round trips, after a run that warms up."""
    units = max(1, min(info.compute_units, cpu_cores() - 1)) if info.emulated_gpu else info.compute_units
    way = Way("sync", units, 1)
    use = Machine.here(info).resources(way, strategy)
    stamp = Stamp()
    graph = _chain(stamp)
    executor = Executor(graph, opened(info, units, strategy), way.cpu_threads)
    choices = {node.name: Choice("channel", WIDTH) for node in graph.split_nodes()}
    executor.load(assemble(graph, choices, None, use))
    executor.run_loaded()
    trips = []
    for _ in range(math.ceil(rounds / CHAIN)):
        stamp.noted_s.clear()
        executor.run_loaded()
        trips.append(np.diff(stamp.noted_s) * 1e6)
    return np.concatenate(trips)


def _chain(stamp: Stamp) -> Graph:
    """CHAIN + 1 pairs of a linear layer and a stamp."""
    shape, dtype = (1, WIDTH), np.dtype(np.float32)
    names = [f"t{i}" for i in range(2 * CHAIN + 3)]
    nodes = []
    for i in range(0, 2 * CHAIN + 2, 2):
        nodes.append(Node(f"linear{i}", Linear(1, WIDTH, WIDTH), (names[i], "weight", "", ""), (names[i + 1],)))
        nodes.append(Node(f"stamp{i}", stamp, (names[i + 1],), (names[i + 2],)))
    tensors = {name: Tensor(name, shape, dtype, Layout.plain(2)) for name in names}
    weight = np.eye(WIDTH, dtype=np.float32)
    return Graph("chain", tuple(nodes), tensors, {"weight": weight}, (names[0],), (names[-1],))
