"""Convolution of any spatial rank in NumPy (2-D ones are a Conv2d, which can be cut)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import accumulator, channels_last, check_bias, element_count, optional, required
from coexec.ops.window import Window


@dataclass(frozen=True)
class ConvNd(Op):
    """Inputs: x [N, C_in, spatial...], weight [C_out, C_in / groups, kernel...], bias [C_out] or None."""

    window: Window
    groups: int = 1

    kind: ClassVar[str] = "conv_nd"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, weight = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        expected = (x.shape[1] // self.groups, *self.window.kernel)
        if weight.shape[1:] != expected or x.shape[1] % self.groups or weight.shape[0] % self.groups:
            raise ModelError(f"conv_nd: weight of shape {weight.shape} does not fit an input of shape {x.shape}")
        check_bias(inputs, 2, weight.shape[0], self.kind)
        size = self.window.output_size(x.shape[2:], self.kind)
        return (ArraySpec((x.shape[0], weight.shape[0], *size), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Multiply and add counted as two."""
        weight = required(inputs, 1, self.kind)
        return 2 * element_count(self.infer(inputs)[0].shape) * element_count(weight.shape[1:])

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, weight = channels_last(required(inputs, 0, self.kind)), required(inputs, 1, self.kind)
        y, bias = channels_last(outputs[0]), optional(inputs, 2)
        wide = accumulator(y.dtype)
        total = y if wide == y.dtype else np.empty(y.shape, wide)
        total[...] = 0 if bias is None else bias
        kernels = np.moveaxis(weight, (1, 0), (-2, -1))
        c_in, c_out = kernels.shape[-2], kernels.shape[-1] // self.groups
        for tap, written, read in self.window.taps(x.shape[1:-1], y.shape[1:-1]):
            for g in range(self.groups):
                take, give = slice(g * c_in, (g + 1) * c_in), slice(g * c_out, (g + 1) * c_out)
                total[written][..., give] += x[read][..., take] @ kernels[tap][:, give]
        if total is not y:
            y[...] = total
