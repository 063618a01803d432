"""2-D convolution with fused bias, residual and activation: act(conv(x, w) + bias + residual)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Shape
from coexec.ops.activation import NO_ACTIVATION, Activation
from coexec.ops.base import ArraySpec, Axis, Columns, Ints, Matmul, Part, SplitOp
from coexec.ops.operands import check_bias, check_size
from coexec.ops.views import Box

Number = TypeVar("Number", int, Ints)


def conv_output(size: Number, kernel: Number, stride: Number, pads: Number, dilation: Number) -> Number:
    """Output size along one spatial axis; works on ints and on arrays."""
    return (size + pads - (dilation * (kernel - 1) + 1)) // stride + 1


@dataclass(frozen=True)
class Conv2d(SplitOp):
    """Convolution of N x C_in x H x W by C_out x (C_in / groups) x KH x KW.

    Inputs: x, weight, bias or None, residual (shape of the output) or None.
    Canonical arrays: x [N,H,W,C_in], weight [KH,KW,C_in/groups,C_out], output [N,OH,OW,C_out].
    """

    N: int
    C_in: int
    H: int
    W: int
    C_out: int
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
    groups: int = 1
    bias: bool = False
    residual: bool = False
    activation: Activation = NO_ACTIVATION

    kind: ClassVar[str] = "conv2d"

    @property
    def OH(self) -> int:
        return conv_output(self.H, self.KH, self.stride_h, self.pad_top + self.pad_bottom, self.dilation_h)

    @property
    def OW(self) -> int:
        return conv_output(self.W, self.KW, self.stride_w, self.pad_left + self.pad_right, self.dilation_w)

    @property
    def spatial(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x, weight = inputs[0], inputs[1]
        assert x is not None and weight is not None
        if x.shape != (self.N, self.C_in, self.H, self.W):
            raise ModelError(f"conv2d: input has shape {x.shape}, expected {(self.N, self.C_in, self.H, self.W)}")
        expected = (self.C_out, self.C_in // self.groups, self.KH, self.KW)
        if weight.shape != expected or self.C_in % self.groups or self.C_out % self.groups:
            raise ModelError(
                f"conv2d: weight of shape {weight.shape} does not fit {self.C_in} input channels, {self.groups} groups"
            )
        check_bias(inputs, 2, self.C_out, self.kind)
        check_size("conv2d: padded input", self.padded_shape, x.dtype.itemsize)
        if self.OH < 1 or self.OW < 1:
            raise ModelError(f"conv2d: kernel {self.KH}x{self.KW} is larger than the padded input {self.H}x{self.W}")
        return (ArraySpec((self.N, self.C_out, self.OH, self.OW), x.dtype),)

    @property
    def array_shapes(self) -> dict[str, Shape]:
        x, y = (self.N, self.C_in, self.H, self.W), (self.N, self.C_out, self.OH, self.OW)
        return self._shapes(x, (self.C_out, self.C_in // self.groups, self.KH, self.KW), self.C_out, y)

    @property
    def shape_text(self) -> str:
        """Channels, kernel, stride and (after @) input size: "64->128 3x3/2 @56"."""
        size = f"{self.H}" if self.H == self.W else f"{self.H}x{self.W}"
        stride = "" if (self.stride_h, self.stride_w) == (1, 1) else f"/{self.stride_h}"
        if self.stride_w != self.stride_h:
            stride += f"x{self.stride_w}"
        dilation = "" if (self.dilation_h, self.dilation_w) == (1, 1) else f" d{max(self.dilation_h, self.dilation_w)}"
        depthwise = self.groups == self.C_in == self.C_out
        groups = "" if self.groups == 1 else " depthwise" if depthwise else f" g{self.groups}"
        batch = "" if self.N == 1 else f"{self.N} x "
        return f"{batch}{self.C_in}->{self.C_out} {self.KH}x{self.KW}{stride}{dilation}{groups} @{size}"

    @classmethod
    def matmul(cls, c: Mapping[str, Ints]) -> Matmul:
        return Matmul(
            c["N"] * output_height(c) * output_width(c),
            c["KH"] * c["KW"] * (c["C_in"] // c["groups"]),
            c["C_out"],
            c["groups"],
            c["N"] * c["H"] * c["W"] * c["C_in"],
        )

    def units(self, axis: Axis) -> int:
        return {"channel": self.C_out, "row": self.OH, "none": 1}[axis]

    def step(self, axis: Axis) -> int:
        return self.C_out // self.groups if axis == "channel" and self.groups > 1 else 1

    def canonical(self, inputs: Sequence[Array | None], output: Array) -> tuple[list[Array | None], Array]:
        x, weight, bias, residual = (*inputs, None, None)[:4]
        assert x is not None and weight is not None
        nhwc = (0, 2, 3, 1)
        return [
            x.transpose(nhwc),
            weight.transpose(2, 3, 1, 0),
            bias,
            None if residual is None else residual.transpose(nhwc),
        ], output.transpose(nhwc)

    @classmethod
    def cut_columns(cls, axis: Axis, columns: Mapping[str, Ints], start: Ints, stop: Ints) -> Columns:
        part = {name: np.broadcast_to(v, np.broadcast_shapes(v.shape, start.shape)) for name, v in columns.items()}
        if axis == "channel":
            per_group = part["C_out"] // part["groups"]
            groups = np.where(part["groups"] > 1, (stop - start) // per_group, 1)
            part["C_in"] = part["C_in"] // part["groups"] * groups
            part["C_out"], part["groups"] = stop - start, groups
        elif axis == "row":
            first, last, above, below = _input_rows(part, start, stop)
            part["H"], part["pad_top"], part["pad_bottom"] = last - first, above, below
        return part

    def part(self, axis: Axis, start: int, stop: int) -> Part:
        a, b = np.array([start]), np.array([stop])
        op: Conv2d = self.with_fields(self.cut_columns(axis, self.columns(), a, b))
        whole = slice(None)
        if axis == "channel":
            per_group_in = self.C_in // self.groups
            first = start * self.groups // self.C_out * per_group_in if self.groups > 1 else 0
            channels = slice(start, stop)
            output: Box = (whole, whole, whole, channels)
            return Part(
                op,
                (
                    (whole, whole, whole, slice(first, first + op.C_in)),
                    (whole, whole, whole, channels),
                    (channels,),
                    output,
                ),
                output,
            )
        if axis == "row":
            top = int(_input_rows(self.columns(), a, b)[0][0])
            output = (whole, slice(start, stop), whole, whole)
            return Part(op, ((whole, slice(top, top + op.H), whole, whole), None, None, output), output)
        return Part(self, (None, None, None, None), (whole,) * 4)

    @property
    def padded_shape(self) -> Shape:
        """Shape of the canonical input with its padding."""
        height, width = self.pad_top + self.H + self.pad_bottom, self.pad_left + self.W + self.pad_right
        return (self.N, height, width, self.C_in)

    def placed_rows(self) -> tuple[slice, slice]:
        """Which rows of the padded input are which rows of the input.

        All of them, unless the op is a part that lies in the padding alone: its padding on one side is negative.
        """
        first = max(self.pad_top, 0)
        end = max(first, min(self.pad_top + self.H, self.pad_top + self.H + self.pad_bottom))
        return slice(first, end), slice(first - self.pad_top, end - self.pad_top)

    def logical_box(self, box: Box | None, port: int, shape: Shape) -> Box:
        if box is None:
            return (slice(None),) * len(shape)
        if port in (0, 3, -1):
            return (box[0], box[3], box[1], box[2])
        return (box[3], box[2], box[0], box[1]) if port == 1 else box

    def reference(self, inputs: Sequence[Array | None]) -> Array:
        x, weight, bias, residual = (*inputs, None, None)[:4]
        assert x is not None and weight is not None
        padded = np.zeros(self.padded_shape)
        inner, rows = self.placed_rows()
        padded[:, inner, self.pad_left : self.pad_left + self.W] = x[:, rows]
        out = np.zeros((self.N, self.OH, self.OW, self.C_out))
        c_in, c_out = self.C_in // self.groups, self.C_out // self.groups
        for g in range(self.groups):
            for i in range(self.KH):
                for j in range(self.KW):
                    top, left = i * self.dilation_h, j * self.dilation_w
                    taps = padded[
                        :,
                        top : top + self.stride_h * (self.OH - 1) + 1 : self.stride_h,
                        left : left + self.stride_w * (self.OW - 1) + 1 : self.stride_w,
                        g * c_in : (g + 1) * c_in,
                    ]
                    kernel = weight[i, j, :, g * c_out : (g + 1) * c_out].astype(np.float64)
                    out[..., g * c_out : (g + 1) * c_out] += taps @ kernel
        if bias is not None:
            out += bias
        if residual is not None:
            out += residual
        self.activation.apply(out)
        return out


def output_height(c: Mapping[str, Ints]) -> Ints:
    return conv_output(c["H"], c["KH"], c["stride_h"], c["pad_top"] + c["pad_bottom"], c["dilation_h"])


def output_width(c: Mapping[str, Ints]) -> Ints:
    return conv_output(c["W"], c["KW"], c["stride_w"], c["pad_left"] + c["pad_right"], c["dilation_w"])


def _input_rows(c: Mapping[str, Ints], start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """First and end input row that output rows [start, stop) read, and the padding left over."""
    reach = c["dilation_h"] * (c["KH"] - 1) + 1
    first = start * c["stride_h"] - c["pad_top"]
    last = (stop - 1) * c["stride_h"] - c["pad_top"] + reach
    # A part may lie in the padding alone; it then still owns one row of input, which no tap reaches, and its
    # padding on the side towards the image is negative.
    inner_first = np.clip(first, 0, c["H"] - 1)
    inner_last = np.clip(last, inner_first + 1, c["H"])
    return inner_first, inner_last, inner_first - first, last - inner_last
