"""Conv and ConvTranspose."""

from __future__ import annotations

from coexec.frontends.converters.reading import fail, integer, integers, is_float, present, shape, spec
from coexec.frontends.converters.windows import (
    auto_pad,
    explicit_padding,
    read_window,
    share_padding,
    spatial_attribute,
)
from coexec.frontends.onnx_node import Converted, OnnxNode
from coexec.layout import Shape
from coexec.ops.conv2d import Conv2d
from coexec.ops.conv_nd import ConvNd
from coexec.ops.conv_transpose import ConvTranspose
from coexec.ops.window import Window


def conv(node: OnnxNode) -> Converted:
    """2-D: a Conv2d, which can be cut; other ranks: a ConvNd."""
    x, weight = shape(node, 0), shape(node, 1)
    _check(node, x, weight)
    window, groups = read_window(node, x[2:], weight[2:]), integer(node, "group", 1)
    inputs = node.inputs[:3] if present(node, 2) else node.inputs[:2]
    if len(x) != 4:
        return Converted(ConvNd(window, groups), inputs)
    return Converted(_conv2d(x, weight[0], window, groups, len(inputs) == 3), inputs)


def conv_transpose(node: OnnxNode) -> Converted:
    x, weight = shape(node, 0), shape(node, 1)
    _check(node, x, weight)
    if 0 in x[1:]:
        raise fail(node, f"an input of shape {x} has no channels or positions")
    window, out = _transposed_window(node, x[2:], weight[2:])
    return Converted(ConvTranspose(window, out, integer(node, "group", 1)), node.inputs)


def _check(node: OnnxNode, x: Shape, weight: Shape) -> None:
    if len(x) < 3 or len(weight) != len(x):
        raise fail(node, f"weight of shape {weight} does not fit an input of shape {x}")
    kernel = integers(node, "kernel_shape")
    if kernel is not None and kernel != weight[2:]:
        raise fail(node, f"kernel_shape {kernel} contradicts the weight of shape {weight}")
    if not is_float(spec(node, 0)):
        raise fail(node, f"computes in {spec(node, 0).dtype}; convert the model to float32")


def _conv2d(x: Shape, c_out: int, window: Window, groups: int, bias: bool) -> Conv2d:
    return Conv2d(
        N=x[0],
        C_in=x[1],
        H=x[2],
        W=x[3],
        C_out=c_out,
        KH=window.kernel[0],
        KW=window.kernel[1],
        stride_h=window.strides[0],
        stride_w=window.strides[1],
        pad_top=window.begin[0],
        pad_left=window.begin[1],
        pad_bottom=window.end[0],
        pad_right=window.end[1],
        dilation_h=window.dilations[0],
        dilation_w=window.dilations[1],
        groups=groups,
        bias=bias,
    )


def _transposed_window(node: OnnxNode, size: Shape, kernel: Shape) -> tuple[Window, Shape]:
    """The window of the convolution run backwards, and the spatial shape that it writes."""
    rank = len(size)
    strides, dilations = spatial_attribute(node, "strides", rank), spatial_attribute(node, "dilations", rank)
    extra = integers(node, "output_padding") or (0,) * rank
    if len(extra) != rank or any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise fail(node, f"output_padding {extra} does not fit strides {strides} and dilations {dilations}")
    mode, out = auto_pad(node), integers(node, "output_shape")
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in zip(size, strides, dilations, kernel, extra, strict=True)
    ]
    if out is not None:
        if len(out) not in (rank, rank + 2):
            raise fail(node, f"output_shape {out} does not fit {rank} spatial axes")
        out = out[-rank:]
    elif mode.startswith("SAME"):
        out = tuple(n * s for n, s in zip(size, strides, strict=True))
    if out is not None:
        totals = [max(0, whole - wanted) for whole, wanted in zip(full, out, strict=True)]
        begin, end = share_padding(totals, mode == "SAME_UPPER")
    else:
        begin, end = explicit_padding(node, rank) if mode == "NOTSET" else ((0,) * rank, (0,) * rank)
        out = tuple(whole - b - e for whole, b, e in zip(full, begin, end, strict=True))
    if min(out) < 1:
        raise fail(node, f"its output would have spatial shape {out}")
    return Window(kernel, strides, begin, end, dilations), out
