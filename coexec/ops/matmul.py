"""Matrix products whose factors are both computed; constant weights make a Linear instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import accumulator, broadcast, element_count, optional, required


@dataclass(frozen=True)
class MatMul(Op):
    """a @ b as in NumPy: batched over leading axes, 1-D operands allowed."""

    kind: ClassVar[str] = "matmul"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        a, b = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        return (ArraySpec(matmul_shape(a.shape, b.shape), a.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Multiply and add counted as two."""
        depth = required(inputs, 0, self.kind).shape[-1]
        return 2 * depth * element_count(self.infer(inputs)[0].shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        a, b, y = required(inputs, 0, self.kind), required(inputs, 1, self.kind), outputs[0]
        if accumulator(y.dtype) == y.dtype and y.ndim:
            np.matmul(a, b, out=y)
        else:
            wide = accumulator(y.dtype)
            y[...] = np.matmul(a.astype(wide), b.astype(wide))


@dataclass(frozen=True)
class Gemm(Op):
    """alpha * a' @ b' + beta * c, where ' transposes on request; c broadcasts or is None."""

    alpha: float = 1.0
    beta: float = 1.0
    transpose_a: bool = False
    transpose_b: bool = False

    kind: ClassVar[str] = "gemm"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        a, b = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise ModelError(f"gemm: operands of shape {a.shape} and {b.shape} are not matrices")
        left = a.shape[::-1] if self.transpose_a else a.shape
        right = b.shape[::-1] if self.transpose_b else b.shape
        shape, c = matmul_shape(left, right), optional(inputs, 2)
        if c is not None and broadcast([shape, c.shape], self.kind) != shape:
            raise ModelError(f"gemm: c of shape {c.shape} does not broadcast to the product's {shape}")
        return (ArraySpec(shape, a.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        """Multiply and add counted as two."""
        depth = required(inputs, 0, self.kind).shape[0 if self.transpose_a else 1]
        return 2 * depth * element_count(self.infer(inputs)[0].shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        a, b, y = required(inputs, 0, self.kind), required(inputs, 1, self.kind), outputs[0]
        MatMul().run([a.T if self.transpose_a else a, b.T if self.transpose_b else b], [y])
        if self.alpha != 1:
            _scale(y, self.alpha)
        c = optional(inputs, 2)
        if c is not None and self.beta:
            y += c if self.beta == 1 else (c * self.beta).astype(y.dtype)


def _scale(y: Array, factor: float) -> None:
    np.multiply(y, factor, out=y, casting="unsafe")


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """Shape of a @ b; ModelError when they do not fit."""
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else 0]:
        raise ModelError(f"matmul: shapes {a} and {b} do not fit")
    batch = broadcast([a[:-2], b[:-2]], "matmul")
    return (*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))
