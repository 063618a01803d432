"""Launch rules and arguments of conv2d_direct.cl."""

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
from coexec.ops.conv2d import Conv2d, output_height, output_width


class Conv2dDirect(LayerVariant):
    """Any kernel, stride, dilation, padding and groups."""

    name = "conv2d_direct"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.ones(len(c["N"]), np.bool_)

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        channels_in, channels_out = c["C_in"] // c["groups"], c["C_out"] // c["groups"]
        oh, ow = output_height(c), output_width(c)
        width = _vector_width(channels_out, max(4, traits.vector_width))
        pixels = c["N"] * oh * ow
        mr, nv = register_tile(pixels, channels_out, width, traits, c["C_in"] * c["stride_w"])
        tiles = ceil_div(pixels, mr)
        panels = ceil_div(channels_out, nv * width)
        total = panels * c["groups"]
        taps = c["KH"] * c["KW"] * channels_in
        packed_bytes = total * nv * width * taps * 4
        panels_first = packed_bytes <= CACHED_WEIGHT_BYTES
        groups, share = work_shares(tiles * total, traits)
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "NV": nv, "VW": width, "POINTWISE": (c["KH"] * c["KW"] == 1).astype(np.int64)},
            np.stack([groups, ones, ones], axis=1),
            {
                "pixels": pixels,
                "panels": panels,
                "total_panels": total,
                "share": share,
                "panels_first": panels_first.astype(np.int64),
            },
            2 * tiles * mr * total * nv * width * taps,
            packed_bytes,
            np.zeros_like(tiles),
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return 2 * max(4, traits.vector_width) if axis == "channel" else 1

    def pack(self, op: Conv2d, tile: Tile, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        weight, bias = inputs[1:3]
        assert weight is not None
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
        return (packed[0], biases[0]) if op.groups == 1 else (np.concatenate(packed), np.concatenate(biases))

    def arguments(
        self, op: Conv2d, tile: Tile, inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, scratch: Any
    ) -> list[Any]:
        return [
            *common_arguments(inputs, constants, y, 3),
            *(op.C_in // op.groups, op.H, op.W, op.C_out // op.groups, op.OH, op.OW, op.KH, op.KW),
            *(op.stride_h, op.stride_w, op.pad_top, op.pad_left, op.dilation_h, op.dilation_w),
            *(tile.arguments[name] for name in ("pixels", "panels", "total_panels", "share", "panels_first")),
            *(op.activation.alpha, op.activation.beta),
        ]


def _vector_width(channels_out: Ints, widest: int) -> Ints:
    """Narrower vectors where a group has few output channels."""
    width = np.full_like(channels_out, widest)
    for narrower in (8, 4):
        if narrower < widest:
            width = np.where(channels_out <= narrower, narrower, width)
    return width
