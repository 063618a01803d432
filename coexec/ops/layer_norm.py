"""Normalisation over the last axes: LayerNormalization and RMSNormalization."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, DeviceOp, Op
from coexec.ops.operands import accumulator, broadcast, element_count, optional, required
from coexec.ops.reduce import mean, reduced_shape, sum_of_squares
from coexec.ops.row_norm import RowNorm


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over axes ``axis`` to the last.

    Inputs: x, scale, bias or None. Outputs: y, and the first ``statistics`` of mean and 1/deviation.
    """

    axis: int
    epsilon: float = 1e-5
    statistics: int = 0

    kind: ClassVar[str] = "layer_norm"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, scale = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        _check_affine(x, (scale, optional(inputs, 2)), self.kind)
        axes = tuple(range(self.axis, len(x.shape)))
        statistic = ArraySpec(reduced_shape(x.shape, axes, True), np.dtype(np.float32))
        return (x, *(statistic,) * self.statistics)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 6 * element_count(required(inputs, 0, self.kind).shape)

    def for_device(self, inputs: Sequence[ArraySpec | None]) -> DeviceOp | None:
        x, affine = required(inputs, 0, self.kind), [spec for spec in inputs[1:3] if spec is not None]
        rows, size = element_count(x.shape[: self.axis]), element_count(x.shape[self.axis :])
        wanted = (*(1,) * self.axis, *x.shape[self.axis :])
        if self.statistics or any((1,) * (len(wanted) - len(s.shape)) + s.shape != wanted for s in affine):
            return None
        return RowNorm(rows, size, len(affine) > 1, self.epsilon)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, scale, y = required(inputs, 0, self.kind), required(inputs, 1, self.kind), outputs[0]
        axes = tuple(range(self.axis, x.ndim))
        work = work_array(y)
        center = mean(x, axes)
        np.subtract(x, center, out=work)
        inverse = inverse_root_mean_square(work, axes, self.epsilon)
        work *= inverse
        apply_affine(work, scale, optional(inputs, 2), y)
        for output, statistic in zip(outputs[1:], (center, inverse), strict=False):
            output[...] = statistic


@dataclass(frozen=True)
class RMSNorm(Op):
    """x / sqrt(mean(x * x) + epsilon) * scale over axes ``axis`` to the last; inputs: x, scale."""

    axis: int
    epsilon: float = 1e-5

    kind: ClassVar[str] = "rms_norm"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, scale = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        _check_affine(x, (scale,), self.kind)
        return (ArraySpec(x.shape, scale.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 4 * element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, scale, y = required(inputs, 0, self.kind), required(inputs, 1, self.kind), outputs[0]
        work = work_array(y)
        np.multiply(x, inverse_root_mean_square(x, tuple(range(self.axis, x.ndim)), self.epsilon), out=work)
        apply_affine(work, scale, None, y)


def _check_affine(x: ArraySpec, parameters: Iterable[ArraySpec | None], kind: str) -> None:
    shapes = [x.shape, *(p.shape for p in parameters if p is not None)]
    if broadcast(shapes, kind) != x.shape:
        raise ModelError(f"{kind}: scale and bias {shapes[1:]} do not broadcast to an input of shape {x.shape}")


def inverse_root_mean_square(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """1 / sqrt(mean of x * x over ``axes`` + epsilon), the axes kept as 1."""
    power = sum_of_squares(x, axes)
    power /= element_count(x.shape[axis] for axis in axes)
    power += epsilon
    return np.asarray(np.reciprocal(np.sqrt(power)))


def work_array(y: Array) -> Array:
    """``y`` itself, or a wider array where its dtype is too narrow to compute in."""
    wide: np.dtype[Any] = accumulator(y.dtype)
    return y if wide == y.dtype else np.empty(y.shape, wide)


def apply_affine(work: Array, scale: Array, bias: Array | None, y: Array) -> None:
    """work * scale + bias in place, and into ``y`` where that is another array."""
    work *= scale
    if bias is not None:
        work += bias
    if work is not y:
        y[...] = work
