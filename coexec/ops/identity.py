"""Ops that hand their input on: Identity, and Dropout at inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required
from coexec.ops.views import Reshaped, View


@dataclass(frozen=True)
class Identity(Op):
    """Output: a copy of the input; with ``mask`` a second one, bool, all True (nothing dropped)."""

    mask: bool = False

    kind: ClassVar[str] = "identity"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.kind)
        return (x, ArraySpec(x.shape, np.dtype(np.bool_))) if self.mask else (x,)

    def output_views(self, inputs: Sequence[ArraySpec | None]) -> tuple[View, ...]:
        return () if self.mask else (Reshaped(),)

    def flops(self, inputs: Sequence[ArraySpec | None]) -> int:
        return 0

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.kind)
        if self.mask:
            outputs[1][...] = True
