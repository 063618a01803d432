"""Conversion between numeric dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required


@dataclass(frozen=True)
class Cast(Op):
    """Output: the input as ``dtype``; floats are cut towards zero on the way to integers."""

    dtype: np.dtype[Any]

    kind: ClassVar[str] = "cast"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return (ArraySpec(required(inputs, 0, self.kind).shape, self.dtype),)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            np.copyto(outputs[0], required(inputs, 0, self.kind), casting="unsafe")
