"""A part of an op is an op: joined parts equal the whole, and every launch covers its output once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_ops import (
    BY_KIND,
    AnyOp,
    canonical_arrays,
    cuts,
    depthwise_convs,
    ops,
    plain_3x3_convs,
    roles,
)

from coexec.kernels import KERNEL_BY_NAME, KERNELS
from coexec.kernels.variant import GpuTraits, Tile
from coexec.launch import launch
from coexec.layout import Array
from coexec.ops.attention import Attention
from coexec.ops.base import DeviceOp, SplitOp, stack_columns
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.ops.pool2d import Pool2d
from coexec.ops.row_norm import RowNorm


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


def shares(tile: Tile, group: tuple[int, ...], count: int) -> range:
    """The tiles that a work-group takes, of so many."""
    share = tile.arguments["share"]
    return range(group[0] * share, min((group[0] + 1) * share, count))


def linear_tile(op: Linear, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of linear_tile.cl for one work-item."""
    mr, nv, vw = (tile.defines[name] for name in ("MR", "NV", "VW"))
    tiles, panels = -(-op.M // mr), -(-op.N // (nv * vw))
    for t in shares(tile, group, tiles * panels):
        panel, row = (t % panels, t // panels) if tile.arguments["panels_first"] else (t // tiles, t % tiles)
        for m in range(row * mr, min(op.M, (row + 1) * mr)):
            for columns in columns_of(vw, panel * nv * vw, op.N, nv):
                counts[m, columns] += 1


def conv2d_direct(op: Conv2d, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of conv2d_direct.cl for one work-item."""
    mr, nv, vw = (tile.defines[name] for name in ("MR", "NV", "VW"))
    pixels, panels, total = (tile.arguments[name] for name in ("pixels", "panels", "total_panels"))
    tiles, channels = -(-pixels // mr), op.C_out // op.groups
    for t in shares(tile, group, tiles * total):
        panel, p0 = (t % total, t // total * mr) if tile.arguments["panels_first"] else (t // tiles, t % tiles * mr)
        own, channel = panel // panels, panel % panels * nv * vw
        assert own < op.groups
        for p in range(p0, min(pixels, p0 + mr)):
            n, oh, ow = p // (op.OH * op.OW), p // op.OW % op.OH, p % op.OW
            for columns in columns_of(vw, channel, channels, nv):
                counts[n, oh, ow, own * channels :][columns] += 1


def conv2d_depthwise(op: Conv2d, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of conv2d_depthwise.cl for one work-item."""
    mr, vw, across = tile.defines["MR"], tile.defines["VW"], -(-op.OW // tile.defines["MR"])
    for t in shares(tile, group, tile.arguments["tiles"]):
        oh, n = t // across % op.OH, t // across // op.OH
        for ow in range(t % across * mr, min(op.OW, (t % across + 1) * mr)):
            for columns in columns_of(vw, 0, op.C_out, -(-op.C_out // vw)):
                counts[n, oh, ow, columns] += 1


def conv2d_winograd(op: Conv2d, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of conv2d_winograd.cl for one work-item."""
    mr, nv, vw, wm = (tile.defines[name] for name in ("MR", "NV", "VW", "WM"))
    tiles, block, rows, panels, own = (
        tile.arguments[name] for name in ("tiles", "block", "rows", "panels", "own_panels")
    )
    across, down, area, nw = -(-op.OW // wm), -(-op.OH // wm), (wm + 2) ** 2, nv * vw
    per_group = -(-tiles // tile.global_size[0])
    first, p0 = group[0] * per_group, group[1] * own
    last, p1 = min(tiles, first + per_group), min(panels, p0 + own)
    number = group[1] * tile.global_size[0] + group[0]
    assert 4 * (number + 1) * area * rows * (op.C_in + own * nw) <= tile.scratch_bytes
    for t0 in range(first, last, block):
        count = min(block, last - t0)
        assert -(-count // mr) * mr <= rows
        for t in range(t0, t0 + count):
            n, ty, tx = t // (across * down), t // across % down, t % across
            for i, j in np.ndindex(wm, wm):
                oh, ow = ty * wm + i, tx * wm + j
                if oh < op.OH and ow < op.OW:
                    for columns in columns_of(vw, p0 * nw, min(op.C_out, p1 * nw), (p1 - p0) * nv):
                        counts[n, oh, ow, columns] += 1


def pool2d_row(op: Pool2d, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of pool2d_row.cl for one work-item."""
    pixels, channels = (tile.arguments[name] for name in ("pixels", "channels"))
    ranges = -(-op.OW // pixels)
    row, first = group[0] // ranges, group[0] % ranges * pixels
    oh, n, c0 = row % op.OH, row // op.OH, group[1] * channels
    for ow in range(first, min(op.OW, first + pixels)):
        c1 = min(op.C, c0 + channels)
        for columns in columns_of(tile.defines["VW"], c0, c1, channels):
            counts[n, oh, ow, columns] += 1


def row_norm_two_pass(op: RowNorm, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of row_norm_two_pass.cl for one work-item."""
    rows = tile.arguments["rows"]
    for m in range(group[0] * rows, min(op.M, (group[0] + 1) * rows)):
        for columns in columns_of(tile.defines["VW"], 0, op.N, op.N):
            counts[m, columns] += 1


def attention_tile(op: Attention, tile: Tile, group: tuple[int, ...], counts: Array) -> None:
    """The index arithmetic of attention_tile.cl for one work-item."""
    mr, nv, vw = (tile.defines[name] for name in ("MR", "NV", "VW"))
    queries, wide = tile.arguments["queries"], -(-op.S // (nv * vw)) * nv * vw
    number = group[1] * tile.global_size[0] + group[0]
    assert 4 * (number + 1) * (op.D + mr) * wide <= tile.scratch_bytes
    first = group[0] * queries
    last = min(op.T, first + queries)
    for t in range(first, last, mr):
        for e in range(0, op.E, nv * vw):
            for columns in columns_of(vw, e, op.E, nv):
                counts[group[1] // op.H, group[1] % op.H, t : min(t + mr, last), columns] += 1


SIMULATIONS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        linear_tile,
        conv2d_depthwise,
        conv2d_direct,
        conv2d_winograd,
        pool2d_row,
        row_norm_two_pass,
        attention_tile,
    )
}
OWN_OPS = {"conv2d_depthwise": depthwise_convs, "conv2d_winograd": plain_3x3_convs}
"""For the kernels that take few of the ops of their kind."""

traits_strategy = st.builds(
    GpuTraits,
    compute_units=st.integers(1, 64),
    vector_width=st.sampled_from([1, 4, 8, 16]),
    vector_registers=st.sampled_from([16, 32]),
    cpu=st.booleans(),
)


def output_shape(op: DeviceOp) -> tuple[int, ...]:
    """Of the canonical output."""
    shapes = op.array_shapes
    inputs = [np.empty(shapes[role]) if role in shapes else None for role in roles(op)]
    return op.canonical(inputs, np.empty(shapes["y"]))[1].shape


def test_every_kernel_has_a_simulation() -> None:
    assert set(SIMULATIONS) == set(KERNEL_BY_NAME)
    assert set(BY_KIND) == set(KERNELS)


@pytest.mark.parametrize("name", SIMULATIONS)
@given(data=st.data(), traits=traits_strategy)
def test_nd_range_covers_each_output_once(name: str, data: st.DataObject, traits: GpuTraits) -> None:
    op: DeviceOp = data.draw(OWN_OPS.get(name, BY_KIND[KERNEL_BY_NAME[name].kind])(40))
    variant, tile = launch(op.kind, op.columns(), traits, name).one()
    assert variant.name == name
    counts = np.zeros(output_shape(op), int)
    for group in np.ndindex(*tile.global_size):
        SIMULATIONS[name](op, tile, group, counts)
    np.testing.assert_array_equal(counts, 1)


@pytest.mark.parametrize("name", SIMULATIONS)
@given(data=st.data(), traits=traits_strategy)
def test_packed_weights_have_the_size_that_is_announced(name: str, data: st.DataObject, traits: GpuTraits) -> None:
    op: DeviceOp = data.draw(OWN_OPS.get(name, BY_KIND[KERNEL_BY_NAME[name].kind])(12))
    arrays = canonical_arrays(op)
    launches = launch(op.kind, op.columns(), traits, name)
    packed = KERNEL_BY_NAME[name].pack(op, launches.one()[1], arrays)
    assert all(array.dtype == np.float32 for array in packed)
    announced = int(launches.tiling.packed_bytes[0])
    if not isinstance(op, SplitOp):
        assert announced == 0
        constants = [a for port in op.constants if port < len(arrays) and (a := arrays[port]) is not None]
        assert sum(map(np.count_nonzero, packed)) == sum(a.size for a in constants)
        return
    weight = arrays[1]
    assert weight is not None
    assert announced <= packed[0].nbytes <= announced + 4 * weight.shape[-2]  # conv2d_direct: a row of zeros after
    if name == "conv2d_winograd":  # up to 4 times fewer multiplications, of transformed weights
        assert 4 * int(launches.tiling.tile_flops[0]) >= op.flops()
    else:
        assert int(launches.tiling.tile_flops[0]) >= op.flops()
        assert np.count_nonzero(packed[0]) == np.count_nonzero(weight.astype(np.float32))


@pytest.mark.parametrize("kind", KERNELS)
@given(data=st.data(), traits=traits_strategy)
def test_many_launches_in_one_call_are_the_same_as_one_by_one(
    kind: str, data: st.DataObject, traits: GpuTraits
) -> None:
    own = [OWN_OPS[kernel.name](40) for kernel in KERNELS[kind] if kernel.name in OWN_OPS]
    many: list[DeviceOp] = data.draw(st.lists(st.one_of(BY_KIND[kind](40), *own), min_size=1, max_size=5))
    together = launch(many[0].kind, stack_columns([op.columns() for op in many]), traits)
    assert len(together) == len(many)
    for i, op in enumerate(many):
        variant, tile = launch(op.kind, op.columns(), traits).one()
        other_variant, other = together.one(i)
        assert other_variant is variant
        assert (other.global_size, other.scratch_bytes) == (tile.global_size, tile.scratch_bytes)
        # What another variant of the batch needs and this one has not is 0.
        assert {k: v for k, v in other.defines.items() if v} == {k: v for k, v in tile.defines.items() if v}
        assert {k: v for k, v in other.arguments.items() if v} == {k: v for k, v in tile.arguments.items() if v}
