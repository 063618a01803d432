"""Launch rules and arguments of linear_tile.cl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coexec.kernels.variant import (
    CACHED_WEIGHT_BYTES,
    Bools,
    GpuTraits,
    LayerVariant,
    Placed,
    Tile,
    Tiling,
    ceil_div,
    common_arguments,
    panel_pack,
    register_tile,
    work_shares,
)
from coexec.layout import Array
from coexec.ops.base import Axis, Ints
from coexec.ops.linear import Linear


class LinearTile(LayerVariant):
    """Register tile of MR rows x NV vectors; weights in panels. On one core of a CPU-type device this
    form reaches two to four times what the runtime's own vectorisation does."""

    name = "linear_tile"
    kind = "linear"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["M"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        width = np.full(len(c["M"]), max(4, traits.vector_width), np.int64)
        mr, nv = register_tile(c["M"], c["N"], width, traits, c["K"])
        tiles, panels = ceil_div(c["M"], mr), ceil_div(c["N"], nv * width)
        packed_bytes = panels * nv * width * c["K"] * 4
        panels_first = packed_bytes <= CACHED_WEIGHT_BYTES
        groups, share = work_shares(tiles * panels, traits)
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "NV": nv, "VW": width},
            np.stack([groups, ones, ones], axis=1),
            {"share": share, "panels_first": panels_first.astype(np.int64)},
            2 * tiles * mr * panels * nv * width * c["K"],
            packed_bytes,
            np.zeros_like(tiles),
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return 2 * max(4, traits.vector_width) if axis == "channel" else 2

    def pack(self, op: Linear, tile: Tile, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        weight, bias = inputs[1:3]
        assert weight is not None
        return panel_pack(weight, bias, tile.defines["NV"] * tile.defines["VW"])

    def arguments(
        self, op: Linear, tile: Tile, inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, scratch: Any
    ) -> list[Any]:
        return [
            *common_arguments(inputs, constants, y, 1),
            *(op.M, op.N, op.K, *(tile.arguments[name] for name in ("share", "panels_first"))),
            *(op.activation.alpha, op.activation.beta),
        ]
