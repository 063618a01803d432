"""Resizing along any axes: nearest, linear and cubic interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.interpolation import AxisResize, Taps, cubic_kernel, kernel_taps, linear_kernel, nearest_taps
from coexec.ops.operands import accumulator, channels_last, element_count, required


@dataclass(frozen=True)
class Resize(Op):
    """Interpolation is separable: one pass per entry of ``axes``, the untouched axes left out.

    Attributes:
        mode: nearest, linear or cubic.
        coordinates: a key of interpolation.COORDINATES.
        rounding: a key of interpolation.ROUNDINGS, for nearest.
        cubic_a: Keys' coefficient, for cubic.
        extrapolation: value beyond the input, for tf_crop_and_resize.
    """

    axes: tuple[AxisResize, ...]
    mode: str
    coordinates: str
    rounding: str = "round_prefer_floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    kind: ClassVar[str] = "resize"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        shape = list(x.shape)
        for a in self.axes:
            if a.axis >= len(shape) or shape[a.axis] != a.size:
                raise ModelError(f"resize: expected {a.size} positions on axis {a.axis} of an input of shape {x.shape}")
            shape[a.axis] = a.out
        return (ArraySpec(tuple(shape), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Multiply and add per tap, counted as if all passes were of the output's size."""
        taps = {"nearest": 0, "linear": 2, "cubic": 4}[self.mode]
        return 2 * taps * max(1, len(self.axes)) * element_count(self.infer(inputs)[0].shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y = required(inputs, 0, self.kind), outputs[0]
        if not y.size:
            return
        taps = {a.axis: self._taps(a) for a in self.axes}
        if self.mode == "nearest":
            _nearest(x, y, taps)
        else:
            _interpolate(x, y, taps)
        for axis, tap in taps.items():
            if tap.outside.any():
                y[(slice(None),) * axis + (tap.outside,)] = self.extrapolation

    def _taps(self, a: AxisResize) -> Taps:
        if self.mode == "nearest":
            return nearest_taps(a, self.coordinates, self.rounding)
        kernel, radius = (linear_kernel, 1) if self.mode == "linear" else (cubic_kernel(self.cubic_a), 2)
        return kernel_taps(a, self.coordinates, kernel, radius, self.antialias, self.exclude_outside)


def _nearest(x: Array, y: Array, taps: dict[int, Taps]) -> None:
    """Copy; by whole strided images where every axis repeats its positions evenly."""
    factors = [_repeats(taps[axis], x.shape[axis]) if axis in taps else 1 for axis in range(x.ndim)]
    if all(factors):
        for place in product(*map(range, factors)):
            y[tuple(slice(i, None, f) for i, f in zip(place, factors, strict=True))] = x
        return
    positions = [taps[axis].positions[:, 0] if axis in taps else np.arange(size) for axis, size in enumerate(x.shape)]
    if x.ndim > 2:
        x, y = channels_last(x), channels_last(y)
        positions.append(positions.pop(1))
    y[...] = x[np.ix_(*positions)]


def _repeats(taps: Taps, size: int) -> int:
    """How often each input position is repeated in order; 0 where the pattern is another."""
    positions = taps.positions[:, 0]
    factor = len(positions) // size
    even = factor * size == len(positions) and np.array_equal(positions, np.arange(len(positions)) // max(1, factor))
    return factor if even else 0


def _interpolate(x: Array, y: Array, taps: dict[int, Taps]) -> None:
    wide = np.dtype(np.float32) if x.dtype.kind in "iub" else accumulator(x.dtype)
    current = x.astype(wide, order="K", copy=False)
    # Axes that shrink come first: the later passes then have less to do.
    passes = sorted(taps, key=lambda axis: len(taps[axis].positions) / x.shape[axis])
    for axis in passes:
        direct = axis == passes[-1] and wide == y.dtype
        shape = [*current.shape[:axis], y.shape[axis], *current.shape[axis + 1 :]]
        target = y if direct else np.empty_like(current, shape=shape, order="K")
        _one_axis(current, target, axis, taps[axis])
        current = target
    if current is not y:
        _round_into(current, y)


def _one_axis(x: Array, y: Array, axis: int, tap: Taps) -> None:
    """Weighted sums of slices across the axis, a slice of the output at a time, which stays in cache."""
    lines, results = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    for i, (positions, weights) in enumerate(zip(tap.positions.tolist(), tap.weights.tolist(), strict=True)):
        result = results[i : i + 1]
        np.multiply(lines[positions[0] : positions[0] + 1], weights[0], out=result)
        for position, weight in zip(positions[1:], weights[1:], strict=True):
            if weight:
                result += lines[position : position + 1] * weight


def _round_into(values: Array, y: Array) -> None:
    """Copy; floats are cut towards zero and limited on the way to integers."""
    if y.dtype.kind in "iu":
        limits = np.iinfo(y.dtype)
        values = np.clip(np.trunc(values), limits.min, limits.max)
    np.copyto(y, values, casting="unsafe")
