"""Max and average pooling of images with all sizes known: what kernels compute of a Pool or GlobalPool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec, DeviceOp, Ints
from coexec.ops.operands import required


@dataclass(frozen=True)
class Pool2d(DeviceOp):
    """N x C x H x W to N x C x OH x OW, the maximum or (``average``) the mean of each window.

    A mean is over the taps that fall on the input, or (``count_padding``) on the padded input.
    Canonical arrays: x [N,H,W,C], output [N,OH,OW,C].
    """

    N: int
    C: int
    H: int
    W: int
    OH: int
    OW: int
    KH: int
    KW: int
    stride_h: int = 1
    stride_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    average: bool = False
    count_padding: bool = False

    kind: ClassVar[str] = "pool2d"

    @property
    def spatial(self) -> bool:
        return True

    @property
    def array_shapes(self) -> dict[str, Shape]:
        return {"x": (self.N, self.C, self.H, self.W), "y": (self.N, self.C, self.OH, self.OW)}

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        return (ArraySpec(self.array_shapes["y"], required(inputs, 0, self.kind).dtype),)

    def flops(self, inputs: Sequence[ArraySpec | None] = ()) -> int:
        """One per tap."""
        return self.N * self.C * self.OH * self.OW * self.KH * self.KW

    @classmethod
    def traffic_bytes(cls, c: Mapping[str, Ints]) -> Ints:
        return 4 * c["N"] * c["C"] * (c["H"] * c["W"] + c["OH"] * c["OW"])

    def canonical(self, inputs: Sequence[Array | None], output: Array) -> tuple[list[Array | None], Array]:
        return [required(inputs, 0, self.kind).transpose(0, 2, 3, 1)], output.transpose(0, 2, 3, 1)

    def reference(self, inputs: Sequence[Array | None]) -> Array:
        x = required(inputs, 0, self.kind)
        out = np.empty((self.N, self.OH, self.OW, self.C))
        for oh in range(self.OH):
            rows = _taps(oh * self.stride_h - self.pad_top, self.KH, self.dilation_h)
            for ow in range(self.OW):
                columns = _taps(ow * self.stride_w - self.pad_left, self.KW, self.dilation_w)
                window = x[:, _inside(rows, 0, self.H)][:, :, _inside(columns, 0, self.W)].astype(np.float64)
                if self.average:
                    down, right = (self.pad_bottom, self.pad_right) if self.count_padding else (0, 0)
                    top, left = (self.pad_top, self.pad_left) if self.count_padding else (0, 0)
                    counted = len(_inside(rows, -top, self.H + down)) * len(_inside(columns, -left, self.W + right))
                    out[:, oh, ow] = window.sum(axis=(1, 2)) / max(counted, 1)
                else:
                    out[:, oh, ow] = window.max(axis=(1, 2), initial=float(np.finfo(np.float32).min))
        return out


def _taps(start: int, count: int, dilation: int) -> list[int]:
    return [start + i * dilation for i in range(count)]


def _inside(positions: list[int], low: int, high: int) -> list[int]:
    return [p for p in positions if low <= p < high]
