"""Launch rules and arguments of conv2d_depthwise.cl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coexec.kernels.variant import (
    Bools,
    GpuTraits,
    LayerVariant,
    Placed,
    Tile,
    Tiling,
    ceil_div,
    common_arguments,
    work_shares,
)
from coexec.layout import Array
from coexec.ops.base import Axis, Ints
from coexec.ops.conv2d import Conv2d, output_height, output_width

PIXELS = 4
"""Of a tile: more save loads of weights, but more tiles then touch the image's sides, where every pixel is checked."""


class Conv2dDepthwise(LayerVariant):
    """Groups of one or a few input channels and as many output channels: vectors run over the channels of several."""

    name = "conv2d_depthwise"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        group = c["C_in"] // c["groups"]
        fits = (group == 1) | (group == 2) | (group == 4) | ((group == 8) & (traits.vector_width >= 8))
        return np.asarray((c["groups"] > 1) & (c["C_out"] == c["C_in"]) & fits)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        oh, ow = output_height(c), output_width(c)
        width = np.full_like(oh, max(4, traits.vector_width))
        mr = np.minimum(ow, PIXELS)
        tiles = c["N"] * oh * ceil_div(ow, mr)
        pitch = ceil_div(c["C_out"], width) * width
        group = c["C_in"] // c["groups"]
        taps = c["KH"] * c["KW"] * group
        groups, share = work_shares(tiles, traits)
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "VW": width, "GROUP": group},
            np.stack([groups, ones, ones], axis=1),
            {"w_pitch": pitch, "tiles": tiles, "share": share},
            2 * tiles * mr * pitch * taps,
            4 * taps * pitch,
            np.zeros_like(tiles),
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return max(4, traits.vector_width) if axis == "channel" else 1

    def pack(self, op: Conv2d, tile: Tile, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        weight, bias = inputs[1:3]
        assert weight is not None
        pitch, taps = tile.arguments["w_pitch"], op.KH * op.KW * tile.defines["GROUP"]
        packed, padded_bias = np.zeros((taps, pitch), np.float32), np.zeros(pitch, np.float32)
        packed[:, : op.C_out] = weight.reshape(taps, op.C_out)
        if bias is not None:
            padded_bias[: op.C_out] = bias
        return packed.reshape(-1), padded_bias

    def arguments(
        self, op: Conv2d, tile: Tile, inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, scratch: Any
    ) -> list[Any]:
        return [
            *common_arguments(inputs, constants, y, 3),
            *(op.C_out, op.H, op.W, op.OH, op.OW, op.KH, op.KW, op.stride_h, op.stride_w),
            *(op.pad_top, op.pad_left, op.dilation_h, op.dilation_w),
            *(tile.arguments[name] for name in ("w_pitch", "tiles", "share")),
            *(op.activation.alpha, op.activation.beta),
        ]
