"""Launch rules and arguments of pool2d_row.cl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coexec.kernels.variant import Bools, GpuTraits, KernelVariant, Placed, Tile, Tiling, ceil_div, no_tiles
from coexec.ops.base import Ints
from coexec.ops.pool2d import Pool2d


class Pool2dRow(KernelVariant):
    """Vectors over channels; rows and channels are shared out."""

    name = "pool2d_row"
    kind = "pool2d"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["N"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        width = max(4, traits.vector_width)
        rows, vectors = c["N"] * c["OH"], ceil_div(c["C"], width)
        # A few work-groups per compute unit are enough for a CPU-type device; others want all there can be.
        wanted = ceil_div(np.full_like(rows, 4 * traits.compute_units), rows) if traits.cpu else vectors
        channels = ceil_div(vectors, np.minimum(vectors, wanted)) * width
        pixels = c["OW"] if traits.cpu else np.ones_like(rows)
        global_size = np.stack([rows * ceil_div(c["OW"], pixels), ceil_div(c["C"], channels), np.ones_like(rows)], 1)
        work = c["N"] * c["OH"] * c["OW"] * vectors * width * c["KH"] * c["KW"]
        return no_tiles(width, global_size, {"pixels": pixels, "channels": channels}, work)

    def options(self, op: Pool2d, tile: Tile) -> dict[str, int]:
        return {**tile.defines, "AVERAGE": int(op.average), "KH": op.KH, "KW": op.KW}

    def arguments(
        self, op: Pool2d, tile: Tile, inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, scratch: Any
    ) -> list[Any]:
        x = inputs[0]
        assert x is not None
        padding = (op.pad_top, op.pad_left, op.pad_bottom, op.pad_right)
        return [
            *(x.memory, x.offset, *x.strides[:3]),
            *(y.memory, y.offset, *y.strides[:3]),
            *(op.C, op.H, op.W, op.OH, op.OW, op.stride_h, op.stride_w),
            *(op.pad_top, op.pad_left, op.dilation_h, op.dilation_w),
            *(padding if op.count_padding else (0, 0, 0, 0)),
            *(tile.arguments["pixels"], tile.arguments["channels"]),
        ]
