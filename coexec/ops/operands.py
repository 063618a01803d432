"""Checks and views that most ops share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec

T = TypeVar("T")

MAX_TENSOR_BYTES = 2**32
"""A tensor above 4 GiB is taken for a damaged or hostile shape: a GPU buffer rarely holds as much."""


def required(values: Sequence[T | None], index: int, kind: str) -> T:
    """Operand ``index``, which the op cannot do without; ModelError when it is absent."""
    value = values[index] if index < len(values) else None
    if value is None:
        raise ModelError(f"{kind}: input {index} is missing")
    return value


def optional(values: Sequence[T | None], index: int) -> T | None:
    """Operand ``index``, or None when the node leaves it out."""
    return values[index] if index < len(values) else None


def broadcast(shapes: Iterable[Shape], kind: str) -> Shape:
    """Shape that ``shapes`` broadcast to; ModelError when they do not."""
    shapes = list(shapes)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ModelError(f"{kind}: shapes {', '.join(map(str, shapes))} do not broadcast") from None


def check_bias(values: Sequence[ArraySpec | None], index: int, channels: int, kind: str) -> None:
    """ModelError unless operand ``index`` is absent or one value per channel."""
    bias = optional(values, index)
    if bias is not None and bias.shape != (channels,):
        raise ModelError(f"{kind}: bias of shape {bias.shape} does not fit {channels} output channels")


def check_scalar(spec: ArraySpec | None, kind: str) -> None:
    """ModelError unless an operand is absent or one number."""
    if spec is not None and element_count(spec.shape) != 1:
        raise ModelError(f"{kind}: an operand of shape {spec.shape} must be one number")


def channels_last(array: Array) -> Array:
    """N, C, spatial... as a view N, spatial..., C, so that NumPy's inner loop runs over channels."""
    return np.moveaxis(array, 1, -1)


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """dtype to sum in: float32 for narrower floats, else the same."""
    narrow = dtype.itemsize < 4 and dtype.kind not in "iub"
    return np.dtype(np.float32) if narrow else dtype


def element_count(shape: Iterable[int]) -> int:
    """Elements of a tensor of ``shape``."""
    return math.prod(shape)


def check_size(what: str, dims: Iterable[int], itemsize: float) -> Shape:
    """``dims`` as a shape; ModelError if one is negative or the tensor is beyond MAX_TENSOR_BYTES."""
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has shape {shape}: dimensions must not be negative")
    if math.prod(shape) * itemsize > MAX_TENSOR_BYTES:
        raise ModelError(f"{what} of shape {shape} needs more than {MAX_TENSOR_BYTES >> 30} GiB; check the shapes")
    return shape
