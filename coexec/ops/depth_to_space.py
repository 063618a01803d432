"""Moving blocks of pixels between channels and space (pixel shuffle and its inverse)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required


@dataclass(frozen=True)
class DepthToSpace(Op):
    """N x C*b*b x H x W to N x C x H*b x W*b.

    ``pixels_inner``: the place in the block varies fastest among the input's channels (ONNX: CRD), else
    the output's channel does (DCR).
    """

    block: int
    pixels_inner: bool = False

    kind: ClassVar[str] = "depth_to_space"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, b = required(inputs, 0, self.kind), self.block
        if len(x.shape) != 4 or x.shape[1] % (b * b):
            raise ModelError(f"depth_to_space: input of shape {x.shape} does not divide into blocks of {b}")
        n, c, h, w = x.shape
        return (ArraySpec((n, c // (b * b), h * b, w * b), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y, b = required(inputs, 0, self.kind), outputs[0], self.block
        channels = y.shape[1]
        for i in range(b):
            for j in range(b):
                y[:, :, i::b, j::b] = x[:, _channels(i * b + j, b * b, channels, self.pixels_inner)]


@dataclass(frozen=True)
class SpaceToDepth(Op):
    """N x C x H*b x W*b to N x b*b*C x H x W, the channels ordered as DepthToSpace reads them."""

    block: int
    pixels_inner: bool = False

    kind: ClassVar[str] = "space_to_depth"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, b = required(inputs, 0, self.kind), self.block
        if len(x.shape) != 4 or x.shape[2] % b or x.shape[3] % b:
            raise ModelError(f"space_to_depth: input of shape {x.shape} does not divide into blocks of {b}")
        n, c, h, w = x.shape
        return (ArraySpec((n, c * b * b, h // b, w // b), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y, b = required(inputs, 0, self.kind), outputs[0], self.block
        channels = x.shape[1]
        for i in range(b):
            for j in range(b):
                y[:, _channels(i * b + j, b * b, channels, self.pixels_inner)] = x[:, :, i::b, j::b]


def _channels(place: int, places: int, channels: int, pixels_inner: bool) -> slice:
    """The deep side's channels that belong to one place of the block."""
    return slice(place, None, places) if pixels_inner else slice(place * channels, (place + 1) * channels)
