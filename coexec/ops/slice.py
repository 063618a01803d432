"""Cutting out a box, with steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required
from coexec.ops.views import Sliced, View


@dataclass(frozen=True)
class Slice(Op):
    """``ranges``: start, stop, step per axis as range() takes them, already clamped to the axis."""

    ranges: tuple[tuple[int, int, int], ...]

    kind: ClassVar[str] = "slice"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        return (ArraySpec(tuple(len(range(*r)) for r in self.ranges), x.dtype),)

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        return (Sliced(tuple(start for start, _, _ in self.ranges), tuple(step for _, _, step in self.ranges)),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.kind)[tuple(_slice(*r) for r in self.ranges)]


def _slice(start: int, stop: int, step: int) -> slice:
    """range(start, stop, step) as a slice, where a stop of -1 would mean the last element."""
    return slice(start, None if stop < 0 else stop, step)
