"""Transposed convolution of any spatial rank in NumPy."""

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
class ConvTranspose(Op):
    """The convolution by ``window`` run backwards, from its output to an input of ``output_size``.

    Inputs: x [N, C_in, spatial...], weight [C_in, C_out / groups, kernel...], bias [C_out] or None.
    """

    window: Window
    output_size: tuple[int, ...]
    groups: int = 1

    kind: ClassVar[str] = "conv_transpose"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, weight = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        if weight.shape[0] != x.shape[1] or x.shape[1] % self.groups or weight.shape[2:] != self.window.kernel:
            raise ModelError(f"conv_transpose: weight of shape {weight.shape} does not fit an input {x.shape}")
        check_bias(inputs, 2, weight.shape[1] * self.groups, self.kind)
        return (ArraySpec((x.shape[0], weight.shape[1] * self.groups, *self.output_size), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Multiply and add counted as two."""
        x, weight = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        return 2 * element_count(x.shape) * element_count(weight.shape[1:])

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, weight = channels_last(required(inputs, 0, self.kind)), required(inputs, 1, self.kind)
        y, bias = channels_last(outputs[0]), optional(inputs, 2)
        wide = accumulator(y.dtype)
        total = y if wide == y.dtype else np.empty(y.shape, wide)
        total[...] = 0 if bias is None else bias
        kernels = np.moveaxis(weight, (0, 1), (-2, -1))
        c_in, c_out = kernels.shape[-2] // self.groups, kernels.shape[-1]
        # What the convolution reads there is what is written here, and the other way round.
        for tap, read, written in self.window.taps(self.output_size, x.shape[1:-1]):
            for g in range(self.groups):
                take, give = slice(g * c_in, (g + 1) * c_in), slice(g * c_out, (g + 1) * c_out)
                total[written][..., give] += x[read][..., take] @ kernels[tap][take]
        if total is not y:
            y[...] = total
