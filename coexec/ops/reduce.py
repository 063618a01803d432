"""Reductions over any set of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import accumulator, element_count, required


@dataclass(frozen=True)
class Reduce(Op):
    """``function`` is a key of REDUCTIONS; ``axes`` are not negative, () reduces nothing."""

    function: str
    axes: tuple[int, ...]
    keepdims: bool = True

    kind: ClassVar[str] = "reduce"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        return (ArraySpec(reduced_shape(x.shape, self.axes, self.keepdims), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            result = REDUCTIONS[self.function](required(inputs, 0, self.kind), self.axes)
        np.copyto(outputs[0], result.reshape(outputs[0].shape), casting="unsafe")


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Shape after reducing ``axes`` of ``shape``."""
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def sum_of_squares(x: Array, axes: tuple[int, ...]) -> Array:
    """Sum of x * x over ``axes`` (kept as 1), without an array of the squares."""
    x = x.astype(accumulator(x.dtype), copy=False)
    labels = list(range(x.ndim))
    total = np.einsum(x, labels, x, labels, [axis for axis in labels if axis not in axes])
    return np.asarray(total).reshape(reduced_shape(x.shape, axes, True))


def mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Mean over ``axes`` (kept as 1), 0 of no elements as in onnxruntime."""
    return np.asarray(_sum(x, axes) / max(1, element_count(x.shape[axis] for axis in axes)))


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.add.reduce(x, axis=axes, keepdims=True, dtype=accumulator(x.dtype)))


def _prod(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.multiply.reduce(x, axis=axes, keepdims=True, dtype=accumulator(x.dtype)))


def _max(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.maximum.reduce(x, axis=axes, keepdims=True, initial=_limits(x.dtype)[0]))


def _min(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.minimum.reduce(x, axis=axes, keepdims=True, initial=_limits(x.dtype)[1]))


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Smallest and largest value: the maximum and minimum of nothing."""
    if dtype.kind == "b":
        return False, True
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    x = x.astype(accumulator(x.dtype), copy=False)
    high = _max(x, axes)
    # An infinite maximum would give inf - inf.
    shift = np.where(np.isfinite(high), high, 0)
    return np.asarray(np.log(_sum(np.exp(x - shift), axes)) + shift)


REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "sum": _sum,
    "mean": mean,
    "prod": _prod,
    "max": _max,
    "min": _min,
    "l1": lambda x, axes: _sum(np.abs(x), axes),
    "l2": lambda x, axes: np.asarray(np.sqrt(sum_of_squares(x, axes))),
    "sum_square": sum_of_squares,
    "log_sum": lambda x, axes: np.asarray(np.log(_sum(x, axes))),
    "log_sum_exp": _log_sum_exp,
}
