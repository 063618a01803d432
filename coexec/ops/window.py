"""Sliding windows: the geometry that pooling and convolution of any rank share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Shape
from coexec.ops.base import Ints
from coexec.ops.views import Box


@dataclass(frozen=True)
class Window:
    """A window per spatial axis. ``begin`` and ``end`` are the padding before and after the input."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def reach(self) -> tuple[int, ...]:
        """Input positions from the first to the last tap, per axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def output_size(self, size: Shape, kind: str) -> Shape:
        """Spatial output shape for a spatial input of ``size``; ModelError when no window fits."""
        if len(size) != len(self.kernel):
            raise ModelError(f"{kind}: kernel {self.kernel} does not fit an input with spatial shape {size}")
        out = tuple(self._output_length(axis, length) for axis, length in enumerate(size))
        if min(out, default=1) < 1:
            raise ModelError(f"{kind}: kernel {self.kernel} is larger than the padded input {size}")
        return out

    def _output_length(self, axis: int, length: int) -> int:
        room = length + self.begin[axis] + self.end[axis] - self.reach[axis]
        stride = self.strides[axis]
        if not self.ceil_mode:
            return room // stride + 1
        steps = -(-room // stride) + 1
        # A last window that would start in the padding after the input is left out (as in PyTorch).
        return steps - 1 if (steps - 1) * stride >= length + self.begin[axis] else steps

    def taps(self, size: Shape, out: Shape) -> Iterator[tuple[tuple[int, ...], Box, Box]]:
        """Each tap (kernel position, row-major) with the outputs that it serves and the inputs it reads.

        The boxes are of arrays N, spatial..., C, without the last axis. Outputs whose tap lies in the
        padding are left out; nothing has to be padded.
        """
        per_axis = [self._axis_taps(axis, size[axis], out[axis]) for axis in range(len(size))]
        for combination in product(*per_axis):
            tap, outputs, inputs = zip(*combination, strict=True)
            yield tap, (slice(None), *outputs), (slice(None), *inputs)

    def _axis_taps(self, axis: int, length: int, out: int) -> list[tuple[int, slice, slice]]:
        stride, taps = self.strides[axis], []
        begin, dilation = self.begin[axis], self.dilations[axis]
        # Taps outside these lie in the padding for every output, however large the kernel is.
        first_tap = max(0, -(-(begin - (out - 1) * stride) // dilation))
        stop_tap = min(self.kernel[axis], (length - 1 + begin) // dilation + 1)
        for tap in range(first_tap, stop_tap):
            offset = tap * dilation - begin
            first = max(0, -(offset // stride))
            stop = min(out, (length - 1 - offset) // stride + 1)
            if first < stop:
                start = first * stride + offset
                taps.append((tap, slice(first, stop), slice(start, start + (stop - first - 1) * stride + 1, stride)))
        return taps

    def counts(self, axis: int, length: int, out: int, with_padding: bool) -> Ints:
        """Taps per output position that fall on the input (on the padded input if ``with_padding``)."""
        low = -self.begin[axis] if with_padding else 0
        high = length + (self.end[axis] if with_padding else 0)
        starts = np.arange(out, dtype=np.int64) * self.strides[axis] - self.begin[axis]
        kernel, dilation = self.kernel[axis], self.dilations[axis]
        before, until = (np.clip(-((starts - bound) // dilation), 0, kernel) for bound in (low, high))
        return np.asarray(until - before, np.int64)
