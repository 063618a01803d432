"""Every kernel of the ops that are not split, on every device, against the op's reference in float64.

The output has room around it, see one_op.py: what lies beside it must keep its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from one_op import EPS, OneOp, open_link, roomy
from random_ops import F4, roles

from coexec.experiments.conformance import Link
from coexec.kernels import KERNEL_BY_NAME, KERNELS
from coexec.kernels.variant import GpuTraits
from coexec.layout import Array, Layout, Shape
from coexec.ops.attention import Attention
from coexec.ops.base import ArraySpec, DeviceOp
from coexec.ops.global_pool import GlobalPool
from coexec.ops.pool import Pool
from coexec.ops.pool2d import Pool2d
from coexec.ops.row_norm import RowNorm
from coexec.ops.split_ops import SPLIT_OPS
from coexec.ops.window import Window
from coexec.plan import Task

# N, C, H, W, kernel, strides, padding before, padding after, dilations, ceil mode
POOL_SHAPES: list[tuple[Any, ...]] = [
    (1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), False),
    (1, 16, 12, 10, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), False),
    (2, 37, 9, 11, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), False),
    (1, 5, 10, 9, (3, 2), (2, 3), (0, 1), (2, 0), (1, 1), True),
    (1, 33, 13, 8, (3, 3), (1, 1), (2, 2), (2, 2), (2, 2), False),
    (1, 7, 5, 6, (2, 3), (3, 1), (1, 2), (0, 2), (3, 2), True),
    (1, 100, 4, 40, (1, 5), (1, 4), (0, 2), (0, 2), (1, 1), False),
    (1, 3, 2, 2, (1, 1), (1, 1), (2, 2), (2, 2), (1, 1), False),  # windows that see nothing but padding
]
GLOBAL_SHAPES = [(1, 64, 7, 7), (2, 19, 1, 5), (1, 1, 30, 20)]
# M, N
NORM_SHAPES = [(1, 1), (1, 3), (3, 16), (50, 768), (7, 1001), (1, 5003), (300, 6), (33, 33)]
# B, H, T, S, D, E, scale
ATTENTION_SHAPES: list[tuple[Any, ...]] = [
    (1, 1, 1, 1, 1, 1, 1.0),
    (1, 12, 50, 50, 64, 64, 0.125),
    (2, 3, 7, 9, 5, 6, -0.7),
    (1, 2, 33, 17, 8, 40, 1.0),
    (1, 2, 1, 300, 16, 3, 0.25),
    (3, 1, 100, 3, 4, 70, 0.5),
    (1, 40, 5, 16, 32, 32, 8.0),  # weights of almost 0 and 1
    (2, 2, 13, 32, 1, 1, 1.0),
]


def pool2d(function: str, shape: tuple[Any, ...], counts_padding: bool) -> DeviceOp:
    op = Pool(function, Window(*shape[4:]), counts_padding).for_device([ArraySpec(shape[:4], F4)])
    assert op is not None
    return op


def make_ops() -> dict[str, DeviceOp]:
    ops: dict[str, DeviceOp] = {}
    for i, shape in enumerate(POOL_SHAPES):
        text = "x".join(map(str, shape[:4]))
        ops[f"max-{text}-{i}"] = pool2d("max", shape, False)
        ops[f"average-{text}-{i}"] = pool2d("average", shape, False)
        ops[f"average-padded-{text}-{i}"] = pool2d("average", shape, True)
    for shape in GLOBAL_SHAPES:
        for function in ("max", "average"):
            op = GlobalPool(function).for_device([ArraySpec(shape, F4)])
            assert op is not None
            ops[f"global-{function}-{'x'.join(map(str, shape))}"] = op
    for i, (m, n) in enumerate(NORM_SHAPES):
        ops[f"norm-{m}x{n}"] = RowNorm(m, n, bias=i % 3 != 0, epsilon=(1e-5, 0.2)[i % 2])
    for shape in ATTENTION_SHAPES:
        ops["attention-" + "x".join(map(str, shape))] = Attention(*shape)
    return ops


OPS = make_ops()


def pool_bound(op: Pool2d, arrays: list[Array], expected: Array) -> Array:
    """Nothing for a maximum; the sum of all taps in any order, and a division, for a mean."""
    if not op.average:
        return np.zeros_like(expected)
    return (op.KH * op.KW + 2) * EPS * op.reference([np.abs(arrays[0])])


def norm_bound(op: RowNorm, arrays: list[Array], expected: Array) -> Array:
    """The mean's error shifts every element; it and the variance's change the factor."""
    x, scale = arrays[0].astype(np.float64), np.abs(arrays[1])
    distance = np.abs(x - x.mean(axis=1, keepdims=True))
    mean_off = (op.N + 2) * EPS * np.abs(x).mean(axis=1, keepdims=True)
    power = (distance**2).mean(axis=1, keepdims=True) + op.epsilon
    power_off = 2 * (mean_off + 2 * EPS * distance.max(axis=1, keepdims=True)) * distance.mean(axis=1, keepdims=True)
    power_off += mean_off**2 + (op.N + 4) * EPS * power
    inverse = scale / np.sqrt(power)
    return (mean_off + (8 * EPS + power_off / power) * distance) * inverse + 4 * EPS * np.abs(expected)


def attention_bound(op: Attention, arrays: list[Array], expected: Array) -> Array:
    """The scores' errors are the weights' relative errors; a weighted sum of any order follows."""
    q, k, v = (a.astype(np.float64) for a in arrays)
    scores_off = (op.D + 3) * EPS * (np.abs(q) @ np.abs(k) * abs(op.scale)).max(axis=-1, keepdims=True)
    spread = np.ptp(q @ k * op.scale, axis=-1, keepdims=True)
    relative = 2 * np.expm1(2 * scores_off + 2 * EPS * spread + 8 * EPS) + (2 * op.S + 8) * EPS
    return relative * op.reference([arrays[0], arrays[1], np.abs(v)])


BOUNDS: dict[str, Callable[..., Array]] = {"pool2d": pool_bound, "row_norm": norm_bound, "attention": attention_bound}
"""How far fp32 may be off."""


def layout(op: DeviceOp) -> Callable[[str, Shape], Layout]:
    """Heads beside one another in a row, as linear layers leave them; keys either way round."""
    if not isinstance(op, Attention):
        return lambda role, shape: roomy(shape)

    def of(role: str, shape: Shape) -> Layout:
        border = ((0, 0), (1, 2), (0, 0), (0, 0))
        if role == "k":
            return Layout((0, 3, 1, 2) if op.T % 2 else (0, 1, 2, 3), pitch=max(shape[2:]) + 5, border=border)
        return Layout((0, 2, 1, 3), pitch=shape[3] + 5, border=border)

    return of


def bench(op: DeviceOp, link: Link) -> OneOp:
    rng, shapes = np.random.default_rng(3), op.array_shapes
    names = [roles(op)[port] for port in op.constants if port < len(roles(op))]
    constants: Mapping[str, Array] = {name: rng.standard_normal(shapes[name], np.float32) for name in names}
    return OneOp(op, constants, open_link(link), layout(op))


def run_and_check(bench: OneOp, kernel: str) -> None:
    bench.run([Task("gpu", "layer", "none", 0, 1, kernel, 0)])
    inputs, output = bench.canonical()
    expected = bench.op.reference(inputs)
    bench.check((slice(None),) * output.ndim, expected, BOUNDS[bench.op.kind](bench.op, inputs, expected))


def supported(op: DeviceOp, traits: GpuTraits) -> list[str]:
    return [v.name for v in KERNELS[op.kind] if v.supports(op.columns(), traits)[0]]


def test_the_table_reaches_every_kernel() -> None:
    """A new kernel that no op of the table suits would go untested."""
    kinds = set(KERNELS) - set(SPLIT_OPS)
    wide = GpuTraits(1, 16, 32, cpu=True)
    reached = {name for op in OPS.values() for name in supported(op, wide)}
    assert reached == {name for name, kernel in KERNEL_BY_NAME.items() if kernel.kind in kinds}
    assert set(BOUNDS) == kinds


@pytest.mark.parametrize("name", OPS)
def test_kernels(sampled_link: Link, name: str) -> None:
    one = bench(OPS[name], sampled_link)
    assert one.sync is not None
    kernels = supported(one.op, one.sync.session.traits)
    assert kernels
    for kernel in kernels:
        run_and_check(one, kernel)


def test_norm_of_rows_far_from_zero(sampled_link: Link) -> None:
    """The variance is that around the mean: nothing cancels."""
    one = bench(RowNorm(5, 1000, bias=True), sampled_link)
    one.inputs["x"] += 1000
    run_and_check(one, "row_norm_two_pass")


def test_attention_to_scores_of_any_size(sampled_link: Link) -> None:
    """Exponentials neither overflow nor all vanish."""
    for offset in (-30.0, 30.0):
        one = bench(Attention(1, 1, 6, 21, 8, 9), sampled_link)
        one.inputs["q"][...] = abs(one.inputs["q"])
        one.inputs["k"] += offset
        run_and_check(one, "attention_tile")


def test_maximum_of_negative_numbers_infinities_and_what_is_no_number(sampled_link: Link) -> None:
    op = pool2d("max", POOL_SHAPES[2], False)
    one = bench(op, sampled_link)
    one.inputs["x"][...] = -1e30 - abs(one.inputs["x"])
    one.inputs["x"][:, ::3, ::2] = -np.inf
    one.inputs["x"][:, 1::3, 4:] = np.inf
    one.inputs["x"][:, 2, 2] = np.nan
    one.run([Task("gpu", "layer", "none", 0, 1, "pool2d_row", 0)])
    inputs, output = one.canonical()
    np.testing.assert_array_equal(output, op.reference(inputs).astype(np.float32))
