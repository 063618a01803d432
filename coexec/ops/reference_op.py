"""Any other standard op, run by the ONNX reference evaluator: correct, slow, never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op


@dataclass(frozen=True)
class ReferenceOp(Op):
    """One ONNX node as it stands in the model.

    Attributes:
        op_type: for people.
        model: serialized ModelProto of one node, with inputs and outputs named by their position
            ("i0", "o0", ...; "" where absent).
        present: which inputs the node has.
        outputs: shapes and dtypes of its outputs.
    """

    op_type: str
    model: bytes
    present: tuple[bool, ...]
    outputs: tuple[ArraySpec, ...]

    kind: ClassVar[str] = "reference"

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return self.outputs

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        feed = {f"i{index}": array for index, array in enumerate(inputs) if self.present[index]}
        try:
            with np.errstate(all="ignore"):
                results = evaluator(self.model).run(None, feed)
        except Exception as error:  # its ops raise what their authors liked
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(f"{self.op_type}: ONNX's reference evaluator cannot run it: {reason}") from error
        for output, result in zip(outputs, results, strict=True):
            value = np.asarray(result)
            if value.shape != output.shape:
                raise ModelError(
                    f"{self.op_type}: its result has shape {value.shape}, the model promised {output.shape}; "
                    "export with static shapes"
                )
            np.copyto(output, value, casting="unsafe")


@cache
def evaluator(model: bytes) -> Any:
    """The evaluator of a one-node model, built once; onnx is imported only here."""
    from onnx import load_model_from_string
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(load_model_from_string(model))
