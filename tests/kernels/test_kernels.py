"""Every kernel of the ops that are split on every device, and every CPU routine, against the op's reference in float64.

A part is computed into an output with room around it, see one_op.py: what lies outside the part must keep its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from one_op import EPS, OneOp, open_link, roomy

from coexec.backends.cpu import CPU_VARIANTS
from coexec.experiments.conformance import Link
from coexec.kernels import KERNELS
from coexec.kernels.variant import GpuTraits
from coexec.layout import Array
from coexec.measure import random_constants
from coexec.ops.activation import ACTIVATIONS, Activation
from coexec.ops.base import Axis
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.ops.split_ops import SPLIT_OPS
from coexec.plan import Side, Task
from coexec.sync import Sync

AnyOp = Conv2d | Linear

LINEAR_SHAPES = [
    (1, 1, 1), (1, 300, 1000), (2, 64, 33), (5, 7, 3), (13, 64, 129), (16, 33, 64), (50, 96, 200), (77, 51, 121),
    (300, 16, 40),
]  # fmt: skip
# N, C_in, H, W, C_out, KH, KW, stride (h, w), pads (top, left, bottom, right), dilation (h, w), groups
CONV_SHAPES = [
    (1, 1, 1, 1, 1, 1, 1, (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (1, 3, 20, 22, 16, 7, 7, (2, 2), (3, 3, 3, 3), (1, 1), 1),
    (1, 16, 14, 14, 24, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (2, 5, 9, 11, 7, 3, 2, (1, 2), (0, 1, 2, 0), (1, 1), 1),
    (1, 64, 7, 7, 33, 1, 1, (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (2, 40, 6, 5, 17, 1, 1, (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (1, 24, 8, 9, 48, 1, 1, (2, 2), (0, 0, 0, 0), (1, 1), 1),
    (1, 6, 12, 13, 10, 3, 3, (1, 1), (2, 2, 2, 2), (2, 2), 1),
    (1, 8, 9, 17, 8, 1, 7, (1, 1), (0, 3, 0, 3), (1, 1), 1),
    (1, 12, 10, 10, 20, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 4),
    (1, 36, 5, 6, 72, 3, 3, (2, 1), (1, 1, 1, 1), (1, 1), 2),
    (1, 32, 12, 12, 32, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 32),
    (2, 19, 9, 8, 19, 3, 3, (2, 2), (1, 1, 1, 1), (1, 1), 19),
    (1, 9, 11, 10, 9, 5, 3, (1, 1), (4, 2, 4, 2), (2, 2), 9),
    (1, 4, 6, 6, 8, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 4),
    (1, 24, 9, 10, 24, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 6),
    (2, 40, 7, 9, 40, 3, 3, (2, 1), (1, 2, 1, 0), (1, 2), 5),
    (1, 6, 5, 9, 6, 1, 3, (1, 2), (0, 1, 0, 1), (1, 1), 3),
    (2, 32, 13, 11, 40, 3, 3, (1, 1), (1, 0, 2, 1), (1, 1), 1),
    (1, 48, 30, 9, 64, 3, 3, (1, 1), (0, 1, 0, 1), (1, 1), 1),
    (1, 16, 3, 3, 5, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (1, 3, 5, 40, 5, 2, 3, (3, 3), (3, 0, 8, 0), (1, 1), 1),  # first and last rows in the padding alone
]


@dataclass(frozen=True)
class Share:
    """Units ``start`` to ``stop`` of an axis."""

    axis: Axis
    start: int
    stop: int


def make_ops() -> list[AnyOp]:
    """All shapes, with bias, residual and activation in turn."""
    kinds = list(ACTIVATIONS)
    shapes: list[AnyOp] = [Linear(*shape) for shape in LINEAR_SHAPES]
    shapes += [
        Conv2d(*sizes, *stride, *pads, *dilation, groups) for *sizes, stride, pads, dilation, groups in CONV_SHAPES
    ]
    return [
        replace(op, bias=i % 3 != 0, residual=i % 2 == 0, activation=activation(kinds[i % len(kinds)]))
        for i, op in enumerate(shapes)
    ]


def activation(kind: str) -> Activation:
    return Activation(kind, 0.1 if kind == "leaky_relu" else -0.4, 0.7)


def title(op: AnyOp) -> str:
    if isinstance(op, Linear):
        sizes = f"{op.M}x{op.K}x{op.N}"
    else:
        sizes = f"{op.N}x{op.C_in}x{op.H}x{op.W}-{op.C_out}x{op.KH}x{op.KW}s{op.stride_h}g{op.groups}"
    return f"{op.kind}-{sizes}-{op.activation.kind}{'-b' * op.bias}{'-r' * op.residual}"


OPS = {title(op): op for op in make_ops()}


def shares(op: AnyOp) -> Iterator[Share]:
    """All of the op; and of either axis the first, a middle and the last part."""
    yield Share("channel", 0, op.units("channel"))
    for axis in op.axes:
        step = op.step(axis)
        count = op.units(axis) // step
        ends = sorted({0, count // 3 * step, (2 * count // 3) * step, count * step})
        yield from (Share(axis, a, b) for a, b in pairwise(ends) if b - a < op.units(axis))


def supported(variants: Sequence[Any], op: AnyOp, *more: Any) -> list[str]:
    return [v.name for v in variants if v.supports(op.columns(), *more)[0]]


class Bench(OneOp):
    """One layer with random weights."""

    def __init__(self, op: AnyOp, sync: Sync | None) -> None:
        super().__init__(op, random_constants(op.array_shapes, seed=3), sync, lambda role, shape: roomy(shape))

    def check_share(self, share: Share) -> None:
        part = self.op.part(share.axis, share.start, share.stop)
        self.check(part.output, *_reference(self.op, self.canonical()[0]))


def _reference(op: AnyOp, arrays: list[Array | None]) -> tuple[Array, Array]:
    """The result, and how far fp32 may be off: K products summed in any order, then bias, residual, activation."""
    expected = op.reference(arrays)
    plain = replace(op, activation=Activation())
    absolute = plain.reference([None if a is None else np.abs(a) for a in arrays])
    terms = op.K if isinstance(op, Linear) else op.KH * op.KW * op.C_in // op.groups
    bound = (terms + 4) * EPS * absolute
    if op.activation.kind not in ("none", "relu", "clip", "leaky_relu"):
        # Slopes are at most 1.5; exp, tanh and erf may be off by 16 units in the last place.
        bound = 1.5 * bound + 32 * EPS * (1 + np.abs(expected))
    return expected, bound


def task(side: Side, share: Share, implementation: str, wait_for: int = 0) -> Task:
    return Task(side, "layer", share.axis, share.start, share.stop, implementation, wait_for)


def test_the_table_reaches_every_variant() -> None:
    """A new kernel or routine that no shape of the table suits would go untested."""
    wide = GpuTraits(1, 16, 32, cpu=True)
    layers = {kind: KERNELS[kind] for kind in SPLIT_OPS}
    for table, more in ((layers, (wide,)), (CPU_VARIANTS, ())):
        for kind, variants in table.items():
            reached = {n for op in OPS.values() if op.kind == kind for n in supported(variants, op, *more)}
            assert reached == {v.name for v in variants}


@pytest.mark.parametrize("name", OPS)
def test_kernels(sampled_link: Link, name: str) -> None:
    op, sync = OPS[name], open_link(sampled_link)
    bench = Bench(op, sync)
    for share in shares(op):
        part = op.part(share.axis, share.start, share.stop).op
        for kernel in supported(KERNELS[op.kind], part, sync.session.traits):  # type: ignore[arg-type]
            bench.run([task("gpu", share, kernel)])
            bench.check_share(share)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_in_kernels(sampled_link: Link, kind: str) -> None:
    """Full vectors and a remainder, over values on both sides of every bend."""
    op = Linear(1, 4, 37, bias=True, activation=activation(kind))
    bench = Bench(op, open_link(sampled_link))
    bench.inputs["x"] *= 4
    share = Share("channel", 0, 37)
    bench.run([task("gpu", share, "linear_tile")])
    bench.check_share(share)


@pytest.mark.parametrize("name", OPS)
def test_cpu_routines(name: str) -> None:
    op = OPS[name]
    bench = Bench(op, None)
    for share in shares(op):
        part = op.part(share.axis, share.start, share.stop).op
        for routine in supported(CPU_VARIANTS[op.kind], part):  # type: ignore[arg-type]
            bench.run([task("cpu", share, routine)])
            bench.check_share(share)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_in_cpu_routines(kind: str) -> None:
    bench = Bench(Linear(1, 4, 37, bias=True, activation=activation(kind)), None)
    bench.inputs["x"] *= 4
    share = Share("channel", 0, 37)
    bench.run([task("cpu", share, "numpy_matmul")])
    bench.check_share(share)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("side", ["gpu", "cpu"])
def test_not_a_number_stays_so(sampled_link: Link, kind: str, side: Side) -> None:
    """A fault upstream must not come out as a number, nor reach what does not depend on it."""
    bench = Bench(Linear(6, 4, 37, bias=True, activation=activation(kind)), open_link(sampled_link))
    bench.inputs["x"][2, 1] = np.nan
    share = Share("channel", 0, 37)
    bench.run([task(side, share, "linear_tile" if side == "gpu" else "numpy_matmul")])
    output = bench.canonical()[1]
    np.testing.assert_array_equal(np.isnan(output), np.arange(6)[:, None] == np.full(37, 2))


@pytest.mark.parametrize("name", OPS)
def test_both_sides_make_up_the_layer(sampled_link: Link, name: str) -> None:
    """Every kernel for the first units beside every CPU routine for the rest."""
    op, sync = OPS[name], open_link(sampled_link)
    bench = Bench(op, sync)
    for axis in op.axes:
        cut = op.units(axis) // op.step(axis) // 2 * op.step(axis)
        if cut == 0:
            continue
        first, rest = Share(axis, 0, cut), Share(axis, cut, op.units(axis))
        parts = [op.part(s.axis, s.start, s.stop).op for s in (first, rest)]
        for kernel in supported(KERNELS[op.kind], parts[0], sync.session.traits):  # type: ignore[arg-type]
            for routine in supported(CPU_VARIANTS[op.kind], parts[1]):  # type: ignore[arg-type]
                bench.run([task("gpu", first, kernel), task("cpu", rest, routine)])
                bench.check_share(Share("channel", 0, op.units("channel")))
