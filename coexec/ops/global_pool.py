"""Pooling over all spatial positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, DeviceOp, Op
from coexec.ops.operands import accumulator, element_count, required
from coexec.ops.pool2d import Pool2d


@dataclass(frozen=True)
class GlobalPool(Op):
    """N x C x spatial to N x C x 1...; ``function`` is max, average or lp (of order ``p``)."""

    function: str
    p: int = 2

    kind: ClassVar[str] = "global_pool"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if len(x.shape) < 3 or 0 in x.shape[2:]:
            raise ModelError(f"global_pool: input of shape {x.shape} has no positions")
        return (ArraySpec((*x.shape[:2], *(1,) * (len(x.shape) - 2)), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return element_count(required(inputs, 0, self.kind).shape)

    def for_device(self, inputs: Sequence[ArraySpec | None]) -> DeviceOp | None:
        shape = required(inputs, 0, self.kind).shape
        if len(shape) != 4 or self.function not in ("max", "average"):
            return None
        return Pool2d(*shape, 1, 1, *shape[2:], average=self.function == "average")

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y = required(inputs, 0, self.kind), outputs[0]
        axes = tuple(range(2, x.ndim))
        if self.function == "max":
            np.maximum.reduce(x, axis=axes, keepdims=True, out=y)
        elif self.function == "average":
            total = np.add.reduce(x, axis=axes, keepdims=True, dtype=accumulator(x.dtype))
            y[...] = total / element_count(x.shape[2:])
        else:
            power = np.abs(x) ** self.p
            y[...] = np.add.reduce(power, axis=axes, keepdims=True, dtype=accumulator(x.dtype)) ** (1 / self.p)
