"""Padding, and cropping where a width is negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import check_scalar, optional, required

PAD_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pad(Op):
    """``widths``: elements before and after each axis; inputs: x, scalar fill value or None (0)."""

    widths: tuple[tuple[int, int], ...]
    mode: str = "constant"

    kind: ClassVar[str] = "pad"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        check_scalar(optional(inputs, 1), self.kind)
        shape = tuple(size + sum(width) for size, width in zip(x.shape, self.widths, strict=True))
        kept = [size + min(0, a) + min(0, b) for size, (a, b) in zip(x.shape, self.widths, strict=True)]
        if min(kept, default=0) < 0:
            raise ModelError(f"pad: widths {self.widths} crop more than the input {x.shape} has")
        copies = [self.mode != "constant" and max(width) > 0 for width in self.widths]
        if any(copied and not size for copied, size in zip(copies, kept, strict=True)):
            raise ModelError(f"pad: mode {self.mode} has nothing to copy along an empty axis of {x.shape}")
        return (ArraySpec(shape, x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x, value, y = required(inputs, 0, self.kind), optional(inputs, 1), outputs[0]
        x = x[tuple(slice(max(0, -a), size - max(0, -b)) for size, (a, b) in zip(x.shape, self.widths, strict=True))]
        widths = [(max(0, a), max(0, b)) for a, b in self.widths]
        inner = tuple(slice(a, a + size) for size, (a, _) in zip(x.shape, widths, strict=True))
        y[inner] = x
        for axis in range(x.ndim):
            # Earlier axes are complete by now; of later ones only the inner part holds something.
            self._fill(np.moveaxis(y[(slice(None),) * (axis + 1) + inner[axis + 1 :]], axis, 0), widths[axis], value)

    def _fill(self, y: Array, width: tuple[int, int], value: Array | None) -> None:
        """Fill both borders of axis 0."""
        before, size = width[0], len(y) - sum(width)
        for border in (slice(0, before), slice(before + size, len(y))):
            if border.start == border.stop:
                continue
            if self.mode == "constant":
                y[border] = 0 if value is None else value.reshape(())
            else:
                y[border] = y[before + _source(np.arange(border.start, border.stop) - before, size, self.mode)]


def _source(position: Array, size: int, mode: str) -> Array:
    """Inner position that a border position copies."""
    if mode == "edge":
        return np.clip(position, 0, size - 1)
    if mode == "wrap":
        return np.asarray(position % size)
    period = max(1, 2 * (size - 1))
    folded = position % period
    return np.minimum(folded, period - folded) if size > 1 else np.zeros_like(position)
