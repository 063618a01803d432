"""How a tensor lies in memory: axis order, pitch, channel block and border.

Shapes are always *logical* (ONNX order, e.g. N, C, H, W). A :class:`Layout` says where the elements
of such a shape are. Kernels and CPU routines get strided views and read the strides; nothing assumes
one layout. Channels last, dense, is what measured best on both sides of a CPU-type device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coexec.errors import InputError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

SHORT_AXIS = 8
"""Elements up to which an axis makes a poor inner loop."""


@dataclass(frozen=True)
class Layout:
    """Memory layout of a tensor of rank ``len(order)``.

    Attributes:
        order: logical axes from the outermost to the innermost in memory; (0, 2, 3, 1) is channels
            last for N, C, H, W.
        pitch: elements from one step of the second innermost axis to the next (channels last: from
            pixel to pixel); 0 means dense. Larger than the innermost size leaves unused room.
        channel_block: axis 1 is cut into blocks of so many that lie innermost (NCHWc); 1 means none.
        border: elements kept free before and after each logical axis; () means none.
    """

    order: tuple[int, ...]
    pitch: int = 0
    channel_block: int = 1
    border: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.order)
        if sorted(self.order) != list(range(rank)):
            raise InputError(f"layout order {self.order} is not a permutation of 0..{rank - 1}")
        if self.border and len(self.border) != rank:
            raise InputError(f"layout border has {len(self.border)} axes, order has {rank}")
        if self.channel_block < 1 or self.pitch < 0:
            raise InputError("layout needs channel_block >= 1 and pitch >= 0")
        if self.channel_block > 1 and (rank < 2 or self.pitch or self.border):
            raise InputError("a blocked layout needs axis 1 and takes neither pitch nor border")

    @staticmethod
    def plain(rank: int) -> Layout:
        """Row major in logical order."""
        return Layout(tuple(range(rank)))

    @staticmethod
    def channels_last(rank: int) -> Layout:
        """Axis 1 innermost (N, spatial..., C in memory)."""
        if rank < 3:
            return Layout.plain(rank)
        return Layout((0, *range(2, rank), 1))

    def physical_shape(self, shape: Shape) -> Shape:
        """Shape of the dense row-major buffer that holds a tensor of logical ``shape``."""
        self._check(shape)
        if self.channel_block > 1:
            blocks = -(-shape[1] // self.channel_block)
            sizes = [blocks if axis == 1 else shape[axis] for axis in self.order]
            return (*sizes, self.channel_block)
        border = self.border or ((0, 0),) * len(shape)
        sizes = [shape[axis] + sum(border[axis]) for axis in self.order]
        if self.pitch and len(sizes) > 1:
            if self.pitch < sizes[-1]:
                raise InputError(f"layout pitch {self.pitch} is below the row of {sizes[-1]}")
            sizes[-1] = self.pitch
        return tuple(sizes)

    def size(self, shape: Shape) -> int:
        """Elements that the buffer needs."""
        return int(np.prod(self.physical_shape(shape), dtype=np.int64))

    def view(self, buffer: Array, shape: Shape) -> Array:
        """Strided view in logical order of a flat ``buffer``; writing it writes the buffer."""
        if self.channel_block > 1:
            raise InputError("a blocked layout has no strided view; use pack and unpack")
        physical = buffer[: self.size(shape)].reshape(self.physical_shape(shape))
        border = self.border or ((0, 0),) * len(shape)
        inner = tuple(slice(border[a][0], border[a][0] + shape[a]) for a in self.order)
        # The ellipsis keeps a rank-0 result an array that shares memory, not a number.
        index: Any = (*inner, ...)
        return physical[index].transpose(np.argsort(self.order))

    def pack(self, array: Array) -> Array:
        """Flat buffer in this layout with the elements of the logical ``array``; the rest is 0."""
        buffer = np.zeros(self.size(array.shape), array.dtype)
        if self.channel_block == 1:
            self.view(buffer, array.shape)[...] = array
            return buffer
        block = self.channel_block
        padded = np.zeros((array.shape[0], -(-array.shape[1] // block) * block, *array.shape[2:]), array.dtype)
        padded[:, : array.shape[1]] = array
        split = padded.reshape(array.shape[0], -1, block, *array.shape[2:])
        axes = [axis if axis < 2 else axis + 1 for axis in self.order]
        buffer[:] = split.transpose(*axes, 2).reshape(-1)
        return buffer

    def unpack(self, buffer: Array, shape: Shape) -> Array:
        """Logical array of ``shape`` (a copy) read from a flat ``buffer`` in this layout."""
        if self.channel_block == 1:
            return self.view(buffer, shape).copy()
        physical = buffer[: self.size(shape)].reshape(self.physical_shape(shape))
        axes = [axis if axis < 2 else axis + 1 for axis in self.order] + [2]
        split = physical.transpose(np.argsort(axes))
        whole = split.reshape(shape[0], -1, *shape[2:])
        return whole[:, : shape[1]].copy(order="C")

    def _check(self, shape: Shape) -> None:
        if len(shape) != len(self.order):
            raise InputError(f"layout is of rank {len(self.order)}, the tensor has shape {shape}")


def copy_into(target: Array, value: Array) -> None:
    """Copy ``value`` to ``target`` of the same shape.

    NumPy's inner loop runs along the target's innermost axis; where that is a short one, such as the channels of an
    image, it is taken apart here, which is several times faster.
    """
    steps = [(step, axis) for axis, step in enumerate(target.strides) if target.shape[axis] > 1]
    axis = min(steps)[1] if steps else 0
    if target.ndim > 1 and target.shape[axis] <= SHORT_AXIS and value.strides[axis] != value.itemsize:
        for part, own in zip(np.moveaxis(target, axis, 0), np.moveaxis(value, axis, 0), strict=True):
            np.copyto(part, own)
    else:
        np.copyto(target, value)


def same_memory(array: Array, shape: Shape) -> Array | None:
    """The array as ``shape``, sharing memory; None where that would take a copy."""
    view = array.view()
    try:
        view.shape = shape
    except AttributeError:
        return None
    return view
