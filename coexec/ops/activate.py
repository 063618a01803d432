"""An activation on its own, where no layer before it took it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.layout import Array
from coexec.ops.activation import Activation
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required


@dataclass(frozen=True)
class Activate(Op):
    """Output: the activation of the input, same shape and dtype."""

    activation: Activation

    kind: ClassVar[str] = "activate"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return (required(inputs, 0, self.activation.kind),)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        outputs[0][...] = required(inputs, 0, self.activation.kind)
        with np.errstate(all="ignore"):
            self.activation.apply(outputs[0])
