"""Checks and views that most ops share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape

T = TypeVar("T")


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


def channels_last(array: Array) -> Array:
    """N, C, spatial... as a view N, spatial..., C, so that NumPy's inner loop runs over channels."""
    return np.moveaxis(array, 1, -1)


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """dtype to sum in: float32 for narrower floats, else the same."""
    narrow = dtype.itemsize < 4 and dtype.kind not in "iub"
    return np.dtype(np.float32) if narrow else dtype


def element_count(shape: Iterable[int]) -> int:
    """Elements of a tensor of ``shape``."""
    return int(np.prod(tuple(shape), dtype=np.int64))
