"""Elementwise nodes: arithmetic, comparison, logic, unary functions, activations, Cast, Clip."""

from __future__ import annotations

from typing import Any

import numpy as np

from coexec.frontends.converters.reading import (
    choice,
    fail,
    integer,
    is_float,
    is_native,
    number,
    output_count,
    present,
    scalar,
    spec,
    text,
)
from coexec.frontends.converters.reference import reference
from coexec.frontends.onnx_node import Converted, Converter, OnnxNode
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.base import Op
from coexec.ops.cast import Cast
from coexec.ops.clip import Clip
from coexec.ops.elementwise import Elementwise
from coexec.ops.identity import Identity
from coexec.ops.unary import Unary


def elementwise(function: str) -> Converter:
    """Converter to the Elementwise op of that function."""
    return lambda node: Converted(Elementwise(function), node.inputs)


def unary(function: str, **defaults: float) -> Converter:
    """Converter to a Unary op; ``defaults`` are its attributes, which become alpha and beta in order."""

    def convert(node: OnnxNode) -> Converted:
        parameters = [number(node, name, default) for name, default in defaults.items()]
        return _one_input(node, Unary(function, *parameters))

    return convert


def activation(kind: str, **defaults: float) -> Converter:
    """Converter to an activation on its own, with parameters as ``unary`` has them."""

    def convert(node: OnnxNode) -> Converted:
        parameters = [number(node, name, default) for name, default in defaults.items()]
        return _one_input(node, Activate(Activation(kind, *parameters)))

    return convert


def mod(node: OnnxNode) -> Converted:
    return Converted(Elementwise("fmod" if integer(node, "fmod", 0) else "mod"), node.inputs)


def bit_shift(node: OnnxNode) -> Converted:
    direction = text(node, "direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise fail(node, f"direction is {direction!r}, not LEFT or RIGHT")
    return Converted(Elementwise(f"shift_{direction.lower()}"), node.inputs)


def celu(node: OnnxNode) -> Converted:
    alpha = number(node, "alpha", 1.0)
    if alpha == 0:
        raise fail(node, "alpha is 0, by which it divides")
    return _one_input(node, Unary("celu", alpha))


def gelu(node: OnnxNode) -> Converted:
    approximate = choice(node, "approximate", "none", ("none", "tanh"))
    return _one_input(node, Activate(Activation("gelu_tanh" if approximate == "tanh" else "gelu")))


def swish(node: OnnxNode) -> Converted:
    alpha = number(node, "alpha", 1.0)
    return _one_input(node, Activate(Activation("silu")) if alpha == 1 else Unary("swish", alpha))


def clip(node: OnnxNode) -> Converted:
    """Constant float limits make an activation, which convolutions take in; others an op of their own."""
    if node.opset < 11:
        low, high = (number(node, name, limit) for name, limit in (("min", -np.inf), ("max", np.inf)))
        return _one_input(node, Activate(Activation("clip", low, high)))
    limits = [index for index in (1, 2) if present(node, index)]
    if not is_float(spec(node, 0)) or any(node.constants[index] is None for index in limits):
        return Converted(Clip(), node.inputs)
    values = {index: float(scalar(node, index, "a limit")) for index in limits}
    if any(np.isnan(value) for value in values.values()):
        raise fail(node, "a limit is not a number")
    return _one_input(node, Activate(Activation("clip", values.get(1, -np.inf), values.get(2, np.inf))))


def cast(node: OnnxNode) -> Converted:
    from onnx import helper

    return _cast(node, np.dtype(helper.tensor_dtype_to_np_dtype(integer(node, "to", 1))))


def cast_like(node: OnnxNode) -> Converted:
    return _cast(node, spec(node, 1).dtype)


def identity(node: OnnxNode) -> Converted:
    return _one_input(node, Identity())


def dropout(node: OnnxNode) -> Converted:
    """Inference only: nothing is dropped. Training with a ratio above 0 is random and refused."""
    if node.opset < 10 and output_count(node) > 1:
        raise fail(node, "gives out a mask of floats; convert the model to opset 10 or newer")
    if present(node, 1) and node.constants[1] is not None and not 0 <= scalar(node, 1, "the ratio") < 1:
        raise fail(node, "the ratio (input 1) is not between 0 and 1")
    if node.opset >= 12 and present(node, 2) and scalar(node, 2, "training_mode"):
        if present(node, 1) and scalar(node, 1, "the ratio") == 0:
            return _one_input(node, Identity(mask=output_count(node) > 1))
        raise fail(node, "is in training mode; export the model for inference")
    return _one_input(node, Identity(mask=output_count(node) > 1))


def _cast(node: OnnxNode, dtype: np.dtype[Any]) -> Converted:
    if not is_native(dtype) or not is_native(spec(node, 0).dtype):
        return reference(node)
    return _one_input(node, Cast(dtype))


def _one_input(node: OnnxNode, op: Op) -> Converted:
    return Converted(op, node.inputs[:1])
