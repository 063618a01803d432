"""The ONNX frontend against onnxruntime: every surviving tensor, every fusion, every kind of bad model."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_builder import (
    RNG,
    Builder,
    assert_like_onnxruntime,
    kinds,
    open_tensor,
)
from single_node import assert_same, run_onnxruntime, run_or_refuse

from coexec.errors import InputError, ModelError
from coexec.frontends.onnx import load_onnx
from coexec.layout import Layout
from coexec.ops.activation import Activation
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

# Fusion ----------------------------------------------------------------------------------------------


def silu(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", x))


def silu_other_order(b: Builder, x: str) -> str:
    return b.add("Mul", b.add("Sigmoid", x), x)


def relu6(b: Builder, x: str) -> str:
    return b.add("Clip", x, b.constant(0), b.constant(6))


def hard_swish_clip(b: Builder, x: str) -> str:
    shifted = b.add("Add", x, b.constant(3))
    return b.add("Div", b.add("Mul", x, b.add("Clip", shifted, b.constant(0), b.constant(6))), b.constant(6))


def hard_swish_sigmoid(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def gelu_erf(b: Builder, x: str) -> str:
    gate = b.add("Add", b.add("Erf", b.add("Div", x, b.constant(math.sqrt(2)))), b.constant(1))
    return b.add("Mul", b.add("Mul", x, gate), b.constant(0.5))


def gelu_erf_half_first(b: Builder, x: str) -> str:
    gate = b.add("Add", b.constant(1), b.add("Erf", b.add("Mul", x, b.constant(math.sqrt(0.5)))))
    return b.add("Mul", b.add("Mul", b.constant(0.5), x), gate)


def gelu_tanh_pow(b: Builder, x: str) -> str:
    cubic = b.add("Mul", b.add("Pow", x, b.constant(3)), b.constant(0.044715))
    inner = b.add("Mul", b.add("Add", x, cubic), b.constant(math.sqrt(2 / math.pi)))
    gate = b.add("Add", b.add("Tanh", inner), b.constant(1))
    return b.add("Mul", b.add("Mul", x, b.constant(0.5)), gate)


def gelu_tanh_factored(b: Builder, x: str) -> str:
    square = b.add("Mul", b.add("Mul", x, b.constant(0.044715)), x)
    bracket = b.add("Add", b.constant(1), square)
    inner = b.add("Mul", b.add("Mul", x, b.constant(0.7978845608)), bracket)
    return b.add("Mul", b.add("Mul", b.constant(0.5), x), b.add("Add", b.constant(1), b.add("Tanh", inner)))


def one(op: str, **attributes: object) -> Callable[[Builder, str], str]:
    def write(b: Builder, x: str) -> str:
        return b.add(op, x, **attributes)

    return write


@dataclass(frozen=True)
class ActivationCase:
    name: str
    write: Callable[[Builder, str], str]
    expected: Activation
    opset: int = 17


ACTIVATION_CASES = [
    ActivationCase("relu", one("Relu"), Activation("relu")),
    ActivationCase("relu6", relu6, Activation("clip", 0, 6)),
    ActivationCase("relu6-opset9", one("Clip", min=0.0, max=6.0), Activation("clip", 0, 6), 9),
    ActivationCase("leaky-relu", one("LeakyRelu", alpha=0.25), Activation("leaky_relu", 0.25)),
    ActivationCase("sigmoid", one("Sigmoid"), Activation("sigmoid")),
    ActivationCase("tanh", one("Tanh"), Activation("tanh")),
    ActivationCase("hard-swish-op", one("HardSwish"), Activation("hard_swish")),
    ActivationCase("hard-swish-clip", hard_swish_clip, Activation("hard_swish")),
    ActivationCase("hard-swish-hardsigmoid", hard_swish_sigmoid, Activation("hard_swish")),
    ActivationCase("silu", silu, Activation("silu")),
    ActivationCase("silu-other-order", silu_other_order, Activation("silu")),
    ActivationCase("gelu-op", one("Gelu"), Activation("gelu"), 20),
    ActivationCase("gelu-op-tanh", one("Gelu", approximate="tanh"), Activation("gelu_tanh"), 20),
    ActivationCase("gelu-erf", gelu_erf, Activation("gelu")),
    ActivationCase("gelu-erf-half-first", gelu_erf_half_first, Activation("gelu")),
    ActivationCase("gelu-tanh-pow", gelu_tanh_pow, Activation("gelu_tanh")),
    ActivationCase("gelu-tanh-factored", gelu_tanh_factored, Activation("gelu_tanh")),
]
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Builder, str], str]]] = {
    "conv": ((1, 4, 5, 5), Builder.conv),
    "matmul": ((2, 3, 4), Builder.linear),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("case", ACTIVATION_CASES, ids=lambda case: case.name)
def test_activation_is_fused_into_the_layer(case: ActivationCase, layer: str) -> None:
    shape, write_layer = LAYERS[layer]
    b = Builder(case.opset)
    model = b.model(case.write(b, write_layer(b, b.input("x", *shape))))
    graph = load_onnx(model)
    (node,) = graph.nodes
    assert isinstance(node.op, (Conv2d, Linear))
    assert node.op.activation == case.expected
    assert_like_onnxruntime(model, graph)


@pytest.mark.parametrize("case", ACTIVATION_CASES, ids=lambda case: case.name)
def test_activation_stays_alone_without_a_layer(case: ActivationCase) -> None:
    b = Builder(case.opset)
    model = b.model(case.write(b, b.input("x", 2, 4)))
    graph = load_onnx(model)
    assert kinds(graph) == ["activate"]
    assert_like_onnxruntime(model, graph)


@pytest.mark.parametrize("case", ACTIVATION_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("why", ["output", "two readers"])
def test_layer_keeps_its_output_when_others_need_it(case: ActivationCase, why: str) -> None:
    b = Builder(case.opset)
    y = b.conv(b.input("x", 1, 4, 5, 5))
    end = case.write(b, y)
    extra = y if why == "output" else b.add("Neg", y)
    model = b.model(end, extra)
    graph = load_onnx(model)
    assert y in graph.tensors
    conv = next(node for node in graph.nodes if node.outputs == (y,))
    assert isinstance(conv.op, Conv2d)
    assert conv.op.activation == Activation()
    assert_like_onnxruntime(model, graph)


def test_gate_that_is_an_output_is_not_fused() -> None:
    b = Builder()
    x = b.input("x", 2, 4)
    gate = b.add("Sigmoid", x)
    model = b.model(b.add("Mul", x, gate), gate)
    graph = load_onnx(model)
    assert kinds(graph) == ["activate", "elementwise"]
    assert_like_onnxruntime(model, graph)


@pytest.mark.parametrize("wrong", [("erf", 1.5), ("half", 0.4)], ids=lambda w: w[0])
def test_formula_with_other_numbers_is_not_gelu(wrong: tuple[str, float]) -> None:
    which, number = wrong
    b = Builder()
    x = b.input("x", 2, 4)
    divisor, half = (number, 0.5) if which == "erf" else (math.sqrt(2), number)
    gate = b.add("Add", b.add("Erf", b.add("Div", x, b.constant(divisor))), b.constant(1))
    model = b.model(b.add("Mul", b.add("Mul", x, gate), b.constant(half)))
    graph = load_onnx(model)
    assert "activate" not in kinds(graph)
    assert_like_onnxruntime(model, graph)


def bn(b: Builder, y: str, vector: Callable[[], str]) -> str:
    return b.norm(y)


def binary(op: str, swapped: bool = False) -> Callable[[Builder, str, Callable[[], str]], str]:
    def write(b: Builder, y: str, vector: Callable[[], str]) -> str:
        return b.add(op, *((vector(), y) if swapped else (y, vector())))

    return write


def scale_layer(b: Builder, y: str, vector: Callable[[], str]) -> str:
    return b.add("Add", b.add("Mul", b.norm(y), vector()), vector())


AFFINE: dict[str, Callable[[Builder, str, Callable[[], str]], str]] = {
    "batch-norm": bn,
    "add": binary("Add"),
    "add-swapped": binary("Add", True),
    "sub": binary("Sub"),
    "sub-swapped": binary("Sub", True),
    "mul": binary("Mul"),
    "mul-swapped": binary("Mul", True),
    "div": binary("Div"),
    "batch-norm-scale-shift": scale_layer,
}
AFFINE_LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Builder, str], str], tuple[int, ...]]] = {
    # input shape, layer, shape of a constant per channel
    "conv": ((1, 4, 5, 5), Builder.conv, (4, 1, 1)),
    "conv-no-bias": ((2, 4, 5, 5), lambda b, x: b.conv(x, bias=False), (1, 4, 1, 1)),
    "conv-scalar": ((2, 4, 5, 5), Builder.conv, ()),
    "matmul": ((3, 4), Builder.linear, (4,)),
    "matmul-bias": ((3, 4), lambda b, x: b.linear(x, bias=True), (1, 4)),
    "gemm": ((3, 4), lambda b, x: b.add("Gemm", x, b.weights(5, 4), b.weights(5), transB=1), ()),
}


# The builder's norm has 4 channels, its Gemm 5.
AFFINE_PAIRS = [(form, layer) for form in AFFINE for layer in AFFINE_LAYERS if layer != "gemm" or "norm" not in form]


@pytest.mark.parametrize(("form", "layer"), AFFINE_PAIRS)
def test_constants_per_channel_are_folded_into_the_weights(form: str, layer: str) -> None:
    shape, write_layer, vector_shape = AFFINE_LAYERS[layer]
    b = Builder()
    y = write_layer(b, b.input("x", *shape))
    model = b.model(AFFINE[form](b, y, lambda: b.positive(*vector_shape)))
    graph = load_onnx(model)
    assert kinds(graph) == ["linear" if layer in ("matmul", "matmul-bias", "gemm") else "conv2d"]
    assert_like_onnxruntime(model, graph)


@pytest.mark.parametrize("why", ["output", "two readers"])
@pytest.mark.parametrize("form", AFFINE)
def test_layer_keeps_its_weights_when_others_need_its_output(form: str, why: str) -> None:
    b = Builder()
    y = b.conv(b.input("x", 1, 4, 5, 5))
    end = AFFINE[form](b, y, lambda: b.positive(4, 1, 1))
    model = b.model(end, y if why == "output" else b.add("Neg", y))
    graph = load_onnx(model)
    assert y in graph.tensors
    assert end in graph.tensors
    assert_like_onnxruntime(model, graph)


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (1, 4, 5, 5), (1, 1, 1, 5)], ids=str)
def test_constant_that_is_not_per_channel_is_kept(shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.conv(b.input("x", 1, 4, 5, 5))
    model = b.model(b.add("Mul", y, b.weights(*shape)))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d", "elementwise"]
    assert_like_onnxruntime(model, graph)


def test_constant_that_broadcasts_the_output_is_kept() -> None:
    b = Builder()
    y = b.conv(b.input("x", 1, 4, 5, 5))
    model = b.model(b.add("Add", y, b.weights(2, 4, 1, 1)), b.add("Add", y, b.weights(1, 1, 4, 1, 1)))
    assert_like_onnxruntime(model, load_onnx(model))


def test_division_by_zero_is_left_to_run_time() -> None:
    b = Builder()
    model = b.model(b.add("Div", b.conv(b.input("x", 1, 4, 5, 5)), b.constant(np.zeros((4, 1, 1)))))
    assert kinds(load_onnx(model)) == ["conv2d", "elementwise"]


def test_lone_batch_norm_is_an_op_and_takes_scale_and_shift() -> None:
    b = Builder()
    y = b.norm(b.input("x", 2, 4, 3, 3))
    y = b.add("Add", b.add("Mul", y, b.weights(4, 1, 1)), b.weights(4, 1, 1))
    model = b.model(b.add("Relu", y))
    graph = load_onnx(model)
    assert kinds(graph) == ["batch_norm", "activate"]
    assert_like_onnxruntime(model, graph)


def test_batch_norm_after_an_activation_is_not_folded() -> None:
    b = Builder()
    model = b.model(b.norm(b.add("Relu", b.conv(b.input("x", 1, 4, 5, 5)))))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d", "batch_norm"]
    assert_like_onnxruntime(model, graph)


def test_norm_over_another_axis_than_the_linear_columns_is_not_folded() -> None:
    b = Builder()
    model = b.model(b.norm(b.linear(b.input("x", 2, 4, 4))))
    graph = load_onnx(model)
    assert kinds(graph) == ["linear", "relayout", "batch_norm"]
    assert_like_onnxruntime(model, graph)


def test_weights_shared_by_two_layers_are_folded_for_each_alone() -> None:
    b = Builder()
    x, weight = b.input("x", 1, 4, 5, 5), b.weights(4, 4, 1, 1)
    model = b.model(b.norm(b.add("Conv", x, weight)), b.norm(b.add("Conv", x, weight)), b.add("Conv", x, weight))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d"] * 3
    assert_like_onnxruntime(model, graph)


# Residual


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("op", ["Add", "Sum"])
@pytest.mark.parametrize("swapped", [False, True])
def test_residual_and_activation_are_fused_into_the_later_layer(layer: str, op: str, swapped: bool) -> None:
    shape, write_layer = LAYERS[layer]
    b = Builder()
    x = b.input("x", *shape)
    first, second = write_layer(b, x), write_layer(b, x)
    pair = (second, first) if swapped else (first, second)
    model = b.model(b.add("Relu", b.add(op, *pair)))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d" if layer == "conv" else "linear"] * 2
    assert graph.nodes[0].outputs == (first,)
    fused = graph.nodes[1]
    assert isinstance(fused.op, (Conv2d, Linear))
    assert fused.op.residual
    assert fused.op.activation == Activation("relu")
    assert fused.inputs[3] == first
    assert_like_onnxruntime(model, graph)


def test_residual_made_after_the_layer_moves_the_layer() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 5)
    y = b.conv(x)
    skip = b.add("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    model = b.model(b.add("Relu", b.add("Add", y, skip)))
    graph = load_onnx(model)
    assert kinds(graph)[-1] == "conv2d"
    assert len(graph.nodes) == 2
    assert_like_onnxruntime(model, graph)


def test_residual_of_the_layers_own_input() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 5)
    model = b.model(b.add("Add", x, b.conv(x)))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d"]
    assert_like_onnxruntime(model, graph)


UNFUSED_RESIDUALS: dict[str, Callable[[Builder, str, str], tuple[str, ...]]] = {
    "layer read twice": lambda b, x, y: (b.add("Add", x, y), b.add("Neg", y)),
    "layer is an output": lambda b, x, y: (b.add("Add", x, y), y),
    "layer added to itself": lambda b, x, y: (b.add("Add", y, y),),
    "activation first": lambda b, x, y: (b.add("Add", x, b.add("Relu", y)),),
    "broadcast": lambda b, x, y: (b.add("Add", b.add("GlobalAveragePool", x), y),),
}


@pytest.mark.parametrize("why", UNFUSED_RESIDUALS)
def test_residual_is_not_fused(why: str) -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 5)
    model = b.model(*UNFUSED_RESIDUALS[why](b, x, b.conv(x)))
    graph = load_onnx(model)
    convs = [node.op for node in graph.nodes if isinstance(node.op, Conv2d)]
    assert convs
    assert not any(op.residual for op in convs)
    assert "elementwise" in kinds(graph)
    assert_like_onnxruntime(model, graph)


def test_second_residual_stays_an_add_and_scale_after_a_residual_is_not_folded() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 5)
    y = b.add("Add", b.add("Add", b.conv(x), x), x)
    z = b.add("Mul", b.add("Add", b.conv(x), x), b.positive(4, 1, 1))
    model = b.model(y, z)
    graph = load_onnx(model)
    assert kinds(graph).count("elementwise") == 2
    assert_like_onnxruntime(model, graph)


def test_bias_after_the_residual_and_before_the_activation_is_folded() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 5)
    model = b.model(b.add("Relu", b.add("Add", b.add("Add", b.conv(x, bias=False), x), b.weights(4, 1, 1))))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d"]
    assert_like_onnxruntime(model, graph)


# Random networks: the rules together, with readers and outputs anywhere

STEPS: list[Callable[[Builder, str, str], str]] = [
    lambda b, x, y: b.conv(x),
    lambda b, x, y: b.conv(x, bias=False),
    lambda b, x, y: b.linear(x),
    lambda b, x, y: b.norm(x),
    lambda b, x, y: b.add("Add", x, y),
    lambda b, x, y: b.add("Add", x, y),
    lambda b, x, y: b.add("Mul", x, b.positive(4, 1, 1)),
    lambda b, x, y: b.add("Sub", b.weights(1, 4, 1, 1), x),
    lambda b, x, y: b.add("Relu", x),
    lambda b, x, y: b.add("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    lambda b, x, y: b.add("Dropout", b.add("Identity", x)),
    lambda b, x, y: silu(b, x),
    lambda b, x, y: gelu_erf(b, x),
    lambda b, x, y: hard_swish_clip(b, y),
]


@pytest.mark.parametrize("seed", range(40))
def test_random_network(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = Builder()
    made = [b.input("x", 2, 4, 4, 4)]
    for _ in range(12):
        # Mostly the newest tensor, so that chains form; sometimes an old one, so that tensors are shared.
        x, y = (made[-1] if rng.random() < 0.7 else made[rng.integers(len(made))] for _ in range(2))
        made.append(STEPS[rng.integers(len(STEPS))](b, x, y))
    outputs = {made[-1], *(name for name in made[1:] if rng.random() < 0.15)}
    model = b.model(*sorted(outputs))
    graph = load_onnx(model)
    assert_like_onnxruntime(model, graph, tolerance=1e-4)


# Ops that vanish


@pytest.mark.parametrize("opset", [9, 12, 17])
def test_identity_and_dropout_vanish(opset: int) -> None:
    b = Builder(opset)
    x = b.input("x", 1, 4, 5, 5)
    y = b.add("Dropout", b.add("Identity", b.conv(x)))
    model = b.model(b.add("Dropout", b.add("Relu", y)))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d"]
    assert graph.outputs == (model.graph.output[0].name,)
    assert_like_onnxruntime(model, graph)


def test_outputs_that_are_inputs_constants_or_doubles_get_memory_of_their_own() -> None:
    b = Builder()
    x = b.input("x", 2, 3)
    y = b.add("Neg", x)
    outputs = [b.add("Identity", x), b.add("Identity", b.weights(2, 3)), b.add("Identity", y), b.add("Identity", y), y]
    model = b.model(*outputs)
    graph = load_onnx(model)
    assert graph.outputs == tuple(outputs)
    assert set(graph.outputs) <= set(graph.tensors)
    assert_like_onnxruntime(model, graph)


X23, W23 = RNG.standard_normal((2, 3)).astype(np.float32), RNG.standard_normal((2, 3)).astype(np.float32)
PIXELS = RNG.standard_normal((1, 2, 5, 5)).astype(np.float32)


def node(op: str, inputs: str, outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs, **attributes)


def wired(
    nodes: list[onnx.NodeProto],
    inputs: str,
    outputs: str,
    ir_version: int = 8,
    opset: int = 17,
    **constants: np.ndarray,
) -> ModelProto:
    """A model over x [2, 3], p [1, 2, 5, 5] and n []; names ending in _i or _b are of integers or flags."""
    shapes = {"x": (2, 3), "p": (1, 2, 5, 5), "n": ()} | {name: value.shape for name, value in constants.items()}
    kinds = {"i": TensorProto.INT64, "b": TensorProto.BOOL}
    made = [
        helper.make_tensor_value_info(name, kinds.get(name.partition("_")[2], TensorProto.FLOAT), shapes.get(name))
        for name in outputs.split()
    ]
    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in inputs.split()]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "wired", fed, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


RELU = node("Relu", "x", ["y"])
LARGE = np.ones((2, 1000), np.float32)
SCALE = np.array([1, 2, 3], np.float32)
WIRED = {
    "input is an output": wired([RELU], "x", "x y"),
    "input is the only output": wired([], "x", "x"),
    "scalar input is an output": wired([], "n", "n"),
    "input is an output twice": wired([], "x", "x x"),
    "input and its copies": wired([node("Identity", "x", ["y"]), node("Identity", "x", ["z"])], "x", "y z x"),
    "layer's input and output": wired([node("MatMul", "x k", ["y"])], "x", "y x k", k=np.ones((3, 4), np.float32)),
    "constant is an output": wired([RELU], "x", "y w", w=W23),
    "large constant is an output": wired([RELU], "x", "w y", w=LARGE),
    "nothing but a constant": wired([], "", "w", w=W23),
    "nothing but a large constant": wired([], "", "w", w=LARGE),
    "used constant is an output": wired([node("Add", "x w", ["y"])], "x", "y w", w=W23),
    "output twice": wired([RELU], "x", "y y"),
    "unused input": wired([RELU], "x p", "y"),
    "all outputs unused": wired([RELU, node("Split", "x", ["a", "b", "c"], axis=1)], "x", "y"),
    "first output unused": wired([node("MaxPool", "p", ["y", "z_i"], kernel_shape=[2, 2])], "p", "z_i"),
    "last output left out": wired([node("MaxPool", "p", ["y", ""], kernel_shape=[2, 2])], "p", "y"),
    "middle output left out": wired([node("LayerNormalization", "x w", ["y", "", "z"])], "x", "y z", w=SCALE),
    "only the last output used": wired([node("LayerNormalization", "x w", ["y", "m", "z"])], "x", "z", w=SCALE),
    "middle output unused": wired([node("Split", "x", ["a", "b", "c"], axis=1)], "x", "c a"),
    "only the mask used": wired([node("Dropout", "x", ["y", "z_b"])], "x", "z_b"),
    "optional inputs left out": wired([helper.make_node("Clip", ["x", "", ""], ["y"])], "x", "y"),
    "constants named like ours": wired(
        [node("Relu", "x", ["w:constant"]), node("Add", "w:constant w", ["y"])], "x", "y w", w=W23
    ),
    "tensor named like a converted weight": wired(
        [
            helper.make_node("Gemm", ["x", "w"], ["a"], "g", transB=1),
            node("Relu", "a", ["g:1"]),
            node("Neg", "g:1", ["y"]),
        ],
        "x",
        "y g:1",
        w=W23,
    ),
    **{
        f"constant listed as an input, IR {v}": wired([node("Add", "x w", ["y"])], "x w", "y w", v, 9, w=W23)
        for v in (3, 4, 8)
    },
    **{f"large constant listed as an input, IR {v}": wired([RELU], "x w", "y w", v, 9, w=LARGE) for v in (3, 4, 8)},
}


@pytest.mark.parametrize("name", WIRED)
def test_odd_wiring_runs_as_in_onnxruntime(name: str) -> None:
    model = WIRED[name]
    values = {"x": X23, "p": PIXELS, "n": np.array(3, np.float32)}
    feed = {value.name: values[value.name] for value in model.graph.input if value.name in values}
    outputs = run_or_refuse(model, feed)
    assert not isinstance(outputs, str), outputs
    assert_same(outputs, run_onnxruntime(model, feed), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wired([RELU], "x", ""), "has no outputs: there is nothing to compute"),
        (wired([], "x", ""), "holds no graph"),
        (wired([node("Relu", "x", [""]), RELU], "x", "y"), "is marked single but has an empty string"),
        (wired([node("Split", "x", ["a", "a", "y"], axis=1)], "x", "y"), "single static assignment"),
        (
            wired([node("BatchNormalization", "p s s s s", list("yabcd"))], "p s", "y", 8, 9, s=SCALE[:2]),
            "training outputs",
        ),
        (wired([node("Add", "x w", ["y"])], "x", "y", w=W23.astype(np.float64)), "they must be alike"),
        (wired([node("BitwiseNot", "x", ["y"])], "x", "y", opset=18), "which the op does not take"),
        (wired([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)], "x", "y_i"), "made by no node"),
    ],
)
def test_wiring_that_is_refused(model: ModelProto, message: str) -> None:
    assert_one_line(lambda: load_onnx(model), message)


def test_a_constant_listed_as_an_input_cannot_be_fed() -> None:
    model = WIRED["constant listed as an input, IR 8"]
    assert "no input 'w'" in str(run_or_refuse(model, {"x": X23, "w": X23}))


# Poolings whose last window would lie in the padding ---------------------------------------------------


def rounding_up(b: Builder, x: str, op: str) -> str:
    """Of 6 x 6 pixels 3 x 3 windows, where ONNX's shape inference counts 4 x 4."""
    return b.add(op, x, kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_shapes_after_a_pooling_that_rounds_up_are_onnxruntimes(op: str) -> None:
    b = Builder(22, 10)
    x = b.input("x", 2, 3, 6, 6)
    first = rounding_up(b, x, op)
    inner = b.add(op, b.add("Relu", first), kernel_shape=[1, 1], strides=[3, 3], ceil_mode=1)
    flat = b.add("Flatten", first)
    dense = b.add("Gemm", flat, b.weights(27, 5), b.weights(5))
    size = b.add("Concat", b.add("Shape", first), axis=0)
    again = b.add("Reshape", b.add("Reshape", first, b.constant([-1], np.int64)), size)
    model = b.model(dense, inner, again, first)
    graph = load_onnx(model)
    assert graph.tensors[first].shape == (2, 3, 3, 3)
    assert graph.tensors[inner].shape == (2, 3, 1, 1)
    assert_like_onnxruntime(model, graph)


def test_shapes_that_contradict_a_pooling_that_rounds_up() -> None:
    b = Builder(22, 10)
    flat = b.add("Flatten", rounding_up(b, b.input("x", 2, 3, 6, 6), "MaxPool"))
    model = b.model(b.add("Gemm", flat, b.weights(48, 5)))
    assert_one_line(lambda: load_onnx(model), "Gemm")


def test_dead_nodes_and_unused_constants_are_dropped() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 5)
    b.conv(b.add("Relu", x))
    model = b.model(b.norm(b.conv(x)))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d"]
    assert len(graph.constants) == 2


# Layouts ---------------------------------------------------------------------------------------------


def test_linear_between_convolutions_gets_row_major_twins() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 4)
    y = b.linear(b.add("Relu", b.conv(x)))
    model = b.model(b.conv(b.add("Relu", y)))
    graph = load_onnx(model)
    assert kinds(graph) == ["conv2d", "relayout", "linear", "relayout", "conv2d"]
    linear = next(node for node in graph.nodes if isinstance(node.op, Linear))
    for name in (linear.inputs[0], linear.outputs[0]):
        assert graph.tensors[name].layout == Layout.plain(4)
    assert graph.tensors["x"].layout == Layout.channels_last(4)
    assert_like_onnxruntime(model, graph)


def test_row_major_twin_avoids_the_names_of_constants() -> None:
    b = Builder()
    pixels = b.conv(b.input("x", 1, 4, 5, 4))
    model = b.model(b.add("Add", b.add("MatMul", pixels, b.weights(4, 4)), b.add("Relu", pixels)))
    (weight,) = [tensor for tensor in model.graph.initializer if tuple(tensor.dims) == (4, 4)]
    for entry in model.graph.node:
        if entry.op_type == "MatMul":
            entry.input[1] = weight.name = f"{pixels}:rows"
    assert_like_onnxruntime(model, load_onnx(model))


def test_linear_residual_in_channels_last_is_copied() -> None:
    b = Builder()
    x = b.input("x", 1, 4, 5, 4)
    y = b.conv(x)
    total = b.add("Add", y, b.linear(x))
    model = b.model(total, b.add("MaxPool", y, kernel_shape=[1, 1]))
    graph = load_onnx(model)
    assert_like_onnxruntime(model, graph)
    for node in graph.nodes:
        if isinstance(node.op, Linear):
            names = [n for n in (*node.inputs, *node.outputs) if n in graph.tensors]
            assert all(graph.tensors[n].layout == Layout.plain(4) for n in names)


# Folding and old opsets ------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 21])
def test_shape_arithmetic_is_folded(opset: int) -> None:
    b = Builder(opset)
    x = b.input("x", 2, 3, 4)
    size = b.add("Gather", b.add("Shape", x), b.constant(0, np.int64), axis=0)
    attribute = opset < 13
    rows = b.add("Unsqueeze", size, axes=[0]) if attribute else b.add("Unsqueeze", size, b.constant([0], np.int64))
    shape = b.add("Concat", rows, b.constant([-1], np.int64), axis=0)
    model = b.model(b.add("Reshape", x, shape))
    graph = load_onnx(model)
    assert kinds(graph) == ["reshape"]
    assert_like_onnxruntime(model, graph)


def test_computed_weights_are_constants() -> None:
    b = Builder()
    weight = b.add("Transpose", b.add("Mul", b.weights(40, 50), b.constant(2)), perm=[1, 0])
    model = b.model(b.add("MatMul", b.input("x", 3, 50), weight))
    graph = load_onnx(model)
    assert kinds(graph) == ["linear"]
    assert_like_onnxruntime(model, graph)


def test_branch_with_constant_condition_is_inlined() -> None:
    b = Builder()
    x = b.input("x", 2, 3)
    branches = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2, 3])
        branches[name] = helper.make_graph([helper.make_node(op, [x], [f"{name}_y"])], name, [], [output])
    size = b.add("Size", x)
    condition = b.add("Equal", size, b.constant(6, np.int64))
    model = b.model(b.add("Abs", b.add("If", condition, **branches)))
    graph = load_onnx(model)
    assert kinds(graph) == ["unary", "unary"]
    assert_like_onnxruntime(model, graph)


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile"])
def test_bomb_of_a_constant_is_refused(op: str) -> None:
    b = Builder()
    shape = b.constant([1_000_000, 1_000_000], np.int64)
    source = [shape] if op == "ConstantOfShape" else [b.constant([[1]]), shape]
    model = b.model(b.add("ReduceSum", b.add(op, *source), keepdims=0))
    with pytest.raises(ModelError, match="GiB"):
        load_onnx(model)


def test_softmax_of_opset_9_flattens() -> None:
    b = Builder(9)
    x = b.input("x", 2, 3, 4)
    model = b.model(b.add("Softmax", x), b.add("Softmax", x, axis=2))
    assert_like_onnxruntime(model, load_onnx(model))


def test_initializers_listed_as_inputs_are_constants() -> None:
    b = Builder(9, ir_version=3)
    x = b.input("x", 1, 4, 5, 5)
    y = b.conv(x)
    big = b.add("Conv", y, b.weights(300, 4, 1, 1))
    for tensor in b.initializers:
        b.input(tensor.name, *tensor.dims)
    model = b.model(big)
    graph = load_onnx(model)
    assert graph.inputs == ("x",)
    assert_like_onnxruntime(model, graph)


def test_constant_nodes_small_and_large() -> None:
    b = Builder()
    x = b.input("x", 2, 50)
    weight = b.add("Constant", value=numpy_helper.from_array(RNG.standard_normal((50, 60)).astype(np.float32)))
    shift = b.add("Constant", value_float=2.0)
    model = b.model(b.add("Add", b.add("MatMul", x, weight), shift))
    graph = load_onnx(model)
    assert kinds(graph) == ["linear"]
    assert_like_onnxruntime(model, graph)


def test_model_functions_are_inlined() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Neg", ["r"], ["b"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "NegRelu", ["a"], ["b"], nodes, opsets)
    b = Builder()
    model = b.model(b.add("NegRelu", b.input("x", 2, 3), domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    graph = load_onnx(model)
    assert kinds(graph) == ["activate", "unary"]
    assert_like_onnxruntime(model, graph)


def test_long_name_of_the_standard_domain() -> None:
    b = Builder()
    model = b.model(b.add("Relu", b.conv(b.input("x", 1, 4, 5, 5)), domain="ai.onnx"))
    assert kinds(load_onnx(model)) == ["conv2d"]


def test_node_names_are_unique_and_never_empty() -> None:
    b = Builder()
    x = b.input("x", 2, 3)
    model = b.model(b.add("Neg", b.add("Abs", b.add("Neg", x))))
    for node, name in zip(model.graph.node, ("same", "", "same"), strict=True):
        node.name = name
    names = [node.name for node in load_onnx(model).nodes]
    assert all(names)
    assert len(set(names)) == 3


def test_model_proto_is_not_changed() -> None:
    b = Builder(9)
    model = b.model(b.add("Relu", b.conv(b.input("x", "n", 4, 5, 5))))
    before = model.SerializeToString(deterministic=True)
    load_onnx(model, {"x": (1, 4, 5, 5)})
    assert model.SerializeToString(deterministic=True) == before


def test_notes_name_the_ops_that_run_slowly() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    model = b.model(b.add("Det", b.add("Relu", x)), b.add("Det", x))
    graph = load_onnx(model)
    (note,) = graph.notes
    assert "Det x2" in note
    assert_like_onnxruntime(model, graph, tolerance=1e-4)


def test_importing_the_package_does_not_import_onnx() -> None:
    code = "import sys, coexec.frontends; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Symbolic shapes -------------------------------------------------------------------------------------


def symbolic() -> ModelProto:
    b = Builder()
    x, y = b.input("x", "batch", 4, 5, None), b.input("y", "batch", 4, 5, 5)
    return b.model(b.add("Relu", b.add("Add", b.conv(x), y)))


def test_input_shapes_fix_open_dimensions() -> None:
    model = symbolic()
    graph = load_onnx(model, {"x": (2, 4, 5, 5), "y": [2, 4, 5, 5]})
    assert graph.tensors["x"].shape == (2, 4, 5, 5)
    assert_like_onnxruntime(model, graph)


def test_a_symbol_fixed_at_one_input_holds_at_the_others() -> None:
    assert load_onnx(symbolic(), {"x": (3, 4, 5, 5)}).tensors["y"].shape == (3, 4, 5, 5)


def test_declared_output_shape_follows_the_new_batch() -> None:
    b = Builder()
    model = b.model(b.add("Relu", b.input("x", "n", 3)))
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 7
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 3
    graph = load_onnx(model, {"x": (2, 3)})
    assert graph.tensors[graph.outputs[0]].shape == (2, 3)


def test_open_dimensions_are_named() -> None:
    with pytest.raises(ModelError, match=r"'x'.*\(batch, 4, 5, \?\).*input_shapes="):
        load_onnx(symbolic())
    b = Builder()
    b.inputs.append(onnx.ValueInfoProto(name="x", type=open_tensor(TensorProto.FLOAT)))
    with pytest.raises(ModelError, match=r"'x'.*input_shapes="):
        load_onnx(b.model(b.add("Relu", "x")))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 2)}, "'z'.*x, y"),
        ({"x": (1, 4, 6, 5)}, r"\(batch, 4, 5, \?\)"),
        ({"x": (1, 4, 5)}, r"\(batch, 4, 5, \?\)"),
        ({"x": (1, 4, 5, 5), "y": (2, 4, 5, 5)}, "'batch'"),
        ({"x": (-1, 4, 5, 5)}, "negative"),
        ({"x": (1, 4, 5, float("nan"))}, "whole numbers"),
        ({"x": 5}, "whole numbers"),
        ((2, 4, 5, 5), "map input names"),
        ({"x": "1455"}, "whole numbers"),
        ({"c0": (4, 4, 3, 3)}, "'c0'"),
    ],
    ids=str,
)
def test_wrong_input_shapes(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_onnx(symbolic(), shapes)


def test_inputs_without_elements() -> None:
    b = Builder()
    model = b.model(b.add("ReduceSum", b.input("x", 2, 0, "n"), b.constant([1], np.int64)))
    graph = load_onnx(model, {"x": (2, 0, 3)})
    assert_like_onnxruntime(model, graph)


def test_shape_beyond_memory() -> None:
    b = Builder()
    model = b.model(b.add("Relu", b.input("x", "n", 1_000_000)))
    with pytest.raises(ModelError, match="GiB"):
        load_onnx(model, {"x": (1_000_000, 1_000_000)})


# Bad models ------------------------------------------------------------------------------------------


def good() -> ModelProto:
    b = Builder()
    return b.model(b.add("Relu", b.conv(b.input("x", 1, 4, 5, 5))))


def bad_files() -> dict[str, bytes]:
    data = good().SerializeToString()
    return {
        "empty": b"",
        "random": np.random.default_rng(1).bytes(500),
        "text": b"this is no model\n" * 9,
        "truncated": data[: len(data) // 2],
        "one byte short": data[:-1],
        "tensor": numpy_helper.from_array(np.zeros((3, 4), np.float32), "t").SerializeToString(),
        "no graph": ModelProto(ir_version=8).SerializeToString(),
    }


@pytest.mark.parametrize("kind", bad_files())
def test_bad_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(bad_files()[kind])
    assert_one_line(lambda: load_onnx(path), "not a(n| valid) ONNX model")


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert_one_line(lambda: load_onnx(tmp_path / "none.onnx"), "there is no model file")
    assert_one_line(lambda: load_onnx(tmp_path), "is not an ONNX model: it is a directory")
    with pytest.raises(InputError, match="path"):
        load_onnx(3)  # type: ignore[arg-type]


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)  # opening it would wait for ever
    assert_one_line(lambda: load_onnx(pipe), "not a regular file")
    assert_one_line(lambda: load_onnx("x" * 5000), "not an ONNX model")
    assert_one_line(lambda: load_onnx("a\0b"), "not an ONNX model")


def test_any_truncation_is_one_line(tmp_path: Path) -> None:
    data = good().SerializeToString()
    path = tmp_path / "cut.onnx"
    for size in range(0, len(data), 23):
        path.write_bytes(data[:size])
        assert_one_line(lambda: load_onnx(path), "ONNX model")


def test_any_flipped_byte_loads_or_is_one_line(tmp_path: Path) -> None:
    data = good().SerializeToString()
    path = tmp_path / "flipped.onnx"
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 0xFF >> (place % 8)
        path.write_bytes(bytes(changed))
        try:
            load_onnx(path)
        except (ModelError, InputError) as error:
            assert "\n" not in str(error)


def assert_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def opset(version: int) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def foreign_op(model: ModelProto) -> None:
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))


def ml_op(model: ModelProto) -> None:
    model.graph.node[1].op_type, model.graph.node[1].domain = "Normalizer", "ai.onnx.ml"
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))


def unknown_op(model: ModelProto) -> None:
    model.graph.node[1].op_type = "Quirk"


def no_weight(model: ModelProto) -> None:
    del model.graph.initializer[0]


def unsorted(model: ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])
    del model.graph.node[0]


def negative_dim(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1


def huge_dim(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**62


def negative_initializer(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def huge_initializer(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 2**40


def short_initializer(model: ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]


def unknown_dtype(model: ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def misfit(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3


def no_output(model: ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def string_input(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def sequence_input(model: ModelProto) -> None:
    kind = onnx.TypeProto(sequence_type=onnx.TypeProto.Sequence(elem_type=open_tensor(TensorProto.FLOAT)))
    model.graph.input[0].type.CopyFrom(kind)


def no_opset(model: ModelProto) -> None:
    del model.opset_import[:]


def external_without_a_folder(model: ModelProto) -> None:
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "w.bin")
    model.graph.initializer[0].ClearField("raw_data")


BAD_MODELS: list[tuple[Callable[[ModelProto], None], str]] = [
    (opset(8), "opset 8"),
    (opset(10_000), "opset 10000.*upgrade onnx"),
    (no_opset, "opset"),
    (foreign_op, "'Relu1'.*'com.example'"),
    (ml_op, "'Relu1'.*'ai.onnx.ml'"),
    (unknown_op, "Quirk"),
    (no_weight, r"'Conv0' \(Conv\) reads 'c0'"),
    (unsorted, "'Relu1'.*later node"),
    (negative_dim, "'x'.*-1"),
    (huge_dim, "'x'.*GiB"),
    (negative_initializer, "'c0'.*negative"),
    (huge_initializer, "'c0'.*GiB"),
    (short_initializer, "'c0'.*bytes"),
    (unknown_dtype, "'c0'.*data type 99"),
    (misfit, "'Conv0'.*3 input channels"),
    (no_output, "'nowhere'"),
    (string_input, "'x'"),
    (sequence_input, "'x'"),
    (external_without_a_folder, "'c0'.*path"),
]


@pytest.mark.parametrize(("change", "message"), BAD_MODELS, ids=lambda value: getattr(value, "__name__", None))
def test_bad_model(change: Callable[[ModelProto], None], message: str) -> None:
    model = good()
    change(model)
    assert_one_line(lambda: load_onnx(model), message)


def test_newest_opset_of_the_installed_onnx_loads() -> None:
    b = Builder(onnx.defs.onnx_opset_version(), onnx.IR_VERSION)
    assert kinds(load_onnx(b.model(b.add("Relu", b.conv(b.input("x", 1, 4, 5, 5)))))) == ["conv2d"]


# External data ---------------------------------------------------------------------------------------


def external(tmp_path: Path, location: str, write: Path | None = None, **entries: str) -> Path:
    """A model whose first weight lies at ``location``; its data is written to ``write``."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    model = good()
    tensor = model.graph.initializer[0]
    if write is not None:
        write.parent.mkdir(exist_ok=True, parents=True)
        write.write_bytes(bytes(16) + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "16", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
def test_external_data_inside_the_folder(location: str, tmp_path: Path) -> None:
    path = external(tmp_path, location, tmp_path / "model" / location)
    stored = numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    assert np.array_equal(load_onnx(path).constants["c0"], stored)
    assert np.array_equal(load_onnx(str(path)).constants["c0"], stored)


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin", "sub/../w.bin", "..\\w.bin", "C:\\w.bin", ""])
def test_external_path_that_could_leave_the_folder(location: str, tmp_path: Path) -> None:
    path = external(tmp_path, location, tmp_path / "w.bin")
    assert_one_line(lambda: load_onnx(path), "inside the model's folder")


def test_absolute_external_path(tmp_path: Path) -> None:
    inside = tmp_path / "model" / "w.bin"
    path = external(tmp_path, str(inside), inside)
    assert_one_line(lambda: load_onnx(path), "inside the model's folder")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_external_link_that_leaves_the_folder(what: str, tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin" if what == "file" else "link/w.bin", tmp_path / "outside" / "w.bin")
    target = tmp_path / "outside" / ("w.bin" if what == "file" else "")
    (path.parent / ("w.bin" if what == "file" else "link")).symlink_to(target)
    assert_one_line(lambda: load_onnx(path), "symbolic link")


def test_external_file_missing(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    assert_one_line(lambda: load_onnx(path), "'w.bin'.*'c0'.*missing")


@pytest.mark.parametrize(
    "entries", [{"offset": "20"}, {"length": "4"}, {"offset": "-4"}, {"offset": "nan"}, {"length": "9" * 30}], ids=str
)
def test_external_place_that_does_not_fit(entries: dict[str, str], tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin", tmp_path / "model" / "w.bin", **entries)
    assert_one_line(lambda: load_onnx(path), "bytes")


def test_external_places_are_checked_before_any_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path, "w.bin", tmp_path / "model" / "w.bin")
    model = onnx.load(path, load_external_data=False)
    bias = model.graph.initializer[1]
    bias.ClearField("raw_data")
    bias.data_location = TensorProto.EXTERNAL
    bias.external_data.add(key="location", value="/etc/passwd")
    path.write_bytes(model.SerializeToString())
    opened: list[Path] = []
    original = Path.open

    def watch(self: Path, *args: object, **kwargs: object) -> object:
        opened.append(self)
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", watch)
    assert_one_line(lambda: load_onnx(path), "passwd")
    assert not [p for p in opened if p.suffix != ".onnx"]


# Whole models ----------------------------------------------------------------------------------------

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


QUICK_LIGHT = ("shufflenet", "squeezenet")


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_of_the_onnx_wheel(path: Path) -> None:
    """Opset 9, IR version 3, weights made by ConstantOfShape; those that NumPy runs quickly are run too."""
    graph = load_onnx(path)
    assert len(graph.inputs) == 1
    assert "batch_norm" not in kinds(graph) or "densenet" in path.stem
    assert not graph.notes
    assert all(graph.can_split(node) for node in graph.nodes if isinstance(node.op, (Conv2d, Linear)))
    if path.stem.removeprefix("light_") in QUICK_LIGHT:
        assert_like_onnxruntime(onnx.load(path), graph, tolerance=1e-4)


def norm_layer(b: Builder, x: str) -> str:
    return b.add("LayerNormalization", x, b.positive(8), b.weights(8))


def dense(b: Builder, x: str, n_in: int, n_out: int) -> str:
    return b.add("Add", b.add("MatMul", x, b.weights(n_in, n_out)), b.weights(n_out))


def heads(b: Builder, x: str, order: list[int]) -> str:
    return b.add("Transpose", b.add("Reshape", x, b.constant([0, -1, 2, 4], np.int64)), perm=order)


def transformer() -> ModelProto:
    """A vision transformer of one block: patches, class token, attention, perceptron with GELU."""
    b = Builder()
    patches = b.add("Conv", b.input("x", 2, 3, 8, 8), b.weights(8, 3, 4, 4), b.weights(8), strides=[4, 4])
    rows = b.add("Transpose", b.add("Reshape", patches, b.constant([0, 8, -1], np.int64)), perm=[0, 2, 1])
    token = b.add("Expand", b.weights(1, 1, 8), b.constant([2, 1, 8], np.int64))
    x = b.add("Add", b.add("Concat", token, rows, axis=1), b.weights(1, 5, 8))
    y = norm_layer(b, x)
    q, k, v = (heads(b, dense(b, y, 8, 8), order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    weights = b.add("Softmax", b.add("Div", b.add("MatMul", q, k), b.constant(2)))
    mixed = b.add("Transpose", b.add("MatMul", weights, v), perm=[0, 2, 1, 3])
    mixed = b.add("Reshape", mixed, b.constant([0, 0, 8], np.int64))
    x = b.add("Add", x, dense(b, mixed, 8, 8))
    hidden = gelu_erf(b, dense(b, norm_layer(b, x), 8, 32))
    x = b.add("Add", dense(b, hidden, 32, 8), x)
    first = b.add("Gather", norm_layer(b, x), b.constant(0, np.int64), axis=1)
    return b.model(b.add("Gemm", first, b.weights(10, 8), b.weights(10), transB=1))


def test_transformer() -> None:
    model = transformer()
    graph = load_onnx(model)
    linear = [node.op for node in graph.nodes if isinstance(node.op, Linear)]
    assert [op.residual for op in linear] == [False, False, False, True, False, True, False]
    assert [op.activation.kind for op in linear] == ["none"] * 4 + ["gelu"] + ["none"] * 2
    assert all(op.bias for op in linear)
    assert kinds(graph).count("elementwise") == 1  # position embedding
    assert kinds(graph).count("attention") == 1
    assert_like_onnxruntime(model, graph, tolerance=1e-4)


ZOO = ["resnet18", "mobilenet_v2", "squeezenet", "inception_v3", "vit_b32"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_zoo_models_match_onnxruntime(name: str) -> None:
    zoo = pytest.importorskip("coexec.zoo")
    make = getattr(zoo, name, None)
    if make is None:
        pytest.skip(f"this build has no coexec.zoo.{name}")
    model = make()
    graph = load_onnx(model)
    assert not graph.notes
    assert_like_onnxruntime(model, graph, tolerance=1e-4)
