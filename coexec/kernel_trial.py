"""A kernel is tried on a device before it is trusted there: its first work-group against the op's reference.

Drivers have been seen to compile single kernels wrongly; a wrong one is left out, not the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coexec.layout import Array
from coexec.ops.base import DeviceOp, SplitOp

TOLERANCE = 1e-3
"""Largest error over the largest value: above what any algorithm here makes of rounding, below any fault."""
MAX_ROWS, MAX_CHANNELS = 2, 64
"""Of the outputs that are compared: the reference is slow."""

_PATTERN = np.random.default_rng(11).standard_normal(4099).astype(np.float32)


@dataclass(frozen=True)
class Trial:
    """An op with its canonical arrays in the memory that the kernel works on.

    ``inputs`` holds constants as they are; ``fill`` writes all others.
    """

    op: DeviceOp
    inputs: Sequence[Array | None]
    output: Array

    def fill(self) -> None:
        """Numbers without a simple order into the inputs, NaN into the output."""
        for port, array in enumerate(self.inputs):
            if array is not None and port not in self.op.constants:
                array[...] = np.resize(_PATTERN, array.shape)
        self.output[...] = np.nan

    def problem(self) -> str | None:
        """What is wrong with what a work-group has written; None if nothing is."""
        written = ~np.isnan(self.output)
        if not written.any():
            return "it writes nothing, or no numbers"
        op, inputs, output = self._some(written)
        expected = op.reference(inputs)
        checked = ~np.isnan(output)
        error = np.abs(output - expected)[checked].max(initial=0.0) / max(float(np.abs(expected).max()), 1e-30)
        return None if error <= TOLERANCE else f"off by {error:.1g} of the largest value"

    def _some(self, written: Array) -> tuple[DeviceOp, list[Array | None], Array]:
        """A small part of the op that holds some of the outputs that were written."""
        op, inputs, output = self.op, list(self.inputs), self.output
        if not isinstance(op, SplitOp):
            return op, inputs, output
        for axis, dimension, most in (("row", -3 if output.ndim == 4 else 0, MAX_ROWS), ("channel", -1, MAX_CHANNELS)):
            others = tuple(i for i in range(output.ndim) if i != dimension % output.ndim)
            first = int(np.argmax(written.any(axis=others)))
            step = op.step(axis)  # type: ignore[arg-type]
            start = first // step * step
            stop = min(op.units(axis), start + max(step, most // step * step))  # type: ignore[arg-type]
            part = op.part(axis, start, stop)  # type: ignore[arg-type]
            inputs = [a if a is None or box is None else a[box] for a, box in zip(inputs, part.inputs, strict=True)]
            output, written, op = output[part.output], written[part.output], part.op
        return op, inputs, output
