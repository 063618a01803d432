"""What a kernel variant is: which ops it takes, how it tiles them, how its arguments look.

All rules take columns (one row per candidate part), so that the planner asks for thousands of launches
in one call; a launch is the same call with one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coexec.layout import Array
from coexec.ops.base import Axis, Columns, Ints, SplitOp

Bools = npt.NDArray[np.bool_]


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
    """

    defines: Columns
    global_size: Ints
    arguments: Columns
    tile_flops: Ints
    packed_bytes: Ints

    def row(self, index: int) -> Tile:
        return Tile(
            {k: int(v[index]) for k, v in self.defines.items()},
            tuple(int(v) for v in self.global_size[index]),
            {k: int(v[index]) for k, v in self.arguments.items()},
        )


@dataclass(frozen=True)
class Tile:
    """One launch of a tiling."""

    defines: dict[str, int]
    global_size: tuple[int, ...]
    arguments: dict[str, int]


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

    @abstractmethod
    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        """Tiles and ND-range of each candidate."""

    @abstractmethod
    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        """Distance of cuts at which no tile is left partly filled."""

    @abstractmethod
    def pack(self, op: Any, tile: Tile, weight: Array, bias: Array | None) -> tuple[Array, Array]:
        """Weights and bias (canonical arrays) as flat fp32 buffers in the order the kernel reads them."""

    @abstractmethod
    def arguments(
        self, op: Any, tile: Tile, x: Placed, weight: Any, bias: Any, residual: Placed, y: Placed
    ) -> list[Any]:
        """Kernel arguments before those of COEXEC_ARGS; memory objects, ints and floats."""

    def options(self, op: SplitOp, tile: Tile) -> dict[str, int]:
        """All -D options of the program that runs ``op``."""
        activation = op.activation.code
        return {**tile.defines, "ACTIVATION": activation, "RESIDUAL": int(op.residual)}


def ceil_div(a: Ints, b: Ints | int) -> Ints:
    return np.asarray(-(-a // b), np.int64)


def rows_per_tile(rows: Ints, limit: Ints, sizes: tuple[int, ...]) -> Ints:
    """Tile height out of ``sizes`` (<= limit) that computes ``rows`` rows in the least work.

    A tile costs its height plus about two rows for streaming the weights.
    """
    sizes_ = np.array(sizes)[:, None]
    work = ceil_div(rows, sizes_) * (sizes_ + 2) + np.where(sizes_ > limit, 1 << 40, 0)
    return np.asarray(np.array(sizes)[np.argmin(work, axis=0)], np.int64)


def vectors_per_panel(channels: Ints, width: Ints) -> Ints:
    """Two vectors of output channels per panel unless one already holds them all."""
    return np.where(channels > width, 2, 1).astype(np.int64)


def panel_pack(weight: Array, bias: Array | None, width: int, tail: int = 0) -> tuple[Array, Array]:
    """[..., K, N] as panels [N / width][..., K][width], zero padded, ``tail`` zeros at the end; bias padded."""
    n = weight.shape[-1]
    panels = -(-n // width)
    inner = int(np.prod(weight.shape[:-1], dtype=np.int64))
    packed = np.zeros(panels * inner * width + tail, np.float32)
    body = packed[: panels * inner * width].reshape(panels, inner, width)
    flat = weight.reshape(inner, n)
    for p in range(panels):
        block = flat[:, p * width : (p + 1) * width]
        body[p, :, : block.shape[1]] = block
    padded_bias = np.zeros(panels * width, np.float32)
    if bias is not None:
        padded_bias[:n] = bias
    return packed, padded_bias
