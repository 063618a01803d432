"""The same elements in another shape: Reshape, Flatten, Squeeze, Unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import element_count, required
from coexec.ops.views import Reshaped, View


@dataclass(frozen=True)
class Reshape(Op):
    """Output: the input's elements, in row-major logical order, as ``shape``."""

    shape: Shape

    kind: ClassVar[str] = "reshape"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if element_count(x.shape) != element_count(self.shape):
            raise ModelError(f"reshape: {x.shape} and {self.shape} have different numbers of elements")
        return (ArraySpec(self.shape, x.dtype),)

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        return (Reshaped(),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y = required(inputs, 0, self.kind), outputs[0]
        if y.flags.c_contiguous:
            # Reshaping the side that is contiguous spares the copy that the other might need.
            y.reshape(x.shape)[...] = x
        else:
            y[...] = x.reshape(y.shape)
