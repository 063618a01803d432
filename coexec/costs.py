"""What a planner asks of a cost source, and the coarse source that is used when nothing was measured."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from coexec.graph import Graph, Node
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.ops.base import Columns, DeviceOp
from coexec.ops.split_ops import SPLIT_OPS

Floats = npt.NDArray[np.float64]


class OpCosts(Protocol):
    """Where a plan's expectations come from, and what it says of nodes that are not split."""

    @property
    def name(self) -> str:
        """What it is, for the plan and for messages."""

    def op_us(self, graph: Graph, node: Node) -> float:
        """A node that is not split, on the CPU side."""

    def kernel_us(self, op: DeviceOp, traits: GpuTraits) -> float:
        """An op that is not split, on the GPU side."""

    def sync_us(self) -> float:
        """What a hand-over adds where both sides run at once."""

    def slowdown(self) -> float:
        """By which share either side is slower while the other runs."""

    def turn_us(self) -> float:
        """What it takes to go on with the other side where both use the same cores in turn."""


class CostSource(OpCosts, Protocol):
    """Latencies in microseconds of parts that run alone, for many parts in one call."""

    def gpu_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        """Each part on the GPU side."""

    def cpu_us(self, kind: str, columns: Columns, threads: int) -> Floats:
        """Each part on the CPU side by NumPy."""

    def cpu_kernel_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        """Each part on the CPU side by a kernel."""

    def knows_cpu_kernels(self, threads: int) -> bool:
        """Whether ``cpu_kernel_us`` can tell for so many threads."""


class Estimate:
    """Peak FLOP/s halved, or memory traffic, whichever is longer; nothing measured.

    Good enough to tell a large layer from a small one, not to balance two sides: a profile does that.
    """

    name = "built-in estimate"
    clock_ghz = 2.5
    efficiency = 0.5
    memory_gb_s = 8.0
    launch_us = 5.0

    def gpu_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        launches = launch(kind, columns, traits)
        lanes = traits.vector_width * 2 if traits.cpu else 64
        rate = traits.compute_units * lanes * 2 * self.clock_ghz * self.efficiency * 1e3
        fill = launches.waves * traits.compute_units / np.maximum(launches.work_groups, 1)
        return np.asarray(launches.tiling.tile_flops * np.minimum(fill, traits.compute_units) / rate + self.launch_us)

    def cpu_us(self, kind: str, columns: Columns, threads: int) -> Floats:
        rate = threads * 16 * 2 * 2 * self.clock_ghz * self.efficiency * 1e3
        matmul = SPLIT_OPS[kind].matmul(columns)
        return np.asarray(matmul.flops / rate + matmul.traffic_bytes / (self.memory_gb_s * 1e3))

    def cpu_kernel_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        return self.gpu_us(kind, columns, traits)

    def knows_cpu_kernels(self, threads: int) -> bool:
        return True

    def sync_us(self) -> float:
        return 10.0

    def slowdown(self) -> float:
        return 0.0

    def turn_us(self) -> float:
        return 40.0

    def op_us(self, graph: Graph, node: Node) -> float:
        return unsplit_op_us(graph, node)

    def kernel_us(self, op: DeviceOp, traits: GpuTraits) -> float:
        return unsplit_kernel_us(op, traits)


def unsplit_op_us(graph: Graph, node: Node) -> float:
    """A NumPy op moves its inputs and outputs a few times at a few GB/s."""
    names = [n for n in (*node.inputs, *node.outputs) if n]
    specs = [graph.spec(n) for n in names]
    moved = sum(int(np.prod(s.shape, dtype=np.int64)) * s.dtype.itemsize for s in specs if s is not None)
    return 5.0 + moved / (Estimate.memory_gb_s * 1e3)


def unsplit_kernel_us(op: DeviceOp, traits: GpuTraits) -> float:
    """A kernel of an op that is not split: its launch, and arithmetic or memory traffic, whichever is longer."""
    columns = op.columns()
    rate = traits.compute_units * traits.vector_width * Estimate.clock_ghz * 1e3
    moved_us = float(op.traffic_bytes(columns)[0]) / (Estimate.memory_gb_s * 1e3)
    work_us = float(launch(op.kind, columns, traits).tiling.tile_flops[0]) / rate
    return Estimate.launch_us + max(moved_us, work_us)
