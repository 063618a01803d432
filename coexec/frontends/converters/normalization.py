"""Normalisation nodes and Softmax."""

from __future__ import annotations

from coexec.frontends.converters.reading import axis_attribute, fail, integer, number, output_count, shape
from coexec.frontends.onnx_node import Converted, Converter, OnnxNode
from coexec.ops.batch_norm import BatchNorm
from coexec.ops.group_norm import GroupNorm
from coexec.ops.layer_norm import LayerNorm, RMSNorm
from coexec.ops.lrn import LRN
from coexec.ops.softmax import Softmax

FLOAT = 1  # TensorProto.FLOAT, without importing onnx


def softmax(log: bool) -> Converter:
    """Converter to Softmax; before opset 13 all axes from ``axis`` on are normalised together."""

    def convert(node: OnnxNode) -> Converted:
        rank = len(shape(node))
        if node.opset >= 13:
            return Converted(Softmax((axis_attribute(node, -1),), log), node.inputs)
        return Converted(Softmax(tuple(range(axis_attribute(node, 1), rank)), log), node.inputs)

    return convert


def layer_norm(node: OnnxNode) -> Converted:
    _check_stash_type(node)
    op = LayerNorm(axis_attribute(node, -1), number(node, "epsilon", 1e-5), output_count(node) - 1)
    return Converted(op, node.inputs)


def rms_norm(node: OnnxNode) -> Converted:
    _check_stash_type(node)
    return Converted(RMSNorm(axis_attribute(node, -1), number(node, "epsilon", 1e-5)), node.inputs)


def _check_stash_type(node: OnnxNode) -> None:
    kind = integer(node, "stash_type", FLOAT)
    if kind != FLOAT:
        raise fail(node, f"stash_type is {kind}; only {FLOAT} (float32) is supported")


def group_norm(node: OnnxNode) -> Converted:
    _check_stash_type(node)
    return Converted(GroupNorm(integer(node, "num_groups", 1), number(node, "epsilon", 1e-5)), node.inputs)


def instance_norm(node: OnnxNode) -> Converted:
    x = shape(node)
    if len(x) < 3 or not x[1]:
        raise fail(node, f"an input of shape {x} has no channels with positions")
    return Converted(GroupNorm(x[1], number(node, "epsilon", 1e-5)), node.inputs)


def batch_norm(node: OnnxNode) -> Converted:
    training = bool(integer(node, "training_mode", 0))
    if len(node.outputs) > 1 and not training:  # up to opset 13 further outputs mean training, read or not
        raise fail(node, "has training outputs; export the model for inference")
    if not integer(node, "spatial", 1):
        raise fail(node, "has spatial=0, which newer ONNX dropped; convert the model to opset 9 or newer")
    op = BatchNorm(number(node, "epsilon", 1e-5), training, number(node, "momentum", 0.9))
    return Converted(op, node.inputs)


def lrn(node: OnnxNode) -> Converted:
    op = LRN(integer(node, "size", 1), number(node, "alpha", 1e-4), number(node, "beta", 0.75), number(node, "bias", 1))
    return Converted(op, node.inputs)
