"""Scaled dot-product attention: softmax(scale * q @ k) @ v, per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, DeviceOp, Ints
from coexec.ops.operands import accumulator, required


@dataclass(frozen=True)
class Attention(DeviceOp):
    """B x H heads: q [B,H,T,D], k transposed [B,H,D,S], v [B,H,S,E] to [B,H,T,E]; the softmax is over S.

    Canonical arrays are the logical ones.
    """

    B: int
    H: int
    T: int
    S: int
    D: int
    E: int
    scale: float = 1.0

    kind: ClassVar[str] = "attention"
    any_strides: ClassVar[tuple[int, ...]] = (1,)

    @property
    def array_shapes(self) -> dict[str, Shape]:
        b, h = self.B, self.H
        return {
            "q": (b, h, self.T, self.D),
            "k": (b, h, self.D, self.S),
            "v": (b, h, self.S, self.E),
            "y": (b, h, self.T, self.E),
        }

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        specs = [required(inputs, i, self.kind) for i in range(3)]
        shapes = self.array_shapes
        for spec, role in zip(specs, "qkv", strict=True):
            if spec.shape != shapes[role]:
                raise ModelError(f"attention: {role} has shape {spec.shape}, expected {shapes[role]}")
        return (ArraySpec(shapes["y"], specs[0].dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None] = ()) -> int:
        """Of both products, multiply and add counted as two, and four per element of the softmax."""
        return self.B * self.H * self.T * self.S * (2 * self.D + 2 * self.E + 4)

    @classmethod
    def traffic_bytes(cls, c: Mapping[str, Ints]) -> Ints:
        return 4 * c["B"] * c["H"] * (c["T"] + c["S"]) * (c["D"] + c["E"])

    def canonical(self, inputs: Sequence[Array | None], output: Array) -> tuple[list[Array | None], Array]:
        return list(inputs), output

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        q, k, v = (required(inputs, i, self.kind) for i in range(3))
        wide = accumulator(outputs[0].dtype)
        scores = np.matmul(q, k, dtype=wide)
        scores *= np.asarray(self.scale, wide)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        outputs[0][...] = np.matmul(scores, v)

    def reference(self, inputs: Sequence[Array | None]) -> Array:
        q, k, v = (required(inputs, i, self.kind).astype(np.float64) for i in range(3))
        scores = q @ k * self.scale
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ v)
