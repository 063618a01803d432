"""One layer as an ONNX model, for the libraries that it is compared with."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from coexec.layout import Array
from coexec.measure import random_constants
from coexec.ops.activation import Activation
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

OPSET, IR_VERSION = 20, 9
"""Gelu entered the standard with opset 20."""


def layer_model(op: Conv2d | Linear, copies: int) -> ModelProto:
    """``copies`` independent layers like ``op`` with inputs x0, x1, ... and outputs y0, y1, ...

    Each has weights of its own, the same as in :class:`coexec.measure.LayerRig`. A residual is an input r0, ...
    """
    shapes = op.array_shapes
    nodes: list[NodeProto] = []
    initializers: list[TensorProto] = []
    inputs, outputs = [], []
    for i in range(copies):
        for role, value in random_constants(shapes, seed=i).items():
            initializers.append(numpy_helper.from_array(value, f"{role}{i}"))
        nodes += _layer_nodes(op, i, initializers)
        ports = [("x", "x"), ("r", "residual")] if op.residual else [("x", "x")]
        inputs += [helper.make_tensor_value_info(f"{p}{i}", TensorProto.FLOAT, shapes[role]) for p, role in ports]
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, shapes["y"]))
    graph = helper.make_graph(nodes, "layer", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _layer_nodes(op: Conv2d | Linear, i: int, initializers: list[TensorProto]) -> list[NodeProto]:
    has_activation = op.activation.kind != "none"
    summed = f"sum{i}" if has_activation else f"y{i}"
    product = f"product{i}" if op.residual else summed
    arrays = [f"x{i}", f"weight{i}", *([f"bias{i}"] if op.bias else [])]
    if isinstance(op, Linear):
        # Not Gemm without a bias: some converters take its weights for an operand that changes.
        nodes = [helper.make_node("Gemm" if op.bias else "MatMul", arrays, [product])]
    else:
        nodes = [
            helper.make_node(
                "Conv",
                arrays,
                [product],
                kernel_shape=[op.KH, op.KW],
                strides=[op.stride_h, op.stride_w],
                pads=[op.pad_top, op.pad_left, op.pad_bottom, op.pad_right],
                dilations=[op.dilation_h, op.dilation_w],
                group=op.groups,
            )
        ]
    if op.residual:
        nodes.append(helper.make_node("Add", [product, f"r{i}"], [summed]))
    if has_activation:
        nodes += _activation_nodes(op.activation, summed, f"y{i}", initializers)
    return nodes


def _activation_nodes(a: Activation, x: str, y: str, initializers: list[TensorProto]) -> list[NodeProto]:
    def constant(name: str, value: float) -> str:
        initializers.append(helper.make_tensor(f"{y}:{name}", TensorProto.FLOAT, [], [value]))
        return f"{y}:{name}"

    if a.kind == "clip":
        return [helper.make_node("Clip", [x, constant("low", a.alpha), constant("high", a.beta)], [y])]
    if a.kind == "leaky_relu":
        return [helper.make_node("LeakyRelu", [x], [y], alpha=a.alpha)]
    if a.kind == "silu":
        return [helper.make_node("Sigmoid", [x], [f"{y}:gate"]), helper.make_node("Mul", [x, f"{y}:gate"], [y])]
    if a.kind == "gelu_tanh":
        return [helper.make_node("Gelu", [x], [y], approximate="tanh")]
    return [helper.make_node(PLAIN_ACTIVATIONS[a.kind], [x], [y])]


PLAIN_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "hard_swish": "HardSwish", "gelu": "Gelu", "tanh": "Tanh"}
"""Activations that are one ONNX node without parameters."""


def layer_feeds(op: Conv2d | Linear, copies: int) -> dict[str, Array]:
    """Normal values for the inputs of ``layer_model``."""
    shapes, rng = op.array_shapes, np.random.default_rng(1)
    ports = [("x", "x"), ("r", "residual")] if op.residual else [("x", "x")]
    return {f"{port}{i}": rng.standard_normal(shapes[role], np.float32) for i in range(copies) for port, role in ports}
