"""Hypothesis strategies for the ops that kernels compute, with their arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from coexec.layout import Array, Shape
from coexec.ops.activation import ACTIVATIONS, Activation
from coexec.ops.attention import Attention
from coexec.ops.base import ArraySpec, Axis, DeviceOp, SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.ops.pool import Pool
from coexec.ops.row_norm import RowNorm
from coexec.ops.window import Window

AnyOp = Conv2d | Linear
F4 = np.dtype(np.float32)


@st.composite
def activations(draw: st.DrawFn) -> Activation:
    return Activation(draw(st.sampled_from(list(ACTIVATIONS))), -0.5, 0.75)


@st.composite
def linears(draw: st.DrawFn, most: int = 12) -> Linear:
    m, k, n = (draw(st.integers(1, most)) for _ in range(3))
    return Linear(m, k, n, draw(st.booleans()), draw(st.booleans()), draw(activations()))


@st.composite
def convs(draw: st.DrawFn, most: int = 4) -> Conv2d:
    """Any groups (depthwise included), stride, dilation, one-sided padding and batch whose output is not empty."""
    groups = draw(st.integers(1, 4))
    per_group = (1, 1) if draw(st.booleans()) else (draw(st.integers(1, most)), draw(st.integers(1, most)))
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    dilation = [draw(st.integers(1, 3)) for _ in range(2)]
    pads = [draw(st.integers(0, 3)) for _ in range(4)]
    least = [max(1, d * (k - 1) + 1 - a - b) for d, k, a, b in zip(dilation, kernel, pads[:2], pads[2:], strict=True)]
    sizes = [draw(st.integers(low, low + 7)) for low in least]
    return Conv2d(
        draw(st.integers(1, 2)),
        groups * per_group[0],
        *sizes,
        groups * per_group[1],
        *kernel,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        *pads,
        *dilation,
        groups,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(activations()),
    )


@st.composite
def depthwise_convs(draw: st.DrawFn, most: int = 40) -> Conv2d:
    groups = draw(st.integers(2, most))
    return replace(draw(convs()), C_in=groups, C_out=groups, groups=groups)


@st.composite
def plain_3x3_convs(draw: st.DrawFn, most: int = 40) -> Conv2d:
    """Those that Winograd's method takes, the input channels a multiple of every vector's width."""
    height, width = (draw(st.integers(2, 14)) for _ in range(2))
    pads = [draw(st.integers(1, 2)) for _ in range(4)]
    channels = 16 * draw(st.integers(1, 2)), draw(st.integers(1, most))
    conv = Conv2d(draw(st.integers(1, 2)), channels[0], height, width, channels[1], 3, 3, 1, 1, *pads)
    return replace(conv, bias=draw(st.booleans()), residual=draw(st.booleans()), activation=draw(activations()))


@st.composite
def windows(draw: st.DrawFn, rank: int = 2) -> tuple[Window, Shape]:
    """A window, some of them in the padding alone, and the spatial shape of an input that it fits."""
    kernel, strides, dilations = (tuple(draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(3))
    begin, end = (tuple(draw(st.integers(0, 3)) for _ in range(rank)) for _ in range(2))
    window = Window(kernel, strides, begin, end, dilations, draw(st.booleans()))
    least = [max(1, reach - a - b) for reach, a, b in zip(window.reach, begin, end, strict=True)]
    return window, tuple(draw(st.integers(low, low + 6)) for low in least)


@st.composite
def pools(draw: st.DrawFn, most: int = 4) -> tuple[Pool, Shape]:
    """A pooling that kernels compute, and the shape of its input."""
    window, size = draw(windows())
    pool = Pool(draw(st.sampled_from(["max", "average"])), window, draw(st.booleans()))
    return pool, (draw(st.integers(1, 2)), draw(st.integers(1, most)), *size)


def pool2ds(most: int = 4) -> st.SearchStrategy[DeviceOp]:
    return pools(most).map(lambda case: case[0].for_device([ArraySpec(case[1], F4)]))


@st.composite
def row_norms(draw: st.DrawFn, most: int = 12) -> RowNorm:
    return RowNorm(
        *(draw(st.integers(1, most)) for _ in range(2)), draw(st.booleans()), draw(st.sampled_from([0.5, 1e-5]))
    )


@st.composite
def attentions(draw: st.DrawFn, most: int = 12) -> Attention:
    batch, heads = (draw(st.integers(1, 3)) for _ in range(2))
    return Attention(
        batch, heads, *(draw(st.integers(1, most)) for _ in range(4)), draw(st.sampled_from([1.0, 0.3, -2.0]))
    )


ops = st.one_of(linears(), convs())

BY_KIND: dict[str, Callable[[int], st.SearchStrategy[DeviceOp]]] = {
    "linear": linears,
    "conv2d": convs,
    "pool2d": pool2ds,
    "row_norm": row_norms,
    "attention": attentions,
}
"""Every kind that kernels compute; the argument limits its sizes."""


@st.composite
def cuts(draw: st.DrawFn, op: AnyOp) -> tuple[Axis, int]:
    """An axis, and a cut from 0 to all units at which the op can be cut."""
    axis: Axis = draw(st.sampled_from(op.axes))
    step = op.step(axis)
    return axis, step * draw(st.integers(0, op.units(axis) // step))


def roles(op: DeviceOp) -> tuple[str, ...]:
    """Names of the inputs, in their order; those that the op has not included."""
    if isinstance(op, SplitOp):
        return ("x", "weight", "bias", "residual")
    return tuple(role for role in op.array_shapes if role != "y")


def canonical_arrays(op: DeviceOp, seed: int = 0) -> list[Array | None]:
    """Random float64 inputs, as the op's kernels see them."""
    rng = np.random.default_rng(seed)
    shapes = op.array_shapes
    logical = [rng.standard_normal(shapes[role]) if role in shapes else None for role in roles(op)]
    return op.canonical(logical, np.empty(shapes["y"]))[0]
