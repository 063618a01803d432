"""Joining tensors along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.views import Sliced, View


@dataclass(frozen=True)
class Concat(Op):
    """Inputs one after another along ``axis`` (not negative)."""

    axis: int

    kind: ClassVar[str] = "concat"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        specs = [spec for spec in inputs if spec is not None]
        first, axis = specs[0], self.axis
        for spec in specs[1:]:
            same_rest = spec.shape[:axis] == first.shape[:axis] and spec.shape[axis + 1 :] == first.shape[axis + 1 :]
            if len(spec.shape) != len(first.shape) or not same_rest:
                raise ModelError(f"concat: shapes {first.shape} and {spec.shape} differ beside axis {axis}")
        size = sum(spec.shape[axis] for spec in specs)
        return (ArraySpec((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype),)

    def input_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View | None, ...]:
        views: list[View | None] = []
        start = 0
        for spec in inputs:
            views.append(None if spec is None else Sliced.along(self.axis, start, len(spec.shape)))
            start += 0 if spec is None else spec.shape[self.axis]
        return tuple(views)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        start = 0
        for array in inputs:
            if array is None:
                continue
            stop = start + array.shape[self.axis]
            target = outputs[0][(slice(None),) * self.axis + (slice(start, stop),)]
            if target.ctypes.data != array.ctypes.data:  # else it was made where it belongs
                target[...] = array
            start = stop
