"""Position of the largest or smallest element along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import element_count, required
from coexec.ops.reduce import reduced_shape


@dataclass(frozen=True)
class ArgReduce(Op):
    """int64 positions; ``largest`` says of what, ``last`` whether of equal values the last one counts."""

    axis: int
    largest: bool = True
    keepdims: bool = True
    last: bool = False

    kind: ClassVar[str] = "arg_reduce"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if not x.shape[self.axis]:
            raise ModelError(f"arg_reduce: an input of shape {x.shape} has no elements along axis {self.axis}")
        return (ArraySpec(reduced_shape(x.shape, (self.axis,), self.keepdims), np.dtype(np.int64)),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x = required(inputs, 0, self.kind)
        search = np.argmax if self.largest else np.argmin
        position = search(np.flip(x, self.axis) if self.last else x, axis=self.axis)
        if self.last:
            position = x.shape[self.axis] - 1 - position
        outputs[0][...] = position.reshape(outputs[0].shape)
