"""BatchNormalization that no layer before it took in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import accumulator, element_count, required


@dataclass(frozen=True)
class BatchNorm(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias per channel.

    Inputs: x [N, C, spatial...], scale, bias, mean, variance [C]. Outputs: y; with ``training`` (the
    batch's own mean and variance are used) also the running mean and variance.
    """

    epsilon: float = 1e-5
    training: bool = False
    momentum: float = 0.9

    kind: ClassVar[str] = "batch_norm"

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        parameters = [required(inputs, index, self.kind) for index in range(1, 5)]
        channels = x.shape[1] if len(x.shape) > 1 else 1
        if any(p.shape != (channels,) for p in parameters):
            raise ModelError(f"batch_norm: parameters {[p.shape for p in parameters]} for {channels} channels")
        return (x, *parameters[2:]) if self.training else (x,)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 2 * element_count(required(inputs, 0, self.kind).shape)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, scale, bias, mean, variance = (required(inputs, index, self.kind) for index in range(5))
        if self.training:
            mean, variance = self._batch_statistics(x, mean, variance, outputs)
        wide = accumulator(scale.dtype)
        factor = scale / np.sqrt(variance.astype(wide) + self.epsilon)
        offset = bias - mean * factor
        y = outputs[0]
        per_channel = (-1, *(1,) * (x.ndim - 2))
        np.multiply(x, factor.reshape(per_channel), out=y, casting="same_kind")
        np.add(y, offset.reshape(per_channel), out=y, casting="same_kind")

    def _batch_statistics(
        self, x: Array, mean: Array, variance: Array, outputs: Sequence[Array]
    ) -> tuple[Array, Array]:
        axes = (0, *range(2, x.ndim))
        batch_mean, batch_variance = x.mean(axis=axes), x.var(axis=axes)
        outputs[1][...] = mean * self.momentum + batch_mean * (1 - self.momentum)
        outputs[2][...] = variance * self.momentum + batch_variance * (1 - self.momentum)
        return batch_mean, batch_variance
