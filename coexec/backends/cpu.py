"""CPU side: NumPy routines for conv2d and linear, one table.

Each routine is bound once to its arrays (weights prepared, views and scratch laid out) and then called
many times without allocating. The BLAS that NumPy carries uses as many threads as the run allows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coexec.layout import Array, same_memory
from coexec.ops.base import Axis, Ints, SplitOp
from coexec.ops.conv2d import Conv2d, output_height, output_width
from coexec.ops.linear import Linear
from coexec.ops.winograd import INPUT, OUTPUT, plain_3x3, tiles, transformed_weight

Bools = npt.NDArray[np.bool_]
Routine = Callable[[], None]

WINOGRAD_BLOCK_BYTES, WINOGRAD_MOST_BYTES = 1 << 20, 8 << 20
"""Scratch of a block of tile rows: for small weights, and for the largest."""
IM2COL_BLOCK_BYTES = 1 << 19
"""Patches gathered before each matmul: they should still be in the second-level cache when it reads them."""


class Scratch:
    """Working memory that all routines of a model share, since one runs at a time."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.float32)

    def take(self, shape: Sequence[int]) -> Array:
        """An fp32 array of ``shape`` whose content lasts for one call of a routine."""
        size = int(np.prod(shape, dtype=np.int64))
        if size > self._buffer.size:
            self._buffer = np.empty(size, np.float32)
        return self._buffer[:size].reshape(shape)


class CpuVariant(ABC):
    """One way to compute an op on the CPU."""

    name: ClassVar[str]
    kind: ClassVar[str]

    @abstractmethod
    def supports(self, c: Mapping[str, Ints]) -> Bools:
        """Which candidates this routine computes."""

    def suits(self, c: Mapping[str, Ints]) -> Bools:
        """Which of those it is chosen for where a plan names no routine."""
        return np.ones(len(next(iter(c.values()))), np.bool_)

    def alignment(self, axis: Axis) -> int:
        """Distance of cuts that suits the routine (BLAS tiles for channels)."""
        return 8 if axis == "channel" else 1

    @abstractmethod
    def bind(self, op: Any, inputs: Sequence[Array | None], output: Array, scratch: Scratch) -> Routine:
        """A routine over the given canonical arrays (x, weight, bias, residual; all but x, y constant)."""


class NumpyMatmul(CpuVariant):
    """Linear: one matmul straight into the output's columns."""

    name = "numpy_matmul"
    kind = "linear"

    def supports(self, c: Mapping[str, Ints]) -> Bools:
        return np.ones(len(c["M"]), np.bool_)

    def bind(self, op: Linear, inputs: Sequence[Array | None], output: Array, scratch: Scratch) -> Routine:
        x, weight, bias, residual = inputs
        assert x is not None and weight is not None
        kernel = np.ascontiguousarray(weight, np.float32)
        finish = _finisher(op, bias)

        def routine() -> None:
            np.matmul(x, kernel, out=output)
            finish(output, residual)

        return routine


class NumpyPointwise(CpuVariant):
    """1x1 convolution without padding: one matmul over its pixels."""

    name = "numpy_pointwise"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints]) -> Bools:
        unpadded = (c["pad_top"] == 0) & (c["pad_left"] == 0) & (c["pad_bottom"] == 0) & (c["pad_right"] == 0)
        unstrided = (c["stride_h"] == 1) & (c["stride_w"] == 1)
        return np.asarray(unpadded & unstrided & (c["KH"] == 1) & (c["KW"] == 1) & (c["groups"] == 1))

    def bind(self, op: Conv2d, inputs: Sequence[Array | None], output: Array, scratch: Scratch) -> Routine:
        x, weight, bias, residual = inputs
        assert x is not None and weight is not None
        kernel = np.ascontiguousarray(weight[0, 0], np.float32)
        finish = _finisher(op, bias)
        pixels = []
        rows = op.OH if _even(x, output, residual) else 1
        for n in range(op.N):
            for top in range(0, op.OH, rows):
                own = slice(top, top + rows)
                added = None if residual is None else _pixels(residual[n, own])
                pixels.append((_pixels(x[n, own]), _pixels(output[n, own]), added))

        def routine() -> None:
            for source, target, added in pixels:
                np.matmul(source, kernel, out=target)
                finish(target, added)

        return routine


class NumpyIm2col(CpuVariant):
    """Any convolution: patches gathered by one strided copy per block of rows, then a matmul per group."""

    name = "numpy_im2col"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints]) -> Bools:
        return np.ones(len(c["N"]), np.bool_)

    def bind(self, op: Conv2d, inputs: Sequence[Array | None], output: Array, scratch: Scratch) -> Routine:
        x, weight, bias, residual = inputs
        assert x is not None and weight is not None
        groups, c_in, c_out = op.groups, op.C_in // op.groups, op.C_out // op.groups
        taps = op.KH * op.KW * c_in
        kernel = np.ascontiguousarray(weight.reshape(taps, groups, c_out).transpose(1, 0, 2), np.float32)
        finish = _finisher(op, bias)
        padded, fill = _padding(op, x)
        rows = int(im2col_rows(op.columns())[0]) if _even(output, residual) else 1
        columns = scratch.take((groups, rows, op.OW, op.KH, op.KW, c_in))
        blocks = []
        for n in range(op.N):
            patches = _patches(op, padded[n])
            for top in range(0, op.OH, rows):
                count = min(rows, op.OH - top)
                here = columns.reshape(-1)[: groups * count * op.OW * taps]
                target = output[n, top : top + count]
                blocks.append(
                    (
                        patches[:, top : top + count],
                        here.reshape(groups, count, op.OW, op.KH, op.KW, c_in),
                        here.reshape(groups, count * op.OW, taps),
                        _pixels(target).reshape(count * op.OW, groups, c_out).transpose(1, 0, 2)
                        if groups > 1
                        else _pixels(target)[None],
                        _pixels(target),
                        None if residual is None else _pixels(residual[n, top : top + count]),
                    )
                )

        def routine() -> None:
            fill()
            for source, gathered, matrix, products, target, added in blocks:
                np.copyto(gathered, source)
                np.matmul(matrix, kernel, out=products)
                finish(target, added)

        return routine


class NumpyWinograd(CpuVariant):
    """3x3, stride 1: F(4x4, 3x3) or F(2x2, 3x3), all of it as matrix products, a block of tile rows at a time.

    A transform of both axes at once is one product with a Kronecker square of the one-dimensional transform.
    """

    name = "numpy_winograd"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints]) -> Bools:
        return plain_3x3(c)

    def suits(self, c: Mapping[str, Ints]) -> Bools:
        return np.asarray((c["C_in"] >= 16) & (c["C_out"] >= 16) & (tiles(c, 2) >= 8))

    def bind(self, op: Conv2d, inputs: Sequence[Array | None], output: Array, scratch: Scratch) -> Routine:
        x, weight, bias, residual = inputs
        assert x is not None and weight is not None
        m = int(winograd_tile(op.columns())[0])
        a, down, across = m + 2, -(-op.OH // m), -(-op.OW // m)
        to, back = (np.kron(t, t).astype(np.float32) for t in (INPUT[m], OUTPUT[m]))
        kernel = transformed_weight(weight, m)
        padded = np.zeros((op.N, down * m + 2, across * m + 2, op.C_in), np.float32)
        placed, source_rows = op.placed_rows()
        inner, source = padded[:, placed, op.pad_left : op.pad_left + op.W], x[:, source_rows]
        row, pixel, channel = padded.strides[1:]
        finish = _finisher(op, None)
        per_row = 4 * across * (2 * a * a * op.C_in + (a * a + m * m) * op.C_out)
        # Scratch should stay in the cache, but the weights are read again for every block.
        rows = max(1, min(down, max(WINOGRAD_BLOCK_BYTES, min(kernel.nbytes, WINOGRAD_MOST_BYTES)) // per_row))
        memory = scratch.take((rows * per_row // 4,))
        blocks = []
        for n in range(op.N):
            for top in range(0, down, rows):
                count = min(rows, down - top)
                patches = np.lib.stride_tricks.as_strided(
                    padded[n, top * m :],
                    (a, a, count, across, op.C_in),
                    (row, pixel, m * row, m * pixel, channel),
                    writeable=False,
                )
                sizes = [k * count * across for k in (a * a * op.C_in,) * 2 + (a * a * op.C_out, m * m * op.C_out)]
                starts = np.cumsum([0, *sizes])
                gathered, spread, products, tile = (
                    memory[i : i + size] for i, size in zip(starts, sizes, strict=False)
                )
                target = output[n, top * m : min(op.OH, (top + count) * m)]
                blocks.append(
                    (
                        (gathered.reshape(patches.shape), patches),
                        (to, gathered.reshape(a * a, -1), spread.reshape(a * a, -1)),
                        (spread.reshape(a * a, -1, op.C_in), kernel, products.reshape(a * a, -1, op.C_out)),
                        (back, products.reshape(a * a, -1), tile.reshape(m * m, -1)),
                        _tile_copies(tile.reshape(m, m, count, across, op.C_out), target),
                        target,
                        None if residual is None else residual[n, top * m : min(op.OH, (top + count) * m)],
                    )
                )
        one = (m + 2) + 1  # the product that the output transform adds to every output of a tile
        own_bias = None if bias is None else np.ascontiguousarray(bias, np.float32)

        def routine() -> None:
            np.copyto(inner, source)
            for gather, forth, multiply, return_, copies, target, added in blocks:
                np.copyto(*gather)
                np.matmul(forth[0], forth[1], out=forth[2])
                np.matmul(multiply[0], multiply[1], out=multiply[2])
                if own_bias is not None:
                    products = multiply[2][one]
                    np.add(products, own_bias, out=products)
                np.matmul(return_[0], return_[1], out=return_[2])
                for place, values in copies:
                    np.copyto(place, values)
                finish(target, added)

        return routine


class NumpyDepthwise(CpuVariant):
    """Depthwise convolution: one multiply-add over the whole image per tap."""

    name = "numpy_depthwise"
    kind = "conv2d"

    def supports(self, c: Mapping[str, Ints]) -> Bools:
        return np.asarray((c["groups"] > 1) & (c["groups"] == c["C_in"]) & (c["C_out"] == c["C_in"]))

    def bind(self, op: Conv2d, inputs: Sequence[Array | None], output: Array, scratch: Scratch) -> Routine:
        x, weight, bias, residual = inputs
        assert x is not None and weight is not None
        kernel = np.ascontiguousarray(weight[:, :, 0, :], np.float32)
        padded, fill = _padding(op, x)
        product = scratch.take((op.OW, op.C_out))
        finish = _finisher(op, bias)
        rows = []
        for n in range(op.N):
            for oh in range(op.OH):
                taps = [
                    (_window_row(op, padded[n], oh, i, j), kernel[i, j]) for i in range(op.KH) for j in range(op.KW)
                ]
                rows.append((taps, output[n, oh], None if residual is None else residual[n, oh]))

        def routine() -> None:
            fill()
            for taps, target, added in rows:
                np.multiply(*taps[0], out=target)
                for source, tap in taps[1:]:
                    np.multiply(source, tap, out=product)
                    np.add(target, product, out=target)
                finish(target, added)

        return routine


CPU_VARIANTS: dict[str, tuple[CpuVariant, ...]] = {
    "conv2d": (NumpyDepthwise(), NumpyPointwise(), NumpyWinograd(), NumpyIm2col()),
    "linear": (NumpyMatmul(),),
}

CPU_BY_NAME: dict[str, CpuVariant] = {v.name: v for variants in CPU_VARIANTS.values() for v in variants}


def choose(kind: str, columns: Mapping[str, Ints]) -> Ints:
    """Index into CPU_VARIANTS[kind] of the first routine that supports and suits each candidate."""
    chosen = np.full(len(next(iter(columns.values()))), -1, np.int64)
    for i, variant in enumerate(CPU_VARIANTS[kind]):
        chosen[(chosen < 0) & variant.supports(columns) & variant.suits(columns)] = i
    return chosen


def variant_for(op: SplitOp, name: str | None = None) -> CpuVariant:
    """The named routine, or the one that is used when the plan names none."""
    if name is not None:
        return CPU_BY_NAME[name]
    return CPU_VARIANTS[op.kind][int(choose(op.kind, op.columns())[0])]


def winograd_tile(c: Mapping[str, Ints]) -> Ints:
    """Outputs per side of a tile of numpy_winograd: few tiles leave the matrix products too thin."""
    return np.where(tiles(c, 4) >= 20, 4, 2)


def _tile_copies(tile: Array, target: Array) -> list[tuple[Array, Array]]:
    """Pairs (place in the output, values) that lay [m, m, tile rows, tiles, C] out as [rows, OW, C]."""
    m, count, across = tile.shape[1:4]
    height, width = target.shape[:2]
    if (height, width) == (count * m, across * m):
        view = np.lib.stride_tricks.as_strided(
            target,
            tile.shape,
            (*target.strides[:2], m * target.strides[0], m * target.strides[1], target.strides[2]),
        )
        return [(view, tile)]
    copies = []
    for i in range(m):
        for j in range(m):
            place = target[i::m, j::m]
            copies.append((place, tile[i, j, : place.shape[0], : place.shape[1]]))
    return copies


def im2col_rows(c: Mapping[str, Ints]) -> Ints:
    """Output rows whose patches numpy_im2col gathers at a time."""
    row_bytes = 4 * output_width(c) * c["KH"] * c["KW"] * c["C_in"]
    return np.clip(IM2COL_BLOCK_BYTES // np.maximum(row_bytes, 1), 1, np.maximum(output_height(c), 1))


def _finisher(op: Conv2d | Linear, bias: Array | None) -> Callable[[Array, Array | None], None]:
    """Adds bias and residual and applies the activation, in place."""
    own_bias = None if bias is None else np.ascontiguousarray(bias, np.float32)

    def finish(target: Array, residual: Array | None) -> None:
        if own_bias is not None:
            np.add(target, own_bias, out=target)
        if residual is not None:
            np.add(target, residual, out=target)
        op.activation.apply(target)

    return finish


def _pixels(image: Array) -> Array:
    """[rows, OW, C] as [rows * OW, C], sharing memory."""
    matrix = image.view()
    matrix.shape = (image.shape[0] * image.shape[1], image.shape[2])
    return matrix


def _even(*images: Array | None) -> bool:
    """Whether the pixels of all rows of images [N, rows, OW, C] are equally far apart, so that they make a matrix."""
    return all(a is None or same_memory(a[0], (a.shape[1] * a.shape[2], a.shape[3])) is not None for a in images)


def _padding(op: Conv2d, x: Array) -> tuple[Array, Routine]:
    """The input with its zero padding, and the routine that refreshes it before each run."""
    if not (op.pad_top or op.pad_left or op.pad_bottom or op.pad_right):
        return x, lambda: None
    padded = np.zeros(op.padded_shape, np.float32)
    placed, rows = op.placed_rows()
    inner, source = padded[:, placed, op.pad_left : op.pad_left + op.W], x[:, rows]

    def fill() -> None:
        np.copyto(inner, source)

    return padded, fill


def _patches(op: Conv2d, image: Array) -> Array:
    """Strided view [groups, OH, OW, KH, KW, C_in / groups] of a padded image [H, W, C]."""
    row, pixel, channel = image.strides
    c_in = op.C_in // op.groups
    return np.lib.stride_tricks.as_strided(
        image,
        (op.groups, op.OH, op.OW, op.KH, op.KW, c_in),
        (
            c_in * channel,
            op.stride_h * row,
            op.stride_w * pixel,
            op.dilation_h * row,
            op.dilation_w * pixel,
            channel,
        ),
        writeable=False,
    )


def _window_row(op: Conv2d, image: Array, oh: int, i: int, j: int) -> Array:
    """Pixels of a padded image that tap (i, j) of output row ``oh`` reads: [OW, C]."""
    row = image[oh * op.stride_h + i * op.dilation_h]
    left = j * op.dilation_w
    return row[left : left + op.stride_w * (op.OW - 1) + 1 : op.stride_w]
