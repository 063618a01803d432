"""What a kernel variant is: which ops it takes, how it tiles them, how its arguments look.

All rules take columns (one row per candidate part), so that the planner asks for thousands of launches
in one call; a launch is the same call with one row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coexec.layout import Array
from coexec.ops.base import Axis, Columns, Ints

Bools = npt.NDArray[np.bool_]
ALIGNMENT = 128
"""Of memory that a device uses where it lies, in bytes; the largest that OpenCL asks for."""


@dataclass(frozen=True)
class GpuTraits:
    """What the launch rules know of an OpenCL device.

    Attributes:
        compute_units: of the device or sub-device that runs the kernels.
        vector_width: floats in its widest register (1 on SIMT devices that prefer scalars).
        vector_registers: how many of those registers there are.
        cpu: whether it is a CPU-type device (one work-item fills a core).
    """

    compute_units: int
    vector_width: int
    vector_registers: int
    cpu: bool


@dataclass(frozen=True)
class Tiling:
    """How launches are laid out; every field holds one value (or row) per candidate.

    Attributes:
        defines: values of the kernel's -D options (MR, NV, VW).
        global_size: (n, 3); the local size is 1 in every variant so far.
        arguments: further values that the kernel takes and that depend on the tiling.
        tile_flops: FLOPs with all remainders of tiles and panels filled up.
        packed_bytes: size of the packed weights.
        scratch_bytes: device memory that the kernel works in.
    """

    defines: Columns
    global_size: Ints
    arguments: Columns
    tile_flops: Ints
    packed_bytes: Ints
    scratch_bytes: Ints

    def row(self, index: int) -> Tile:
        return Tile(
            {k: int(v[index]) for k, v in self.defines.items()},
            tuple(int(v) for v in self.global_size[index]),
            {k: int(v[index]) for k, v in self.arguments.items()},
            int(self.scratch_bytes[index]),
        )


@dataclass(frozen=True)
class Tile:
    """One launch of a tiling."""

    defines: dict[str, int]
    global_size: tuple[int, ...]
    arguments: dict[str, int]
    scratch_bytes: int


@dataclass(frozen=True)
class Placed:
    """An array as a kernel sees it: memory object, offset and strides in elements, shape."""

    memory: Any
    offset: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]


class KernelVariant(ABC):
    """One kernel file. Its file stem, entry point and name are one."""

    name: ClassVar[str]
    kind: ClassVar[str]

    @abstractmethod
    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        """Which candidates this kernel computes."""

    def suits(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        """Which of those it is chosen for where a plan names no kernel."""
        return np.ones(len(next(iter(c.values()))), np.bool_)

    @abstractmethod
    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        """Tiles and ND-range of each candidate."""

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        """Distance of cuts at which no tile is left partly filled."""
        return 1

    def pack(self, op: Any, tile: Tile, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """The constants among the canonical inputs as flat fp32 buffers in the order the kernel reads them."""
        return ()

    @abstractmethod
    def arguments(
        self, op: Any, tile: Tile, inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, scratch: Any
    ) -> list[Any]:
        """Kernel arguments before those of COEXEC_ARGS; memory objects, ints and floats.

        ``inputs`` has None for constants and for absent inputs; ``constants`` is what ``pack`` gave, on the
        device. ``scratch`` is at least as large as the tile asks; None if it asks for none.
        """

    def options(self, op: Any, tile: Tile) -> dict[str, int]:
        """All -D options of the program that runs ``op``."""
        return tile.defines


class LayerVariant(KernelVariant):
    """A kernel with fused bias, residual and activation."""

    def options(self, op: Any, tile: Tile) -> dict[str, int]:
        return {**tile.defines, "ACTIVATION": op.activation.code, "RESIDUAL": int(op.residual)}


def common_arguments(inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, strides: int) -> list[Any]:
    """x, weights, bias, residual (y where there is none: it is not read) and y; so many strides of each array."""
    x = inputs[0]
    assert x is not None
    residual = inputs[3] if len(inputs) > 3 else None
    placed = [[a.memory, a.offset, *a.strides[:strides]] for a in (x, residual or y, y)]
    return [*placed[0], *constants, *placed[1], *placed[2]]


def no_tiles(width: int, global_size: Ints, arguments: Columns, work: Ints) -> Tiling:
    """Of a kernel without weights and scratch, with vectors of ``width`` floats."""
    zeros = np.zeros_like(work)
    return Tiling({"VW": zeros + width}, global_size, arguments, work, zeros, zeros)


def ceil_div(a: Ints, b: Ints | int) -> Ints:
    return np.asarray(-(-a // b), np.int64)


def work_shares(tiles: Ints, traits: GpuTraits) -> tuple[Ints, Ints]:
    """Work-groups of a launch, and how many of its tiles each takes.

    On a CPU every group costs a dispatch and, as it signs off, a wait until its stores have left the core; a few
    per compute unit are enough to even out what else the cores do.
    """
    most = tiles if not traits.cpu else 1 if traits.compute_units == 1 else 4 * traits.compute_units
    share = ceil_div(tiles, np.minimum(most, tiles))
    return ceil_div(tiles, share), share


TILES = {
    1: (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14),
    2: (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14),
    3: (5, 6, 7, 8, 9),
    4: (1, 2, 3, 4, 5, 6, 7),
    8: (1, 2),
}
"""Vectors of a register tile -> rows that it may have."""
SPARE_REGISTERS = 4
"""What a tile leaves for weights and inputs."""
CACHED_WEIGHT_BYTES = 256 << 10
"""Packed weights up to here stay in a core's second-level cache, so that tiles can go through all of them."""
CACHE_WAY_BYTES = 4096
CACHE_WAYS = 8
"""Of a first-level data cache: lines that lie a way apart share a set, which holds so many."""


def register_tile(
    rows: Ints, columns: Ints, width: Ints, traits: GpuTraits, pitch: Ints, streaming: bool = False
) -> tuple[Ints, Ints]:
    """Rows and vectors of the register tile that covers rows x columns in the least time.

    A step of a tile costs its multiplications and the loads of weights and inputs, and at least the time in which its
    weights arrive from the second-level cache.

    Args:
        pitch: floats between the inputs of two rows; if they all fall into one set of the cache, few rows fit.
        streaming: the kernel fetches a panel's weights from memory while it goes through the one before; many passes
            over a wide panel give them more time than few over a narrow one.
    """
    best = np.full(len(rows), np.iinfo(np.int64).max)
    mr, nv = np.ones_like(best), np.ones_like(best)
    sharing = np.gcd(4 * pitch, CACHE_WAY_BYTES) / CACHE_WAY_BYTES if traits.cpu else 0
    for vectors, heights in TILES.items():
        for height in heights:
            if height * vectors + SPARE_REGISTERS > traits.vector_registers:
                continue
            step = max(9 * height * vectors + 2 * height + 4 * max(height - 10, 0), 32 * vectors) + 6 * vectors + 2
            cost = ceil_div(rows, height) * ceil_div(columns, vectors * width) * step
            if streaming and vectors < 4:
                cost = cost * 17 // 16
            cost = np.where(height * sharing >= CACHE_WAYS, 2 * cost, cost)
            # One vector leaves every input to a single multiplication.
            better = (cost < best) & ((columns <= width) if vectors == 1 else True)
            mr, nv, best = np.where(better, height, mr), np.where(better, vectors, nv), np.where(better, cost, best)
    return mr, nv


def device_zeros(size: int) -> Array:
    """A flat fp32 array that CPU-type devices can use where it lies: it begins at a multiple of 128 bytes."""
    room = np.zeros(size + ALIGNMENT // 4, np.float32)
    first = -room.ctypes.data % ALIGNMENT // 4
    return room[first : first + size]


def panel_pack(weight: Array, bias: Array | None, width: int, tail: int = 0) -> tuple[Array, Array]:
    """[..., K, N] as panels [N / width][..., K][width], zero padded, ``tail`` zeros at the end; bias padded."""
    n, inner = weight.shape[-1], weight.shape[:-1]
    panels, whole = -(-n // width), n // width
    packed = device_zeros(panels * math.prod(inner) * width + tail)
    body = packed[: packed.size - tail].reshape(panels, *inner, width)
    # Cutting the last axis in two copies nothing, whatever the weight's strides.
    body[:whole] = np.moveaxis(weight[..., : whole * width].reshape(*inner, whole, width), -2, 0)
    if whole < panels:
        body[whole, ..., : n - whole * width] = weight[..., whole * width :]
    padded_bias = np.zeros(panels * width, np.float32)
    if bias is not None:
        padded_bias[:n] = bias
    return packed, padded_bias
