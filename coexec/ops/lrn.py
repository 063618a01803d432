"""Local response normalisation across channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import channels_last, element_count, required


@dataclass(frozen=True)
class LRN(Op):
    """x / (bias + alpha / size * sum of x * x over ``size`` neighbouring channels) ** beta."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    kind: ClassVar[str] = "lrn"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if len(x.shape) < 2:
            raise ModelError(f"lrn: input of shape {x.shape} has no channel axis")
        return (x,)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return (self.size + 4) * element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y = required(inputs, 0, self.kind), outputs[0]
        for image, result in zip(channels_last(x), channels_last(y), strict=True):
            self._image(image, result)

    def _image(self, x: Array, y: Array) -> None:
        squares, channels = x * x, x.shape[-1]
        y[...] = squares
        below, above = (min(reach, channels - 1) for reach in ((self.size - 1) // 2, self.size // 2))
        for offset in range(-below, above + 1):
            if offset:
                low, high = max(0, -offset), min(channels, channels - offset)
                y[..., low:high] += squares[..., low + offset : high + offset]
        y *= self.alpha / self.size
        y += self.bias
        if self.beta == 0.75:
            # The usual exponent by two roots, many times faster than the power.
            np.sqrt(y, out=y)
            y *= np.sqrt(y)
        else:
            np.power(y, self.beta, out=y)
        np.divide(x, y, out=y)
