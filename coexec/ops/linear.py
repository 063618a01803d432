"""Matrix product with constant weights and fused bias, residual and activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.activation import NO_ACTIVATION, Activation
from coexec.ops.base import ArraySpec, Axis, Columns, Ints, Matmul, Part, SplitOp
from coexec.ops.operands import check_bias
from coexec.ops.views import Box


@dataclass(frozen=True)
class Linear(SplitOp):
    """act(x @ weight + bias + residual): x of M x K (any leading dimensions), weight of K x N.

    Inputs: x [..., K], weight [K, N], bias [N] or None, residual (shape of the output) or None.
    Canonical arrays: x [M, K], weight [K, N], output [M, N].
    """

    M: int
    K: int
    N: int
    bias: bool = False
    residual: bool = False
    activation: Activation = NO_ACTIVATION

    kind: ClassVar[str] = "linear"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, weight = inputs[0], inputs[1]
        assert x is not None and weight is not None
        if weight.shape != (self.K, self.N) or x.shape[-1:] != (self.K,):
            raise ModelError(f"linear: input {x.shape} does not fit weight {weight.shape}")
        check_bias(inputs, 2, self.N, self.kind)
        return (ArraySpec((*x.shape[:-1], self.N), x.dtype),)

    @property
    def array_shapes(self) -> dict[str, Shape]:
        return self._shapes((self.M, self.K), (self.K, self.N), self.N, (self.M, self.N))

    @property
    def shape_text(self) -> str:
        """M x K x N: "50x768x3072"."""
        return f"{self.M}x{self.K}x{self.N}"

    @classmethod
    def matmul(cls, c: Mapping[str, Ints]) -> Matmul:
        return Matmul(c["M"], c["K"], c["N"], np.ones_like(c["M"]), c["M"] * c["K"])

    def units(self, axis: Axis) -> int:
        return {"channel": self.N, "row": self.M, "none": 1}[axis]

    def step(self, axis: Axis) -> int:
        return 1

    def canonical(self, inputs: Sequence[Array | None], output: Array) -> tuple[list[Array | None], Array]:
        x, weight, bias, residual = (*inputs, None, None)[:4]
        assert x is not None
        rows = [None if a is None else _rows(a) for a in (x, residual)]
        return [rows[0], weight, bias, rows[1]], _rows(output)

    @classmethod
    def cut_columns(cls, axis: Axis, columns: Mapping[str, Ints], start: Ints, stop: Ints) -> Columns:
        part = {name: np.broadcast_to(v, np.broadcast_shapes(v.shape, start.shape)) for name, v in columns.items()}
        if axis == "channel":
            part["N"] = stop - start
        elif axis == "row":
            part["M"] = stop - start
        return part

    def part(self, axis: Axis, start: int, stop: int) -> Part:
        op: Linear = self.with_fields(self.cut_columns(axis, self.columns(), np.array([start]), np.array([stop])))
        whole, units = slice(None), slice(start, stop)
        if axis == "channel":
            return Part(op, (None, (whole, units), (units,), (whole, units)), (whole, units))
        if axis == "row":
            return Part(op, ((units, whole), None, None, (units, whole)), (units, whole))
        return Part(self, (None, None, None, None), (whole, whole))

    def logical_box(self, box: Box | None, port: int, shape: Shape) -> Box:
        whole = (slice(None),) * len(shape)
        if box is None:
            return whole
        if port in (1, 2):
            return box
        # Rows count the leading dimensions together: a range of them is a box only if one is not 1.
        inner = [i for i, size in enumerate(shape[:-1]) if size != 1]
        rows = {inner[0]: box[0]} if len(inner) == 1 else {}
        return (*(rows.get(i, slice(None)) for i in range(len(shape) - 1)), box[1])

    def reference(self, inputs: Sequence[Array | None]) -> Array:
        x, weight, bias, residual = (*inputs, None, None)[:4]
        assert x is not None and weight is not None
        out = x.astype(np.float64) @ weight.astype(np.float64)
        if bias is not None:
            out += bias
        if residual is not None:
            out += residual
        self.activation.apply(out)
        return np.asarray(out)


def _rows(array: Array) -> Array:
    """The array as a matrix whose rows are its innermost axis, sharing memory."""
    matrix = array.view()
    matrix.shape = (int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1])
    return matrix
