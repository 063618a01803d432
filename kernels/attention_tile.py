"""Launch rules and arguments of attention_tile.cl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coexec.kernels.variant import Bools, GpuTraits, KernelVariant, Placed, Tile, Tiling, ceil_div, register_tile
from coexec.ops.attention import Attention
from coexec.ops.base import Ints


class AttentionTile(KernelVariant):
    """Register tiles as in linear_tile; neither scores nor weights leave the cache."""

    name = "attention_tile"
    kind = "attention"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["T"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        width, heads = max(4, traits.vector_width), c["B"] * c["H"]
        mr, nv = register_tile(c["T"], np.maximum(c["S"], c["E"]), np.full_like(heads, width), traits, c["D"])
        tiles = ceil_div(c["T"], mr)
        # Every range of queries copies the keys again, so there are no more than it takes to use all compute units.
        ranges = np.minimum(tiles, ceil_div(np.full_like(heads, 2 * traits.compute_units), heads))
        queries = ceil_div(tiles, ranges) * mr
        wide = ceil_div(c["S"], nv * width) * nv * width
        ranges, ones = ceil_div(c["T"], queries), np.ones_like(heads)
        return Tiling(
            {"MR": mr, "NV": nv, "VW": np.full_like(heads, width)},
            np.stack([ranges, heads, ones], axis=1),
            {"queries": queries},
            2 * heads * tiles * mr * (c["D"] * wide + c["S"] * ceil_div(c["E"], nv * width) * nv * width),
            np.zeros_like(heads),
            4 * heads * ranges * (c["D"] + mr) * wide,
        )

    def arguments(
        self,
        op: Attention,
        tile: Tile,
        inputs: Sequence[Placed | None],
        constants: Sequence[Any],
        y: Placed,
        scratch: Any,
    ) -> list[Any]:
        q, k, v = inputs
        assert q is not None and k is not None and v is not None
        return [
            *(q.memory, q.offset, *q.strides[:3]),
            *(k.memory, k.offset, *k.strides),
            *(v.memory, v.offset, *v.strides[:3]),
            *(y.memory, y.offset, *y.strides[:3]),
            *(scratch, op.H, op.T, op.S, op.D, op.E, tile.arguments["queries"], op.scale),
        ]
