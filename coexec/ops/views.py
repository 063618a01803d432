"""How a tensor can lie within another one: what reshapes, transpositions, slices and concatenations amount to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from coexec.layout import Array, Shape, same_memory

Box = tuple[slice, ...]


@dataclass(frozen=True)
class Strides:
    """The first element's offset, and the distances along the logical axes, in elements of some memory."""

    offset: int
    steps: tuple[int, ...]

    def array(self, shape: Shape) -> Array:
        """A view of no memory with these strides, to ask what views of it are possible."""
        base = np.empty(1, np.float32)
        return np.lib.stride_tricks.as_strided(base, shape, [s * base.itemsize for s in self.steps], writeable=False)


class View(ABC):
    """A tensor as a view of its ``parent``; both are given by their shapes."""

    @abstractmethod
    def strides(self, parent_strides: Strides, parent: Shape, shape: Shape) -> Strides | None:
        """The tensor's strides, given its parent's; None where strides cannot express it."""

    @abstractmethod
    def box(self, box: Box, parent: Shape, shape: Shape) -> Box:
        """A box of the tensor as one of its parent; may be larger, never smaller."""

    def inverse(self) -> View | None:
        """The parent as a view of the tensor, if that is all of it."""
        return None


@dataclass(frozen=True)
class Sliced(View):
    """From ``starts`` on, every ``steps``-th element, per axis."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def along(axis: int, start: int, rank: int) -> Sliced:
        """From ``start`` on along one axis, all of the others."""
        return Sliced(tuple(start if i == axis else 0 for i in range(rank)), (1,) * rank)

    def strides(self, parent_strides: Strides, parent: Shape, shape: Shape) -> Strides:
        offset = parent_strides.offset + sum(a * s for a, s in zip(self.starts, parent_strides.steps, strict=True))
        return Strides(offset, tuple(a * s for a, s in zip(self.steps, parent_strides.steps, strict=True)))

    def box(self, box: Box, parent: Shape, shape: Shape) -> Box:
        ranges = []
        for own, start, step, size in zip(box, self.starts, self.steps, shape, strict=True):
            first, end, _ = own.indices(size)
            ends = sorted((start + step * first, start + step * max(end - 1, first)))
            ranges.append(slice(ends[0], ends[1] + (end > first)))
        return tuple(ranges)


@dataclass(frozen=True)
class Picked(View):
    """The slice at ``index`` of ``axis``, which the tensor has not."""

    axis: int
    index: int

    def strides(self, parent_strides: Strides, parent: Shape, shape: Shape) -> Strides:
        steps = parent_strides.steps
        offset = parent_strides.offset + self.index * steps[self.axis]
        return Strides(offset, (*steps[: self.axis], *steps[self.axis + 1 :]))

    def box(self, box: Box, parent: Shape, shape: Shape) -> Box:
        return (*box[: self.axis], slice(self.index, self.index + 1), *box[self.axis :])


@dataclass(frozen=True)
class Permuted(View):
    """Axis i is the parent's axis ``order[i]``."""

    order: tuple[int, ...]

    def strides(self, parent_strides: Strides, parent: Shape, shape: Shape) -> Strides:
        return Strides(parent_strides.offset, tuple(parent_strides.steps[axis] for axis in self.order))

    def box(self, box: Box, parent: Shape, shape: Shape) -> Box:
        return tuple(box[self.order.index(axis)] for axis in range(len(parent)))

    def inverse(self) -> View:
        return Permuted(tuple(self.order.index(axis) for axis in range(len(self.order))))


@dataclass(frozen=True)
class Reshaped(View):
    """All of the parent's elements in their order."""

    def strides(self, parent_strides: Strides, parent: Shape, shape: Shape) -> Strides | None:
        view = same_memory(parent_strides.array(parent), shape)
        return None if view is None else Strides(parent_strides.offset, tuple(s // view.itemsize for s in view.strides))

    def box(self, box: Box, parent: Shape, shape: Shape) -> Box:
        # Axes that both have at the beginning, or at the end, keep their ranges.
        fewer = min(len(parent), len(shape))
        front = next((i for i in range(fewer) if parent[i] != shape[i]), fewer)
        back = next((i for i in range(fewer - front) if parent[-1 - i] != shape[-1 - i]), fewer - front)
        middle = (slice(None),) * (len(parent) - front - back)
        return (*box[:front], *middle, *box[len(box) - back :])

    def inverse(self) -> View:
        return self
