"""What an op is, and what a part of one is.

Every op is a frozen description: shapes, FLOPs, a NumPy routine, sample cases. A :class:`DeviceOp` has all
its sizes in itself, so that a kernel can compute it. A :class:`SplitOp` also knows the part of itself for a
range of output channels or rows, and that part is again an ordinary op of the same kind: kernels, CPU
routines, features, profiler and predictor know nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coexec.layout import Array, Shape
from coexec.ops.activation import Activation
from coexec.ops.views import Box, View

Axis = Literal["channel", "row", "none"]
Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]
"""Numeric description of many ops of one kind: field name -> one value per op."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape (logical) and dtype of a tensor."""

    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Part:
    """The share of a layer for one range of units: a smaller op, and where its arrays lie.

    Attributes:
        op: the smaller op.
        inputs: for each input, the box of the *canonical* array that the part reads; None = all of it.
        output: the box of the canonical output that it writes.
    """

    op: SplitOp
    inputs: tuple[Box | None, ...]
    output: Box


@dataclass(frozen=True)
class Matmul:
    """Parts as the matrix products that they are at heart: rows x depth x channels, one value per part.

    Attributes:
        depth: products per output element.
        groups: independent products; ``depth`` is of one of them, ``channels`` of all together.
        input_elements: of x, each counted once however often it is read.
    """

    rows: Ints
    depth: Ints
    channels: Ints
    groups: Ints
    input_elements: Ints

    @property
    def flops(self) -> Ints:
        """Multiply and add counted as two."""
        return 2 * self.rows * self.depth * self.channels

    @property
    def traffic_bytes(self) -> Ints:
        """Of input, weights and output, each counted once."""
        return 4 * (self.input_elements + self.depth * self.channels + self.rows * self.channels)


class Op(ABC):
    """One layer's arithmetic. Inputs are positional as in ONNX; an absent optional one is None."""

    kind: ClassVar[str]

    @abstractmethod
    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        """Shapes and dtypes of the outputs; raises ModelError when the inputs do not fit."""

    @abstractmethod
    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        """Compute on logical views with NumPy, writing into ``outputs``."""

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Floating-point operations, for cost estimates; elementwise ops count one per output."""
        return sum(int(np.prod(out.shape, dtype=np.int64)) for out in self.infer(inputs))

    def for_device(self, inputs: Sequence[ArraySpec | None]) -> DeviceOp | None:
        """This op on inputs like these as one that kernels compute; None where there are none for it."""
        return None

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        """How each output lies in the first input, for ops that only look at it in another way; else ()."""
        return ()

    def input_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View | None, ...]:
        """How each input lies in the output, for ops that only join them; else ()."""
        return ()

    @property
    def spatial(self) -> bool:
        """Whether axis 1 is a channel axis before spatial ones (the tensor wants channels last)."""
        return False

    @property
    def elementwise(self) -> bool:
        """Whether the op gives its output the layout of its inputs."""
        return False


class DeviceOp(Op):
    """An op that kernels compute: fp32, its sizes are fields of itself. See ``columns``.

    *Canonical* arrays are the views that kernels and CPU routines work on: activations with channels
    innermost, weights with output channels innermost.
    """

    constants: ClassVar[tuple[int, ...]] = ()
    """Inputs that have to be constants; kernels get them packed. All others are tensors."""
    any_strides: ClassVar[tuple[int, ...]] = ()
    """Inputs whose innermost axis need not be dense."""

    @property
    @abstractmethod
    def array_shapes(self) -> dict[str, Shape]:
        """Logical shapes of the inputs that the op has, in their order, and of "y", by the names of their roles."""

    @abstractmethod
    def canonical(self, inputs: Sequence[Array | None], output: Array) -> tuple[list[Array | None], Array]:
        """The logical views as canonical ones, without copying."""

    @abstractmethod
    def reference(self, inputs: Sequence[Array | None]) -> Array:
        """Slow, obvious float64 result on canonical arrays: the specification."""

    @classmethod
    @abstractmethod
    def traffic_bytes(cls, c: Mapping[str, Ints]) -> Ints:
        """Of inputs and output of every row of columns, each counted once."""

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        arrays, output = self.canonical(inputs, outputs[0])
        output[...] = self.reference(arrays)

    def for_device(self, inputs: Sequence[ArraySpec | None]) -> DeviceOp | None:
        return self

    def columns(self) -> Columns:
        """This op as one row of columns: those of its fields that are whole numbers or flags."""
        return {name: np.array([int(getattr(self, name))], np.int64) for name in self._numbers()}

    def _numbers(self) -> list[str]:
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        return [name for name in names if isinstance(getattr(self, name), int)]


class SplitOp(DeviceOp):
    """An op that can be cut.

    Inputs are x, weight, bias or None, residual or None. Canonical: conv2d N,H,W,C and KH,KW,C_in/groups,C_out;
    linear M,K and K,N.
    """

    constants: ClassVar[tuple[int, ...]] = (1, 2)
    axes: ClassVar[tuple[Axis, ...]] = ("channel", "row")

    bias: bool
    residual: bool
    activation: Activation

    @property
    @abstractmethod
    def shape_text(self) -> str:
        """What the layer computes, short, for tables."""

    @classmethod
    @abstractmethod
    def matmul(cls, c: Mapping[str, Ints]) -> Matmul:
        """The amount of work of every row of columns."""

    @classmethod
    def traffic_bytes(cls, c: Mapping[str, Ints]) -> Ints:
        return cls.matmul(c).traffic_bytes

    def flops(self, inputs: Sequence[ArraySpec | None] = ()) -> int:
        return int(self.matmul(self.columns()).flops[0])

    def _shapes(self, x: Shape, weight: Shape, channels: int, y: Shape) -> dict[str, Shape]:
        shapes = {"x": x, "weight": weight}
        if self.bias:
            shapes["bias"] = (channels,)
        if self.residual:
            shapes["residual"] = y
        return {**shapes, "y": y}

    @abstractmethod
    def units(self, axis: Axis) -> int:
        """How many units (output channels or output rows) the axis has."""

    @abstractmethod
    def step(self, axis: Axis) -> int:
        """Smallest distance between cuts that keeps both parts of the same kind (whole groups)."""

    @abstractmethod
    def part(self, axis: Axis, start: int, stop: int) -> Part:
        """The part that computes units ``start`` to ``stop`` (exclusive) of ``axis``."""

    @classmethod
    @abstractmethod
    def cut_columns(cls, axis: Axis, columns: Mapping[str, Ints], start: Ints, stop: Ints) -> Columns:
        """Columns of the parts for many ranges at once; the arithmetic behind ``part``."""

    @abstractmethod
    def logical_box(self, box: Box | None, port: int, shape: Shape) -> Box:
        """A canonical box of input ``port`` (-1: the output) in logical coordinates of ``shape``.

        May be larger than the exact set of elements, never smaller.
        """

    def with_fields(self, columns: Mapping[str, Ints], row: int = 0) -> Any:
        """This op with its numeric fields taken from one row of ``columns``."""
        values = {name: type(getattr(self, name))(columns[name][row]) for name in self._numbers()}
        return replace(self, **values)  # type: ignore[type-var]


@lru_cache(maxsize=4096)
def part_of(op: SplitOp, axis: Axis, start: int, stop: int) -> Part:
    """``op.part(axis, start, stop)``, which checking and binding a plan ask for several times."""
    return op.part(axis, start, stop)


def stack_columns(parts: Sequence[Mapping[str, Ints]]) -> Columns:
    """Rows of several column sets of one kind under one another."""
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
