"""A part of an op is an op: joined parts equal the whole, and every launch covers its output once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_ops import AnyOp, canonical_arrays, convs, cuts, linears, ops

from coexec.kernels import KERNELS
from coexec.kernels.variant import GpuTraits, Tile
from coexec.launch import launch
from coexec.layout import Array
from coexec.ops.base import SplitOp, stack_columns
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear


def boxed(arrays: list[Array | None], boxes: tuple[object, ...]) -> list[Array | None]:
    return [
        a if a is None or box is None else a[box]  # type: ignore[index]
        for a, box in zip(arrays, boxes, strict=True)
    ]


@given(st.data())
def test_joined_parts_equal_the_whole(data: st.DataObject) -> None:
    op: AnyOp = data.draw(ops)
    axis, cut = data.draw(cuts(op))
    arrays = canonical_arrays(op)
    whole = op.reference(arrays)
    joined = np.full(whole.shape, np.nan)
    for start, stop in ((0, cut), (cut, op.units(axis))):
        if start < stop:
            part = op.part(axis, start, stop)
            assert type(part.op) is type(op)
            target = joined[part.output]
            result = part.op.reference(boxed(arrays, part.inputs))
            assert result.shape == target.shape
            joined[part.output] = result
    np.testing.assert_allclose(joined, whole, rtol=1e-12, atol=1e-12)


@given(st.data())
def test_parts_of_parts_equal_the_whole(data: st.DataObject) -> None:
    """First by rows, then by channels: what a chain of cuts leaves is still the same layer."""
    op: AnyOp = data.draw(ops)
    row = data.draw(st.integers(1, op.units("row")))
    arrays = canonical_arrays(op)
    first = op.part("row", 0, row)
    inner = first.op
    channel = inner.step("channel") * data.draw(st.integers(1, inner.units("channel") // inner.step("channel")))
    second = inner.part("channel", 0, channel)
    result = second.op.reference(boxed(boxed(arrays, first.inputs), second.inputs))
    expected = op.reference(arrays)[first.output][second.output]
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@given(st.data())
def test_cut_columns_are_the_fields_of_the_parts(data: st.DataObject) -> None:
    """Many ranges in one call give what ``part`` gives for each."""
    op: AnyOp = data.draw(ops)
    axis = data.draw(st.sampled_from(op.axes))
    step = op.step(axis)
    ends = st.integers(0, op.units(axis) // step)
    ranges = [sorted(pair) for pair in data.draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=6))]
    ranges = [[a * step, b * step] for a, b in ranges if a < b]
    assume(ranges)
    start, stop = np.array(ranges).T
    columns = op.cut_columns(axis, op.columns(), start, stop)
    for i, (a, b) in enumerate(ranges):
        part = op.part(axis, a, b).op
        for field in fields(part):  # type: ignore[arg-type]
            if field.name != "activation":
                assert columns[field.name][i] == getattr(part, field.name), field.name
        assert part.units(axis) == b - a


@given(st.data())
def test_logical_boxes_hold_what_the_parts_touch(data: st.DataObject) -> None:
    op: AnyOp = data.draw(ops)
    axis, cut = data.draw(cuts(op))
    assume(cut > 0)
    part = op.part(axis, 0, cut)
    shapes = [op.array_shapes.get(role) for role in ("x", "weight", "bias", "residual", "y")]
    if isinstance(op, Linear) and data.draw(st.booleans()):  # x may have more leading dimensions
        lead = data.draw(st.sampled_from([d for d in range(1, op.M + 1) if op.M % d == 0]))
        for port in (0, 3, 4):
            if (shape := shapes[port]) is not None:
                shapes[port] = (lead, op.M // lead, shape[-1])
    marks = [None if shape is None else np.zeros(shape, bool) for shape in shapes]
    output = marks[4]
    assert output is not None
    inputs, canonical_output = op.canonical(marks[:4], output)
    for port, (array, box) in enumerate(zip(inputs, part.inputs, strict=True)):
        logical = marks[port]
        if array is None or logical is None:
            continue
        array[... if box is None else box] = True
        assert_holds(logical, op.logical_box(box, port, logical.shape))
    canonical_output[part.output] = True
    assert_holds(output, op.logical_box(part.output, -1, output.shape))


def assert_holds(touched: Array, box: tuple[slice, ...]) -> None:
    assert touched.any()
    outside = touched.copy()
    outside[box] = False
    assert not outside.any()


# Launches ------------------------------------------------------------------------------------------------


def columns_of(width: int, n0: int, n: int, vectors: int) -> Iterator[slice]:
    """Columns that the vectors of one panel store, the last one shortened."""
    for v in range(vectors):
        first = n0 + v * width
        if first < n:
            yield slice(first, min(first + width, n))


def linear_tile(op: Linear, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of linear_tile.cl for one work-item."""
    first = tile.arguments["panels_first"]
    mr, nv, vw = (tile.defines[name] for name in ("MR", "NV", "VW"))
    panel, m0 = group[0 if first else 1], group[1 if first else 0] * mr
    for i in range(mr):
        if m0 + i < op.M:
            for columns in columns_of(vw, panel * nv * vw, op.N, nv):
                counts[m0 + i, columns] += 1


def conv2d_direct(op: Conv2d, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of conv2d_direct.cl for one work-item."""
    first = tile.arguments["panels_first"]
    mr, nv, vw = (tile.defines[name] for name in ("MR", "NV", "VW"))
    panel, rest = group[0 if first else 1], group[1 if first else 0]
    tiles, channels = -(-op.OW // mr), op.C_out // op.groups
    ow, rest = rest % tiles * mr, rest // tiles
    oh, n = rest % op.OH, rest // op.OH
    own, channel = panel // tile.arguments["panels"], panel % tile.arguments["panels"] * nv * vw
    assert own < op.groups
    for i in range(mr):
        if ow + i < op.OW:
            for columns in columns_of(vw, channel, channels, nv):
                counts[n, oh, ow + i, own * channels :][columns] += 1


def conv2d_depthwise(op: Conv2d, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of conv2d_depthwise.cl for one work-item."""
    mr, vw = tile.defines["MR"], tile.defines["VW"]
    tiles = -(-op.OW // mr)
    ow, rest = group[0] % tiles * mr, group[0] // tiles
    oh, n = rest % op.OH, rest // op.OH
    for c0 in range(0, op.C_out, vw):
        for i in range(mr):
            if ow + i < op.OW:
                counts[n, oh, ow + i, c0 : c0 + vw] += 1


SIMULATIONS: dict[str, Callable[..., None]] = {f.__name__: f for f in (linear_tile, conv2d_direct, conv2d_depthwise)}

traits_strategy = st.builds(
    GpuTraits,
    compute_units=st.integers(1, 64),
    vector_width=st.sampled_from([1, 4, 8, 16]),
    vector_registers=st.sampled_from([16, 32]),
    cpu=st.booleans(),
)


def output_shape(op: AnyOp) -> tuple[int, ...]:
    return (op.M, op.N) if isinstance(op, Linear) else (op.N, op.OH, op.OW, op.C_out)


def test_every_kernel_has_a_simulation() -> None:
    assert set(SIMULATIONS) == {variant.name for variants in KERNELS.values() for variant in variants}


@pytest.mark.parametrize("name", SIMULATIONS)
@given(data=st.data(), traits=traits_strategy)
def test_nd_range_covers_each_output_once(name: str, data: st.DataObject, traits: GpuTraits) -> None:
    op: AnyOp = data.draw(linears(40) if name.startswith("linear") else convs(40))
    if name == "conv2d_depthwise":
        assert isinstance(op, Conv2d)
        groups = data.draw(st.integers(2, 40))
        op = replace(op, C_in=groups, C_out=groups, groups=groups)
    variant, tile = launch(op.kind, op.columns(), traits, name).one()
    assert variant.name == name
    counts = np.zeros(output_shape(op), int)
    for group in np.ndindex(*tile.global_size):
        SIMULATIONS[name](op, tile, group, counts)
    np.testing.assert_array_equal(counts, 1)


@given(data=st.data(), traits=traits_strategy)
def test_packed_weights_have_the_size_that_is_announced(data: st.DataObject, traits: GpuTraits) -> None:
    op: AnyOp = data.draw(ops)
    weight, bias = canonical_arrays(op)[1:3]
    assert weight is not None
    for variant in KERNELS[op.kind]:
        if not variant.supports(op.columns(), traits)[0]:
            continue
        launches = launch(op.kind, op.columns(), traits, variant.name)
        packed, padded_bias = variant.pack(op, launches.one()[1], weight, bias)
        announced = int(launches.tiling.packed_bytes[0])
        assert announced <= packed.nbytes <= announced + 4 * weight.shape[-2]  # conv2d_direct: a row of zeros after
        assert packed.dtype == padded_bias.dtype == np.float32
        assert np.count_nonzero(packed) == np.count_nonzero(weight.astype(np.float32))
        assert int(launches.tiling.tile_flops[0]) >= op.flops()


@given(data=st.data(), traits=traits_strategy)
def test_many_launches_in_one_call_are_the_same_as_one_by_one(data: st.DataObject, traits: GpuTraits) -> None:
    kind = data.draw(st.sampled_from([linears(40), convs(40)]))
    many: list[SplitOp] = data.draw(st.lists(kind, min_size=1, max_size=5))
    together = launch(many[0].kind, stack_columns([op.columns() for op in many]), traits)
    assert len(together) == len(many)
    for i, op in enumerate(many):
        variant, tile = launch(op.kind, op.columns(), traits).one()
        other_variant, other = together.one(i)
        assert other_variant is variant
        assert other.global_size == tile.global_size
        # What another variant of the batch needs and this one has not is 0.
        assert {k: v for k, v in other.defines.items() if v} == {k: v for k, v in tile.defines.items() if v}
        assert {k: v for k, v in other.arguments.items() if v} == {k: v for k, v in tile.arguments.items() if v}
