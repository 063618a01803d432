"""Picking elements by index: Gather, GatherElements, GatherND."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import InputError, ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required
from coexec.ops.views import Picked, View


@dataclass(frozen=True)
class Gather(Op):
    """Slices of x along ``axis`` at the indices; inputs: x, integer indices of any shape."""

    axis: int

    kind: ClassVar[str] = "gather"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, indices = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        return (ArraySpec((*x.shape[: self.axis], *indices.shape, *x.shape[self.axis + 1 :]), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, indices, y = required(inputs, 0, self.kind), required(inputs, 1, self.kind), outputs[0]
        _check_range(indices, x.shape[self.axis], self.kind)
        if indices.ndim == 0:
            y[...] = x[(slice(None),) * self.axis + (int(indices),)]
        elif x.flags.c_contiguous and y.flags.c_contiguous:
            # The indices are checked; "wrap" counts negative ones from the end and needs no buffer.
            np.take(x, indices, axis=self.axis, out=y, mode="wrap")
        else:
            y[...] = x[(slice(None),) * self.axis + (indices,)]


@dataclass(frozen=True)
class Pick(Op):
    """The slice of x at ``index`` (not negative) of ``axis``: a Gather at one number that is known."""

    axis: int
    index: int

    kind: ClassVar[str] = "pick"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        return (ArraySpec((*x.shape[: self.axis], *x.shape[self.axis + 1 :]), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        return (Picked(self.axis, self.index),)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.kind)[(slice(None),) * self.axis + (self.index,)]


@dataclass(frozen=True)
class GatherElements(Op):
    """Element by element along ``axis``; inputs: x, integer indices of the output's shape."""

    axis: int

    kind: ClassVar[str] = "gather_elements"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, indices = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        others = [i <= s for axis, (i, s) in enumerate(zip(indices.shape, x.shape, strict=False)) if axis != self.axis]
        if len(x.shape) != len(indices.shape) or not all(others):
            raise ModelError(f"gather_elements: indices of shape {indices.shape} for an input of shape {x.shape}")
        return (ArraySpec(indices.shape, x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, indices = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        _check_range(indices, x.shape[self.axis], self.kind)
        grid = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
        grid[self.axis] = indices
        outputs[0][...] = x[tuple(grid)]


@dataclass(frozen=True)
class GatherND(Op):
    """Slices of x at index tuples; inputs: x, integer indices [..., depth]."""

    batch_dims: int = 0

    kind: ClassVar[str] = "gather_nd"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, indices = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        depth = indices.shape[-1]
        if self.batch_dims + depth > len(x.shape) or x.shape[: self.batch_dims] != indices.shape[: self.batch_dims]:
            raise ModelError(f"gather_nd: indices of shape {indices.shape} do not fit an input of shape {x.shape}")
        return (ArraySpec((*indices.shape[:-1], *x.shape[self.batch_dims + depth :]), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, indices = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        depth, batch = indices.shape[-1], self.batch_dims
        for axis in range(depth):
            _check_range(indices[..., axis], x.shape[batch + axis], self.kind)
        free = (1,) * (indices.ndim - 1 - batch)
        batches = [grid.reshape(*grid.shape, *free) for grid in np.ogrid[tuple(slice(s) for s in x.shape[:batch])]]
        picks = tuple(batches) + tuple(indices[..., axis] for axis in range(depth))
        outputs[0][...] = x[picks]


def _check_range(indices: Array, size: int, kind: str) -> None:
    if indices.size and (int(indices.min()) < -size or int(indices.max()) >= size):
        raise InputError(f"{kind}: an index is outside [-{size}, {size}); feed indices within the axis")
