"""Max, average and Lp pooling over a sliding window, of any spatial rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, DeviceOp, Op
from coexec.ops.operands import accumulator, channels_last, element_count, required
from coexec.ops.pool2d import Pool2d
from coexec.ops.views import Box
from coexec.ops.window import Window


@dataclass(frozen=True)
class Pool(Op):
    """Pooling of N x C x spatial by ``function``, a key of POOLS.

    Outputs: y, and for max with ``indices`` the int64 position of each maximum in the whole flattened
    input, the spatial axes counted row major or (``column_major``) column major.
    """

    function: str
    window: Window
    count_include_pad: bool = False
    p: int = 2
    indices: bool = False
    column_major: bool = False

    kind: ClassVar[str] = "pool"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if len(x.shape) < 3:
            raise ModelError(f"pool: input of shape {x.shape} has no spatial axes")
        shape = (*x.shape[:2], *self.window.output_size(x.shape[2:], self.kind))
        values = ArraySpec(shape, x.dtype)
        return (values, ArraySpec(shape, np.dtype(np.int64))) if self.indices else (values,)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return element_count(self.infer(inputs)[0].shape) * element_count(self.window.kernel)

    def for_device(self, inputs: Sequence[ArraySpec | None]) -> DeviceOp | None:
        x, w = required(inputs, 0, self.kind), self.window
        if len(x.shape) != 4 or self.function not in ("max", "average") or self.indices:
            return None
        batch, channels, height, width = x.shape
        out = w.output_size((height, width), self.kind)
        return Pool2d(
            *(batch, channels, height, width),
            *(out[0], out[1], w.kernel[0], w.kernel[1], w.strides[0], w.strides[1]),
            *(w.begin[0], w.begin[1], w.end[0], w.end[1], w.dilations[0], w.dilations[1]),
            average=self.function == "average",
            count_padding=self.count_include_pad,
        )

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x = channels_last(required(inputs, 0, self.kind))
        if self.indices:
            _max_with_indices(self, x, channels_last(outputs[0]), channels_last(outputs[1]))
        else:
            POOLS[self.function](self, x, channels_last(outputs[0]))


def lowest(dtype: np.dtype[Any]) -> Any:
    """Smallest finite value of a dtype: what the maximum of nothing is, in onnxruntime too."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else np.finfo(dtype).min


def _max(op: Pool, x: Array, y: Array) -> None:
    y[...] = lowest(y.dtype)
    for _, out, taken in _taps(op, x, y):
        np.maximum(y[out], x[taken], out=y[out])


def _average(op: Pool, x: Array, y: Array) -> None:
    total = _zeros_or_view(y)
    for _, out, taken in _taps(op, x, y):
        total[out] += x[taken]
    for axis, length in enumerate(x.shape[1:-1]):
        count = op.window.counts(axis, length, y.shape[axis + 1], op.count_include_pad)
        scale = (1.0 / np.maximum(count, 1)).astype(total.dtype)
        total *= scale.reshape(-1, *(1,) * (y.ndim - axis - 2))
    if total is not y:
        y[...] = total


def _lp(op: Pool, x: Array, y: Array) -> None:
    total = _zeros_or_view(y)
    for _, out, taken in _taps(op, x, y):
        total[out] += np.abs(x[taken]) ** op.p
    np.power(total, 1.0 / op.p, out=total)
    if total is not y:
        y[...] = total


POOLS: dict[str, Callable[[Pool, Array, Array], None]] = {"max": _max, "average": _average, "lp": _lp}


def _taps(op: Pool, x: Array, y: Array) -> Iterator[tuple[tuple[int, ...], Box, Box]]:
    return op.window.taps(x.shape[1:-1], y.shape[1:-1])


def _zeros_or_view(y: Array) -> Array:
    """``y`` cleared, or a wider array to sum in where its dtype is too narrow."""
    wide = accumulator(y.dtype)
    total = y if wide == y.dtype else np.empty(y.shape, wide)
    total[...] = 0
    return total


def _max_with_indices(op: Pool, x: Array, y: Array, indices: Array) -> None:
    y[...] = lowest(y.dtype)
    indices[...] = -1
    positions = _positions(x.shape, op.column_major)
    for _, out, taken in _taps(op, x, y):
        # Strictly greater: of equal values the first one counts.
        better = (x[taken] > y[out]) | (indices[out] < 0)
        np.copyto(y[out], x[taken], where=better)
        np.copyto(indices[out], positions[taken], where=better)


def _positions(shape: Shape, column_major: bool) -> Array:
    """Flat ONNX position of every element of a channels-last array of ``shape``."""
    batch, *spatial, channels = shape
    pixels = element_count(spatial)
    image = np.arange(pixels, dtype=np.int64).reshape(tuple(spatial), order="F" if column_major else "C")
    planes = np.arange(batch * channels, dtype=np.int64).reshape(batch, *(1,) * len(spatial), channels)
    return np.asarray(image[None, ..., None] + planes * pixels)
