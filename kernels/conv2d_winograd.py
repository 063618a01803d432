"""Launch rules and arguments of conv2d_winograd.cl."""

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
    device_zeros,
    register_tile,
)
from coexec.layout import Array
from coexec.ops.base import Axis, Ints
from coexec.ops.conv2d import Conv2d, output_height, output_width
from coexec.ops.winograd import plain_3x3, transformed_blocks
from coexec.ops.winograd import tiles as count_tiles

SCRATCH_BYTES = 1 << 20
"""Of one work-group: about what a core's second-level cache holds."""
COLD_BYTES_PER_CYCLE = 6
"""What streams from memory while a core multiplies."""


class Conv2dWinograd(LayerVariant):
    """3x3, stride 1: 4 or 2.25 times fewer multiplications, where the transforms do not eat that up."""

    name = "conv2d_winograd"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        return np.asarray(plain_3x3(c) & (c["C_in"] % max(4, traits.vector_width) == 0))

    def suits(self, c: Mapping[str, Ints], traits: GpuTraits) -> Bools:
        best = np.minimum(_cycles(c, 4, traits), _cycles(c, 2, traits))
        return np.asarray(traits.cpu & (best < _direct_cycles(c, traits)))

    def tiling(self, c: Mapping[str, Ints], traits: GpuTraits) -> Tiling:
        width = max(4, traits.vector_width)
        m = np.where(_cycles(c, 4, traits) <= _cycles(c, 2, traits), 4, 2)
        area = (m + 2) ** 2
        tiles = count_tiles(c, m)
        units = traits.compute_units
        panel_groups = np.where(tiles < 24 * units, np.minimum(ceil_div(c["C_out"], 2 * width), units), 1)
        tile_groups = np.minimum(np.maximum(units // panel_groups, 1), tiles)
        per_group, own_channels = ceil_div(tiles, tile_groups), ceil_div(c["C_out"], panel_groups)
        affordable = SCRATCH_BYTES // (4 * area * (c["C_in"] + own_channels))
        block = ceil_div(per_group, ceil_div(per_group, np.maximum(affordable, 28)))
        mr, nv = register_tile(block, own_channels, np.full_like(m, width), traits, c["C_in"], streaming=True)
        panels = ceil_div(c["C_out"], nv * width)
        own_panels = ceil_div(panels, panel_groups)
        panel_groups = ceil_div(panels, own_panels)
        rows = ceil_div(block, mr) * mr
        block = np.minimum(rows, per_group)
        # A pitch that is a multiple of a page would put all elements of a tile into the same sets of the cache.
        pitch = own_panels * nv * width
        rows = rows + ((rows * c["C_in"] % 1024 == 0) | (rows * pitch % 1024 == 0))
        groups = tile_groups * panel_groups
        scratch = 4 * groups * area * rows * (c["C_in"] + pitch)
        ones = np.ones_like(tiles)
        return Tiling(
            {"MR": mr, "NV": nv, "VW": np.full_like(m, width), "WM": m},
            np.stack([tile_groups, panel_groups, ones], axis=1),
            {"tiles": tiles, "block": block, "rows": rows, "panels": panels, "own_panels": own_panels},
            2 * area * ceil_div(per_group, mr) * mr * tile_groups * panels * nv * width * c["C_in"],
            4 * area * panels * nv * width * c["C_in"],
            scratch,
        )

    def alignment(self, axis: Axis, traits: GpuTraits) -> int:
        return 2 * max(4, traits.vector_width) if axis == "channel" else 4

    def pack(self, op: Conv2d, tile: Tile, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        weight, bias = inputs[1:3]
        assert weight is not None
        m, width = tile.defines["WM"], tile.defines["NV"] * tile.defines["VW"]
        panels = tile.arguments["panels"]
        packed = device_zeros((m + 2) ** 2 * panels * op.C_in * width).reshape(-1, panels, op.C_in, width)
        whole = op.C_out // width
        for channels, block in transformed_blocks(weight, m):
            by_panel = block[..., : whole * width].reshape(*block.shape[:2], whole, width)
            packed[:, :whole, channels] = by_panel.swapaxes(1, 2)
            if whole < panels:
                packed[:, whole, channels, : op.C_out - whole * width] = block[..., whole * width :]
        padded_bias = np.zeros(panels * width, np.float32)
        if bias is not None:
            padded_bias[: op.C_out] = bias
        return packed.reshape(-1), padded_bias

    def arguments(
        self, op: Conv2d, tile: Tile, inputs: Sequence[Placed | None], constants: Sequence[Any], y: Placed, scratch: Any
    ) -> list[Any]:
        return [
            *common_arguments(inputs, constants, y, 3),
            scratch,
            *(op.C_in, op.H, op.W, op.C_out, op.OH, op.OW, op.pad_top, op.pad_left),
            *(tile.arguments[name] for name in ("tiles", "block", "rows", "panels", "own_panels")),
            *(op.activation.alpha, op.activation.beta),
        ]


def _cycles(c: Mapping[str, Ints], m: int, traits: GpuTraits) -> Ints:
    """Rough cycles of one core: products (a step of MR rows also costs two for the weights' stream), at least
    the time in which the weights arrive, and the transforms."""
    width, area = max(4, traits.vector_width), (m + 2) ** 2
    tiles = count_tiles(c, m)
    panels = ceil_div(c["C_out"], 2 * width)
    steps = ceil_div(tiles, 14) * 2 + tiles
    product = area * panels * c["C_in"] * steps
    stream = 4 * area * panels * 2 * width * c["C_in"] // COLD_BYTES_PER_CYCLE
    transforms = 3 * area * tiles * (ceil_div(c["C_in"], width) + 2 * panels)
    return np.maximum(product, stream) + transforms


def _direct_cycles(c: Mapping[str, Ints], traits: GpuTraits) -> Ints:
    """The same for the direct form."""
    width = max(4, traits.vector_width)
    oh, ow = output_height(c), output_width(c)
    panels = ceil_div(c["C_out"], 2 * width)
    steps = ceil_div(c["N"] * oh * ow, 14) * 2 + c["N"] * oh * ow
    product = 9 * panels * c["C_in"] * steps
    stream = 4 * 9 * panels * 2 * width * c["C_in"] // COLD_BYTES_PER_CYCLE
    return np.maximum(product, stream)
