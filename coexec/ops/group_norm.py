"""Normalisation over groups of channels and all positions; one channel a group is InstanceNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.layer_norm import apply_affine, inverse_root_mean_square, work_array
from coexec.ops.operands import element_count, required
from coexec.ops.reduce import mean


@dataclass(frozen=True)
class GroupNorm(Op):
    """Inputs: x [N, C, spatial...], scale and bias [C], or [groups] (GroupNormalization of opset 18)."""

    groups: int
    epsilon: float = 1e-5

    kind: ClassVar[str] = "group_norm"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, scale = required(inputs, 0, self.kind), required(inputs, 1, self.kind)
        required(inputs, 2, self.kind)
        if len(x.shape) < 2 or x.shape[1] % self.groups or scale.shape not in ((x.shape[1],), (self.groups,)):
            raise ModelError(f"group_norm: {self.groups} groups, scale {scale.shape} do not fit an input {x.shape}")
        return (x,)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 6 * element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, y = self._grouped(required(inputs, 0, self.kind)), self._grouped(outputs[0])
        scale, bias = (self._parameter(required(inputs, i, self.kind), x.ndim) for i in (1, 2))
        axes = tuple(range(2, x.ndim))
        work = work_array(y)
        np.subtract(x, mean(x, axes), out=work)
        work *= inverse_root_mean_square(work, axes, self.epsilon)
        apply_affine(work, scale, bias, y)

    def _grouped(self, array: Array) -> Array:
        """N x C x spatial as N x groups x C/groups x spatial; splitting an axis shares memory always."""
        return array.reshape(array.shape[0], self.groups, array.shape[1] // self.groups, *array.shape[2:])

    def _parameter(self, values: Array, rank: int) -> Array:
        return values.reshape(self.groups, -1, *(1,) * (rank - 3))
