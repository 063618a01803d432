"""Launch rules and arguments of conv2d_direct.cl."""

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
from coexec.ops.conv2d import Conv2d, output_height, output_width


class Conv2dDirect(KernelVariant):
    """Any kernel, stride, dilation, padding and groups."""

    name = "conv2d_direct"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["N"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        channels_in, channels_out = c["C_in"] // c["groups"], c["C_out"] // c["groups"]
        oh, ow = output_height(c), output_width(c)
        width = _vector_width(channels_out, max(4, traits.vector_width))
        nv = vectors_per_panel(channels_out, width)
        limit = (traits.vector_registers - 3) // nv
        mr = rows_per_tile(ow, limit, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14))
        tiles = c["N"] * oh * ceil_div(ow, mr)
        panels = ceil_div(channels_out, nv * width)
        total = panels * c["groups"]
        taps = c["KH"] * c["KW"] * channels_in
        packed_bytes = total * nv * width * taps * 4
        input_bytes = 4 * c["N"] * c["H"] * c["W"] * channels_in
        # The outer loop of the ND-range should run over what is dearer to stream again.
        panels_first = input_bytes + tiles * packed_bytes < packed_bytes + total * input_bytes
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "NV": nv, "VW": width},
            np.stack([np.where(panels_first, total, tiles), np.where(panels_first, tiles, total), ones], axis=1),
            {"panels_first": panels_first.astype(np.int64), "panels": panels, "total_panels": total},
            2 * tiles * mr * total * nv * width * taps,
            packed_bytes,
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return 2 * max(4, traits.vector_width) if axis == "channel" else 1

    def pack(self, op: Conv2d, tile: Tile, weight: Array, bias: Array | None) -> tuple[Array, Array]:
        width = tile.defines["NV"] * tile.defines["VW"]
        channels = op.C_out // op.groups
        tail = op.C_in // op.groups
        packed, biases = [], []
        for g in range(op.groups):
            own = slice(g * channels, (g + 1) * channels)
            last = g == op.groups - 1
            w, b = panel_pack(weight[..., own], None if bias is None else bias[own], width, tail if last else 0)
            packed.append(w)
            biases.append(b)
        return np.concatenate(packed), np.concatenate(biases)

    def arguments(
        self, op: Conv2d, tile: Tile, x: Placed, weight: Any, bias: Any, residual: Placed, y: Placed
    ) -> list[Any]:
        placed = [[a.memory, a.offset, *a.strides[:3]] for a in (x, residual, y)]
        return [
            *placed[0],
            weight,
            bias,
            *placed[1],
            *placed[2],
            *(op.C_in // op.groups, op.H, op.W, op.C_out // op.groups, op.OH, op.OW, op.KH, op.KW),
            *(op.stride_h, op.stride_w, op.pad_top, op.pad_left, op.dilation_h, op.dilation_w),
            *(tile.arguments[name] for name in ("panels", "total_panels", "panels_first")),
            *(op.activation.alpha, op.activation.beta),
        ]


def _vector_width(channels_out: Ints, widest: int) -> Ints:
    """Narrower vectors where a group has few output channels."""
    width = np.full_like(channels_out, widest)
    for narrower in (8, 4):
        if narrower < widest:
            width = np.where(channels_out <= narrower, narrower, width)
    return width
