"""Softmax and its logarithm, normalised over one or several axes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import accumulator, element_count, required


@dataclass(frozen=True)
class Softmax(Op):
    """exp(x) over its sum along ``axes`` (before opset 13: from the axis on), or the log of that."""

    axes: tuple[int, ...]
    log: bool = False

    kind: ClassVar[str] = "softmax"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return (required(inputs, 0, self.kind),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Subtract, exponentiate, add, divide."""
        return 4 * element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y = required(inputs, 0, self.kind), outputs[0]
        if not x.size:
            return
        wide = accumulator(y.dtype)
        work = y if wide == y.dtype else np.empty(y.shape, wide)
        np.subtract(x, np.maximum.reduce(x, axis=self.axes, keepdims=True), out=work)
        if self.log:
            total = np.add.reduce(np.exp(work), axis=self.axes, keepdims=True)
            work -= np.log(total)
        else:
            np.exp(work, out=work)
            work /= np.add.reduce(work, axis=self.axes, keepdims=True)
        if work is not y:
            y[...] = work
