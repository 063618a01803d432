"""A copy into another memory layout, put where two neighbours cannot agree on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required


@dataclass(frozen=True)
class Relayout(Op):
    """Output: the input, element by element. Not elementwise, so that both sides choose their layout."""

    kind: ClassVar[str] = "relayout"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return (required(inputs, 0, self.kind),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.kind)
