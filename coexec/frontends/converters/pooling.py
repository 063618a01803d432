"""Pooling nodes."""

from __future__ import annotations

from coexec.frontends.converters.reading import fail, integer, integers, output_count, shape
from coexec.frontends.converters.windows import auto_pad, read_window
from coexec.frontends.onnx_node import Converted, Converter, OnnxNode
from coexec.ops.global_pool import GlobalPool
from coexec.ops.pool import Pool
from coexec.ops.window import Window


def max_pool(node: OnnxNode) -> Converted:
    op = Pool(
        "max",
        _window(node),
        indices=output_count(node) > 1,
        column_major=bool(integer(node, "storage_order", 0)),
    )
    return Converted(op, node.inputs)


def average_pool(node: OnnxNode) -> Converted:
    include = bool(integer(node, "count_include_pad", 0))
    return Converted(Pool("average", _window(node), count_include_pad=include), node.inputs)


def lp_pool(node: OnnxNode) -> Converted:
    return Converted(Pool("lp", _window(node), p=integer(node, "p", 2)), node.inputs)


def global_pool(function: str) -> Converter:
    """Converter to a GlobalPool of that function."""
    return lambda node: Converted(GlobalPool(function, integer(node, "p", 2)), node.inputs)


def _window(node: OnnxNode) -> Window:
    kernel = integers(node, "kernel_shape")
    if kernel is None:
        raise fail(node, "attribute kernel_shape is missing")
    size = shape(node)[2:]
    window = read_window(node, size, kernel)
    if auto_pad(node).startswith("SAME"):
        # How far the window must reach beyond the input for ceil(size / stride) outputs.
        missing = [(-(-n // s) - 1) * s + k - n for n, s, k in zip(size, window.strides, kernel, strict=True)]
        if max(window.dilations) > 1 or min(missing) < 0:
            raise fail(node, "combines auto_pad SAME with dilations or gaps, where runtimes disagree; write out pads")
    if any(pad >= k for pads in (window.begin, window.end) for pad, k in zip(pads, kernel, strict=True)):
        raise fail(node, f"pads {(*window.begin, *window.end)} are not smaller than the kernel {kernel}")
    return window
