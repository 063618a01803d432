"""Repeating a tensor: Expand (broadcasting) and Tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import broadcast, required


@dataclass(frozen=True)
class Expand(Op):
    """Output: the input broadcast together with ``shape``."""

    shape: Shape

    kind: ClassVar[str] = "expand"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        return (ArraySpec(broadcast([x.shape, self.shape], self.kind), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.kind)


@dataclass(frozen=True)
class Tile(Op):
    """Output: the input ``repeats[axis]`` times along each axis."""

    repeats: tuple[int, ...]

    kind: ClassVar[str] = "tile"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        if len(self.repeats) != len(x.shape) or min(self.repeats, default=0) < 0:
            raise ModelError(f"tile: repeats {self.repeats} do not fit an input of shape {x.shape}")
        return (ArraySpec(tuple(s * r for s, r in zip(x.shape, self.repeats, strict=True)), x.dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        x = required(inputs, 0, self.kind)
        if not x.size:
            return
        for place in product(*map(range, self.repeats)):
            outputs[0][tuple(slice(i * s, (i + 1) * s) for i, s in zip(place, x.shape, strict=True))] = x
