"""Permuting axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required
from coexec.ops.views import Permuted, View


@dataclass(frozen=True)
class Transpose(Op):
    """Output axis i is input axis ``order[i]``."""

    order: tuple[int, ...]

    kind: ClassVar[str] = "transpose"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if sorted(self.order) != list(range(len(x.shape))):
            raise ModelError(f"transpose: {self.order} does not permute the axes of shape {x.shape}")
        return (ArraySpec(tuple(x.shape[axis] for axis in self.order), x.dtype),)

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        return (Permuted(self.order),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.kind).transpose(self.order)
