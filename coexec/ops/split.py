"""Cutting a tensor into pieces along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required
from coexec.ops.views import Sliced, View


@dataclass(frozen=True)
class Split(Op):
    """Outputs: consecutive pieces of ``sizes`` along ``axis`` (not negative)."""

    axis: int
    sizes: tuple[int, ...]

    kind: ClassVar[str] = "split"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if sum(self.sizes) != x.shape[self.axis]:
            raise ModelError(f"split: pieces {self.sizes} do not add up to {x.shape[self.axis]}")
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        return tuple(ArraySpec((*before, size, *after), x.dtype) for size in self.sizes)

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        rank = len(required(inputs, 0, self.kind).shape)
        starts = np.cumsum([0, *self.sizes])
        return tuple(Sliced.along(self.axis, int(start), rank) for start in starts[:-1])

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, start = required(inputs, 0, self.kind), 0
        for size, output in zip(self.sizes, outputs, strict=True):
            output[...] = x[(slice(None),) * self.axis + (slice(start, start + size),)]
            start += size
