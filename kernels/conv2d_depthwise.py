"""Launch rules and arguments of conv2d_depthwise.cl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coexec.kernels.variant import Bools, GpuTraits, KernelVariant, Placed, Tile, Tiling, ceil_div, rows_per_tile
from coexec.layout import Array
from coexec.ops.base import Axis, Ints
from coexec.ops.conv2d import Conv2d, output_height, output_width


class Conv2dDepthwise(KernelVariant):
    """One input channel per output channel: vectors run over channels, no reduction over them."""

    name = "conv2d_depthwise"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.asarray((c["groups"] > 1) & (c["groups"] == c["C_in"]) & (c["C_out"] == c["C_in"]))

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        oh, ow = output_height(c), output_width(c)
        width = np.full_like(oh, max(4, traits.vector_width))
        mr = rows_per_tile(ow, np.full_like(ow, 8), (1, 2, 4, 7, 8))
        tiles = c["N"] * oh * ceil_div(ow, mr)
        pitch = ceil_div(c["C_out"], width) * width
        taps = c["KH"] * c["KW"]
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "VW": width},
            np.stack([tiles, ones, ones], axis=1),
            {"w_pitch": pitch},
            2 * tiles * mr * pitch * taps,
            4 * taps * pitch,
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return max(4, traits.vector_width) if axis == "channel" else 1

    def pack(self, op: Conv2d, tile: Tile, weight: Array, bias: Array | None) -> tuple[Array, Array]:
        pitch = tile.arguments["w_pitch"]
        packed, padded_bias = np.zeros((op.KH * op.KW, pitch), np.float32), np.zeros(pitch, np.float32)
        packed[:, : op.C_out] = weight.reshape(op.KH * op.KW, op.C_out)
        if bias is not None:
            padded_bias[: op.C_out] = bias
        return packed.reshape(-1), padded_bias

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
            *(op.C_out, op.H, op.W, op.OH, op.OW, op.KH, op.KW, op.stride_h, op.stride_w),
            *(op.pad_top, op.pad_left, op.dilation_h, op.dilation_w, tile.arguments["w_pitch"]),
            *(op.activation.alpha, op.activation.beta),
        ]
