"""Layouts: where every element lies, by its own formula, and round trips through pack, view and unpack."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.errors import InputError
from coexec.layout import SHORT_AXIS, Array, Layout, Shape, copy_into


@st.composite
def strided(draw: st.DrawFn) -> tuple[Layout, Shape]:
    """A layout with any order, pitch and border, and a shape for it; empty axes included."""
    rank = draw(st.integers(0, 5))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank)))
    order = tuple(draw(st.permutations(range(rank))))
    edge = st.tuples(st.integers(0, 2), st.integers(0, 2))
    border = tuple(draw(st.lists(edge, min_size=rank, max_size=rank))) if draw(st.booleans()) else ()
    pitch = 0
    if rank > 1 and draw(st.booleans()):
        inner = order[-1]
        pitch = shape[inner] + (sum(border[inner]) if border else 0) + draw(st.integers(1, 3))
    return Layout(order, pitch=pitch, border=border), shape


@st.composite
def blocked(draw: st.DrawFn) -> tuple[Layout, Shape]:
    """A layout of channel blocks (NCHWc and others)."""
    rank = draw(st.integers(2, 4))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    return Layout(tuple(draw(st.permutations(range(rank)))), channel_block=draw(st.integers(2, 4))), shape


any_layout = st.one_of(strided(), blocked())


def place(layout: Layout, shape: Shape, index: Shape) -> int:
    """Where one element lies: the formula that a kernel would use, axis by axis from the outermost."""
    block = layout.channel_block
    offset = 0
    for axis in layout.order:
        before, after = layout.border[axis] if layout.border else (0, 0)
        size, position = shape[axis] + before + after, index[axis] + before
        if axis == 1 and block > 1:
            size, position = -(-size // block), position // block
        innermost = axis == layout.order[-1]
        offset = offset * (layout.pitch if innermost and layout.pitch else size) + position
    return offset * block + index[1] % block if block > 1 else offset


def numbered(shape: Shape) -> Array:
    """Elements 1, 2, 3, ...: none is 0 and no two are equal."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


@given(any_layout)
def test_every_element_lies_where_the_formula_says(case: tuple[Layout, Shape]) -> None:
    layout, shape = case
    array = numbered(shape)
    buffer = layout.pack(array)
    assert buffer.size == layout.size(shape)
    for index in itertools.product(*map(range, shape)):
        assert buffer[place(layout, shape, index)] == array[index]
    assert np.count_nonzero(buffer) == array.size, "the rest of the buffer is not 0"


@given(any_layout)
def test_unpack_reverses_pack(case: tuple[Layout, Shape]) -> None:
    layout, shape = case
    array = numbered(shape)
    buffer = layout.pack(array)
    result = layout.unpack(buffer, shape)
    np.testing.assert_array_equal(result, array)
    assert not np.shares_memory(result, buffer)


@given(strided())
def test_a_view_writes_its_elements_and_nothing_else(case: tuple[Layout, Shape]) -> None:
    layout, shape = case
    buffer = np.full(layout.size(shape) + 7, np.nan, np.float32)  # larger than needed, as buffers of devices are
    view = layout.view(buffer, shape)
    assert view.shape == shape and isinstance(view, np.ndarray)
    assert np.isnan(view).all()
    view[...] = numbered(shape)
    np.testing.assert_array_equal(layout.unpack(buffer, shape), numbered(shape))
    assert np.count_nonzero(~np.isnan(buffer)) == view.size


@pytest.mark.parametrize(
    ("rank", "order"), [(0, ()), (1, (0,)), (2, (0, 1)), (3, (0, 2, 1)), (4, (0, 2, 3, 1)), (5, (0, 2, 3, 4, 1))]
)
def test_channels_last(rank: int, order: tuple[int, ...]) -> None:
    assert Layout.channels_last(rank) == Layout(order)
    assert Layout.plain(rank).order == tuple(range(rank))


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": (0, 0)},
        {"order": (1, 2)},
        {"order": (0, 1), "border": ((0, 0),)},
        {"order": (0, 1), "channel_block": 0},
        {"order": (0, 1), "pitch": -1},
        {"order": (0,), "channel_block": 4},
        {"order": (0, 1), "channel_block": 4, "pitch": 8},
    ],
)
def test_layouts_that_make_no_sense(arguments: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Layout(**arguments)  # type: ignore[arg-type]


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="rank 2"):
        Layout.plain(2).size((1, 2, 3))
    with pytest.raises(InputError, match="pitch 3"):
        Layout((0, 1), pitch=3).size((2, 4))
    with pytest.raises(InputError, match="no strided view"):
        Layout((0, 1), channel_block=4).view(np.zeros(16, np.float32), (2, 4))


@given(data=st.data())
def test_copies_into_any_strides(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 4))
    size = st.sampled_from([0, 1, 2, 3, SHORT_AXIS, SHORT_AXIS + 1])
    shape = tuple(data.draw(st.lists(size, min_size=rank, max_size=rank)))
    value = permuted(shape, data.draw(st.permutations(range(rank))))
    value[...] = numbered(shape)
    target = permuted(shape, data.draw(st.permutations(range(rank))))
    copy_into(target, value)
    np.testing.assert_array_equal(target, numbered(shape))


def permuted(shape: Shape, order: list[int]) -> Array:
    """An array of ``shape`` of which ``order`` names the axes from the outermost in memory."""
    stored = np.zeros([shape[axis] for axis in order], np.float32)
    return stored.transpose(np.argsort(order)) if order else stored
