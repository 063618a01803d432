"""Which input positions, and with which weights, one axis of a resized tensor reads.

Follows the text and the reference implementation of ONNX Resize (opsets 10 to 19).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class AxisResize:
    """How one axis is resized: from ``size`` to ``out`` positions.

    Attributes:
        axis: logical axis.
        scale: output over input size, as the model states it (not always out / size).
        roi: start and end of the region of interest, for tf_crop_and_resize.
    """

    axis: int
    size: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Taps:
    """``positions`` [out, n] read with ``weights`` [out, n]; ``outside`` [out]: extrapolated."""

    positions: npt.NDArray[np.intp]
    weights: Floats
    outside: npt.NDArray[np.bool_]


def _half_pixel(x: Floats, a: AxisResize) -> Floats:
    return (x + 0.5) / a.scale - 0.5


def _half_pixel_symmetric(x: Floats, a: AxisResize) -> Floats:
    adjustment = a.out / (a.scale * a.size)
    return a.size / 2 * (1 - adjustment) + (x + 0.5) / a.scale - 0.5


def _pytorch_half_pixel(x: Floats, a: AxisResize) -> Floats:
    return _half_pixel(x, a) if a.out > 1 else np.zeros_like(x)


def _align_corners(x: Floats, a: AxisResize) -> Floats:
    length = a.scale * a.size
    return np.asarray(x * (a.size - 1) / (length - 1)) if length != 1 else np.zeros_like(x)


def _asymmetric(x: Floats, a: AxisResize) -> Floats:
    return x / a.scale


def _tf_half_pixel_for_nn(x: Floats, a: AxisResize) -> Floats:
    return (x + 0.5) / a.scale


def _tf_crop_and_resize(x: Floats, a: AxisResize) -> Floats:
    start, end = a.roi
    if a.out == 1:
        return np.full_like(x, (start + end) * (a.size - 1) / 2)
    return start * (a.size - 1) + x * (end - start) * (a.size - 1) / (a.out - 1)


COORDINATES: dict[str, Callable[[Floats, AxisResize], Floats]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "tf_crop_and_resize": _tf_crop_and_resize,
}

ROUNDINGS: dict[str, Callable[[Floats, AxisResize], Floats]] = {
    "round_prefer_floor": lambda x, a: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x, a: np.floor(x + 0.5),
    "floor": lambda x, a: np.floor(x),
    "ceil": lambda x, a: np.ceil(x),
    # What onnxruntime does for Resize of opset 10, where ONNX leaves it open.
    "simple": lambda x, a: np.ceil(x) if a.scale < 1 else np.floor(x),
}


def coordinates(a: AxisResize, mode: str, dtype: type[np.floating[Any]]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Input coordinate of every output position, and whether it is extrapolated."""
    x = COORDINATES[mode](np.arange(a.out, dtype=dtype), a)
    crop = mode == "tf_crop_and_resize"
    outside = (x < 0) | (x > a.size - 1) if crop else np.zeros(a.out, np.bool_)
    return x, outside


def nearest_taps(a: AxisResize, mode: str, rounding: str) -> Taps:
    """One tap of weight 1 per output position."""
    # In float32 as in onnxruntime, which decides where coordinates such as 3 / 0.6 round to.
    x, outside = coordinates(a, mode, np.float32)
    positions = np.clip(ROUNDINGS[rounding](x, a), 0, a.size - 1).astype(np.intp)
    return Taps(positions[:, None], np.ones((a.out, 1)), outside)


def kernel_taps(
    a: AxisResize, mode: str, kernel: Callable[[Floats], Floats], radius: int, antialias: bool, exclude_outside: bool
) -> Taps:
    """Taps of a kernel of ``radius`` input positions; ``antialias`` stretches it when shrinking."""
    x, outside = coordinates(a, mode, np.float64)
    stretch = min(a.scale, 1.0) if antialias else 1.0
    reach = int(np.ceil(radius / stretch))
    # The window is (x - reach, x + reach]; an integer x has weight 1 at itself and 0 at the edges.
    positions = np.floor(x)[:, None] + np.arange(1 - reach, reach + 1)
    weights = kernel((positions - x[:, None]) * stretch)
    if exclude_outside:
        weights[(positions < 0) | (positions >= a.size)] = 0
    if exclude_outside or antialias:
        weights /= weights.sum(axis=1, keepdims=True)
    return Taps(np.clip(positions, 0, a.size - 1).astype(np.intp), weights, outside)


def linear_kernel(distance: Floats) -> Floats:
    """Triangle of radius 1."""
    return np.asarray(np.clip(1 - np.abs(distance), 0, 1))


def cubic_kernel(a: float) -> Callable[[Floats], Floats]:
    """Keys' cubic convolution of radius 2 with coefficient ``a``."""

    def kernel(distance: Floats) -> Floats:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return kernel
