"""Launch rules and arguments of linear_tile.cl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coexec.kernels.variant import (
    Bools,
    GpuTraits,
    KernelVariant,
    Placed,
    Tile,
    Tiling,
    ceil_div,
    panel_pack,
    rows_per_tile,
    vectors_per_panel,
)
from coexec.layout import Array
from coexec.ops.base import Axis, Ints
from coexec.ops.linear import Linear


class LinearTile(KernelVariant):
    """Register tile of MR rows x NV vectors; weights in panels. On one core of a CPU-type device this
    form reaches two to four times what the runtime's own vectorisation does."""

    name = "linear_tile"
    kind = "linear"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["M"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        width = np.full(len(c["M"]), max(4, traits.vector_width), np.int64)
        nv = vectors_per_panel(c["N"], width)
        limit = (traits.vector_registers - 3) // nv
        mr = rows_per_tile(c["M"], limit, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14))
        tiles, panels = ceil_div(c["M"], mr), ceil_div(c["N"], nv * width)
        packed_bytes = panels * nv * width * c["K"] * 4
        panels_first = (4 * c["M"] * c["K"] + tiles * packed_bytes) < (packed_bytes + panels * 4 * c["M"] * c["K"])
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "NV": nv, "VW": width},
            np.stack([np.where(panels_first, panels, tiles), np.where(panels_first, tiles, panels), ones], axis=1),
            {"panels_first": panels_first.astype(np.int64)},
            2 * tiles * mr * panels * nv * width * c["K"],
            packed_bytes,
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return 2 * max(4, traits.vector_width) if axis == "channel" else 2

    def pack(self, op: Linear, tile: Tile, weight: Array, bias: Array | None) -> tuple[Array, Array]:
        return panel_pack(weight, bias, tile.defines["NV"] * tile.defines["VW"])

    def arguments(
        self, op: Linear, tile: Tile, x: Placed, weight: Any, bias: Any, residual: Placed, y: Placed
    ) -> list[Any]:
        placed = [[a.memory, a.offset, a.strides[0]] for a in (x, residual, y)]
        return [
            *placed[0],
            weight,
            bias,
            *placed[1],
            *placed[2],
            *(op.M, op.N, op.K, tile.arguments["panels_first"]),
            *(op.activation.alpha, op.activation.beta),
        ]
