"""Limits that are tensors or integers; constant float limits are an Activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import check_scalar, optional, required


@dataclass(frozen=True)
class Clip(Op):
    """min(max(x, low), high); inputs: x, low or None, high or None (scalars of x's dtype)."""

    kind: ClassVar[str] = "clip"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        for limit in (optional(inputs, 1), optional(inputs, 2)):
            check_scalar(limit, self.kind)
        return (required(inputs, 0, self.kind),)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, low, high, y = required(inputs, 0, self.kind), optional(inputs, 1), optional(inputs, 2), outputs[0]
        y[...] = x
        if low is not None:
            np.maximum(y, low.reshape(()), out=y)
        if high is not None:
            np.minimum(y, high.reshape(()), out=y)
