"""Compares outputs with onnxruntime's, where that is installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coexec.layout import Array

TOLERANCE = 1e-3
"""A relative error above this is a fault, not rounding in another order."""


@dataclass(frozen=True)
class Check:
    """What a comparison gave.

    Attributes:
        against: name and version of the other library, "" if nothing was compared; ``reason`` says why not.
        max_rel_error: max over the outputs of max |error| / max |reference|; infinite if only one is finite.
    """

    against: str
    max_rel_error: float | None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Nothing speaks against the result."""
        return self.max_rel_error is None or self.max_rel_error <= TOLERANCE


def check_against_onnxruntime(model: Any, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Check:
    """Run the model (path or ModelProto) on the same inputs by onnxruntime and compare all outputs."""
    try:
        import onnxruntime
    except ImportError:
        return Check("", None, "onnxruntime is not installed: pip install onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source = os.fspath(model) if isinstance(model, str | os.PathLike) else model.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        expected = session.run(list(outputs), dict(feeds))
    except Exception as error:  # onnxruntime's exceptions have no public base
        first = (str(error).splitlines() or [""])[0]
        return Check("", None, f"onnxruntime cannot run the model: {first}")
    errors = [relative_error(outputs[name], y) for name, y in zip(outputs, expected, strict=True)]
    return Check(f"onnxruntime {onnxruntime.__version__}", max(errors, default=0.0))


def relative_error(got: Array, reference: Array) -> float:
    """max |got - reference| / max |reference| (of |got - reference| alone where the reference is all 0)."""
    if got.shape != reference.shape:
        return float("inf")
    if got.size == 0:
        return 0.0
    a, b = got.astype(np.float64), reference.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        worst = float(np.max(np.where(same, 0.0, np.abs(a - b))))
    if not np.isfinite(worst):
        return float("inf")
    scale = float(np.max(np.abs(b), where=np.isfinite(b), initial=0.0))
    return worst / scale if scale > 0 else worst
