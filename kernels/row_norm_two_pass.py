"""Launch rules and arguments of row_norm_two_pass.cl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coexec.kernels.variant import Bools, GpuTraits, KernelVariant, Placed, Tile, Tiling, ceil_div, no_tiles
from coexec.layout import Array
from coexec.ops.base import Ints
from coexec.ops.row_norm import RowNorm


class RowNormTwoPass(KernelVariant):
    """Mean first, then the variance around it: as exact as the reference asks."""

    name = "row_norm_two_pass"
    kind = "row_norm"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["M"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        width = max(4, traits.vector_width)
        rows = ceil_div(c["M"], np.minimum(c["M"], 8 * traits.compute_units)) if traits.cpu else np.ones_like(c["M"])
        ones = np.ones_like(rows)
        return no_tiles(width, np.stack([ceil_div(c["M"], rows), ones, ones], 1), {"rows": rows}, 8 * c["M"] * c["N"])

    def pack(self, op: RowNorm, tile: Tile, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        size = -(-op.N // tile.defines["VW"]) * tile.defines["VW"]
        padded = np.zeros((2, size), np.float32)
        for row, array in zip(padded, inputs[1:3], strict=False):
            if array is not None:
                row[: op.N] = array
        return padded[0], padded[1]

    def arguments(
        self,
        op: RowNorm,
        tile: Tile,
        inputs: Sequence[Placed | None],
        constants: Sequence[Any],
        y: Placed,
        scratch: Any,
    ) -> list[Any]:
        x = inputs[0]
        assert x is not None
        return [
            *(x.memory, x.offset, x.strides[0], *constants, y.memory, y.offset, y.strides[0]),
            *(op.M, op.N, tile.arguments["rows"], op.epsilon),
        ]
