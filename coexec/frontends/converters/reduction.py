"""Reduce* and ArgMax / ArgMin."""

from __future__ import annotations

from coexec.frontends.converters.reading import (
    axes_by_opset,
    axis_attribute,
    fail,
    integer,
    is_float,
    normalized_axis,
    shape,
    spec,
)
from coexec.frontends.onnx_node import Converted, Converter, OnnxNode
from coexec.ops.arg_reduce import ArgReduce
from coexec.ops.reduce import Reduce


def reduce(function: str, axes_input_opset: int = 18) -> Converter:
    """Converter to a Reduce of that function; from ``axes_input_opset`` on the axes are an input."""

    def convert(node: OnnxNode) -> Converted:
        rank = len(shape(node))
        if function.startswith("log") and not is_float(spec(node, 0)):
            raise fail(node, "takes the logarithm of integers; cast them to float32")
        axes = axes_by_opset(node, axes_input_opset)
        if not axes:
            axes = () if integer(node, "noop_with_empty_axes", 0) else tuple(range(rank))
        axes = tuple(sorted({normalized_axis(node, axis, rank) for axis in axes}))
        return Converted(Reduce(function, axes, bool(integer(node, "keepdims", 1))), node.inputs[:1])

    return convert


def arg_reduce(largest: bool) -> Converter:
    """Converter to an ArgReduce."""

    def convert(node: OnnxNode) -> Converted:
        keepdims, last = bool(integer(node, "keepdims", 1)), bool(integer(node, "select_last_index", 0))
        return Converted(ArgReduce(axis_attribute(node, 0), largest, keepdims, last), node.inputs)

    return convert
