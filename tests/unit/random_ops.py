"""Hypothesis strategies for ops that can be split, with their arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from coexec.layout import Array
from coexec.ops.activation import ACTIVATIONS, Activation
from coexec.ops.base import Axis
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

AnyOp = Conv2d | Linear


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


ops = st.one_of(linears(), convs())


@st.composite
def cuts(draw: st.DrawFn, op: AnyOp) -> tuple[Axis, int]:
    """An axis, and a cut from 0 to all units at which the op can be cut."""
    axis: Axis = draw(st.sampled_from(op.axes))
    step = op.step(axis)
    return axis, step * draw(st.integers(0, op.units(axis) // step))


def canonical_arrays(op: AnyOp, seed: int = 0) -> list[Array | None]:
    """Random float64 x, weight, bias and residual, as the op's kernels see them."""
    rng = np.random.default_rng(seed)
    shapes = op.array_shapes
    logical = [
        rng.standard_normal(shapes[role]) if role in shapes else None for role in ("x", "weight", "bias", "residual")
    ]
    return op.canonical(logical, np.empty(shapes["y"]))[0]
