"""Resize and its ancestor Upsample."""

from __future__ import annotations

import numpy as np

from coexec.frontends.converters.reading import (
    choice,
    constant,
    constant_integers,
    distinct_axes,
    fail,
    integer,
    integers,
    number,
    present,
    shape,
    text,
)
from coexec.frontends.onnx_node import Converted, OnnxNode
from coexec.ops.interpolation import COORDINATES, AxisResize
from coexec.ops.resize import Resize

MODES = ("nearest", "linear", "cubic")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def upsample(node: OnnxNode) -> Converted:
    """Opset 7: scales are an attribute; 9: an input. Coordinates are x / scale."""
    scales = node.attributes.get("scales", []) if node.opset < 9 else _scales(node, 1)
    if any(scale < 1 for scale in scales):
        raise fail(node, f"scales {scales} would shrink the input, which only Resize does")
    return _legacy(node, [float(scale) for scale in scales], "floor")


def resize(node: OnnxNode) -> Converted:
    if node.opset < 11:
        return _legacy(node, _scales(node, 1), "simple")
    coordinates = choice(node, "coordinate_transformation_mode", "half_pixel", COORDINATES)
    if integer(node, "antialias", 0) and text(node, "mode", "nearest") == "nearest":
        raise fail(node, "antialias is for the modes linear and cubic")
    roi = _floats(node, 1, "roi") if coordinates == "tf_crop_and_resize" else None
    op = Resize(
        _axes(node, roi),
        choice(node, "mode", "nearest", MODES),
        coordinates,
        choice(node, "nearest_mode", "round_prefer_floor", NEAREST_MODES),
        number(node, "cubic_coeff_a", -0.75),
        bool(integer(node, "antialias", 0)),
        bool(integer(node, "exclude_outside", 0)),
        number(node, "extrapolation_value", 0.0),
    )
    return Converted(op, node.inputs[:1])


def _legacy(node: OnnxNode, scales: list[float], rounding: str) -> Converted:
    x = shape(node)
    if len(scales) != len(x):
        raise fail(node, f"{len(scales)} scales do not fit an input of shape {x}")
    axes = [AxisResize(axis, size, int(size * s), s) for axis, (size, s) in enumerate(zip(x, scales, strict=True))]
    op = Resize(_changed(axes), choice(node, "mode", "nearest", MODES[:2]), "asymmetric", rounding)
    return Converted(op, node.inputs[:1])


def _axes(node: OnnxNode, roi: list[float] | None) -> tuple[AxisResize, ...]:
    """What happens to each axis that scales or sizes name."""
    x = shape(node)
    named = distinct_axes(node, integers(node, "axes") or range(len(x)), len(x))
    sizes, scales = constant_integers(node, 3, "sizes"), _scales(node, 2)
    if sizes:
        outs, factors = _from_sizes(node, [x[axis] for axis in named], sizes)
    elif scales:
        outs, factors = [int(x[axis] * s) for axis, s in zip(named, scales, strict=False)], scales
    else:
        raise fail(node, "neither scales nor sizes are given")
    if len(outs) != len(named):
        raise fail(node, f"{len(outs)} scales or sizes do not fit {len(named)} axes")
    if roi and (len(roi) != 2 * len(named) or not np.isfinite(roi).all()):
        raise fail(node, f"roi {roi} does not fit {len(named)} axes")
    rois = roi or [0.0] * len(named) + [1.0] * len(named)
    axes = [
        AxisResize(axis, x[axis], outs[i], factors[i], (rois[i], rois[len(named) + i])) for i, axis in enumerate(named)
    ]
    return _changed(axes)


def _from_sizes(node: OnnxNode, lengths: list[int], sizes: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """Output sizes and scales; a policy other than stretch makes one scale for all axes."""
    pairs = list(zip(sizes, lengths, strict=False))
    if len(sizes) != len(lengths) or min(sizes) < 0 or any(size and not length for size, length in pairs):
        raise fail(node, f"sizes {sizes} do not fit axes of {lengths} elements")
    factors = [size / length if length else 1.0 for size, length in pairs]
    policy = choice(node, "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    if policy == "stretch":
        return list(sizes), factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [int(factor * length + 0.5) for length in lengths], [factor] * len(lengths)


def _changed(axes: list[AxisResize]) -> tuple[AxisResize, ...]:
    return tuple(a for a in axes if a.out != a.size or (a.size and (a.scale != 1 or a.roi != (0.0, 1.0))))


def _scales(node: OnnxNode, index: int) -> list[float]:
    """The positive factors of a constant input, [] when it is absent or empty."""
    scales = _floats(node, index, "scales") or []
    if not all(0 < scale < np.inf for scale in scales):
        raise fail(node, f"scales {scales} are not positive numbers")
    return scales


def _floats(node: OnnxNode, index: int, what: str) -> list[float] | None:
    value = constant(node, index, what) if present(node, index) else None
    return None if value is None else [float(item) for item in value.reshape(-1)]
