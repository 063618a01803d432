"""Layer normalisation of the rows of a matrix: what kernels compute of a LayerNorm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, DeviceOp, Ints
from coexec.ops.operands import required


@dataclass(frozen=True)
class RowNorm(DeviceOp):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over each of M rows of N.

    Inputs: x of M * N elements, scale and bias (or None) of N. Canonical arrays: x and output [M, N].
    """

    M: int
    N: int
    bias: bool = False
    epsilon: float = 1e-5

    kind: ClassVar[str] = "row_norm"
    constants: ClassVar[tuple[int, ...]] = (1, 2)

    @property
    def array_shapes(self) -> dict[str, Shape]:
        affine: dict[str, Shape] = {"scale": (self.N,), **({"bias": (self.N,)} if self.bias else {})}
        return {"x": (self.M, self.N), **affine, "y": (self.M, self.N)}

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return (required(inputs, 0, self.kind),)

    @classmethod
    def traffic_bytes(cls, c: Mapping[str, Ints]) -> Ints:
        return 8 * c["M"] * c["N"]

    def canonical(self, inputs: Sequence[Array | None], output: Array) -> tuple[list[Array | None], Array]:
        x, scale, bias = (*inputs, None)[:3]
        assert x is not None and scale is not None
        affine = [None if a is None else a.reshape(self.N) for a in (scale, bias)]
        return [self._rows(x), *affine], self._rows(output)

    def _rows(self, array: Array) -> Array:
        matrix = array.view()
        matrix.shape = (self.M, self.N)
        return matrix

    def reference(self, inputs: Sequence[Array | None]) -> Array:
        x, scale, bias = (*inputs, None)[:3]
        assert x is not None and scale is not None
        wide = x.astype(np.float64)
        centered = wide - wide.mean(axis=1, keepdims=True)
        out = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + self.epsilon) * scale
        return np.asarray(out if bias is None else out + bias)
