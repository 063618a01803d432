"""Normalisation over groups of channels and all positions; one channel a group is InstanceNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.layer_norm import apply_affine, work_array
from coexec.ops.operands import element_count, required
from coexec.ops.reduce import mean, sum_of_squares


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
        x, y = required(inputs, 0, self.kind), outputs[0]
        if not x.size:
            return
        scale, bias = (self._per_channel(required(inputs, i, self.kind), x) for i in (1, 2))
        axes, work = tuple(range(2, x.ndim)), work_array(y)
        np.subtract(x, self._group_mean(mean(x, axes)), out=work)
        variance = self._group_mean(sum_of_squares(work, axes)) / element_count(x.shape[2:])
        apply_affine(work, scale / np.sqrt(variance + self.epsilon), bias, y)

    def _group_mean(self, values: Array) -> Array:
        """Each channel's value replaced by its group's mean.

        One value per channel, not per group: NumPy's inner loops then run over all channels.
        """
        groups = values.reshape(len(values), self.groups, -1).mean(axis=2)
        return np.repeat(groups, values.shape[1] // self.groups, axis=1).reshape(values.shape)

    def _per_channel(self, values: Array, x: Array) -> Array:
        return np.repeat(values, x.shape[1] // len(values)).reshape(-1, *(1,) * (x.ndim - 2))
