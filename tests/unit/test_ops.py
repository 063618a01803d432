"""Every converter and NumPy routine against onnxruntime (or the ONNX reference evaluator)."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto
from onnx.defs import get_schema
from onnx.helper import make_attribute
from single_node import (
    LAYOUTS,
    Case,
    assert_like_others_or_refused,
    assert_same,
    onnx_node,
    run_node,
    run_onnxruntime,
    run_or_refuse,
    whole_model,
)

from coexec.api import load_graph
from coexec.errors import InputError, ModelError
from coexec.frontends.onnx_ops import CONVERTERS, convert
from coexec.layout import Array
from coexec.ops.activate import Activate
from coexec.ops.conv2d import Conv2d
from coexec.ops.elementwise import FUNCTIONS, Elementwise
from coexec.ops.linear import Linear
from coexec.ops.matmul import Gemm, MatMul
from coexec.ops.reference_op import ReferenceOp
from coexec.ops.unary import UNARY, Unary


def f32(*shape: int, low: float = -3, high: float = 3) -> Array:
    """Repeatable uniform floats."""
    return np.random.default_rng(sum(shape) + 7).uniform(low, high, shape).astype(np.float32)


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def whole(*shape: int, dtype: Any = np.int64, low: int = -9, high: int = 9) -> Array:
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> Array:
    return whole(*shape) > 0


X4 = f32(2, 5, 7, 6)
POSITIVE = f32(2, 5, 7, 6, low=0.1)
UNIT = f32(2, 5, 7, 6, low=-0.95, high=0.95)
NASTY = np.array([[0.0, -0.0, np.inf], [-np.inf, np.nan, 1.5]], np.float32)


def grid(make: Callable[..., Case], **choices: list[Any]) -> list[Case]:
    """A case per combination."""
    return [make(**dict(zip(choices, values, strict=True))) for values in product(*choices.values())]


def conv_case(rank: int, stride: int, dilation: int, groups: int, pads: str, bias: bool) -> Case:
    x, weight = f32(2, 4, *(9, 8, 7)[:rank]), f32(6, 4 // groups, *(3, 2, 3)[:rank])
    attributes: dict[str, Any] = {"strides": [stride] * rank, "group": groups, "dilations": [dilation] * rank}
    if pads == "explicit":
        attributes["pads"] = [1, 0, 2][:rank] + [0, 1, 1][:rank]
    else:
        attributes["auto_pad"] = pads
    name = f"{rank}d-s{stride}-d{dilation}-g{groups}-{pads}"
    return Case(name, "Conv", (x, weight, f32(6)) if bias else (x, weight), attributes, constants=(1, 2), atol=1e-4)


def pool_case(op_type: str, rank: int, stride: int, pads: str, ceil_mode: int, **more: Any) -> Case:
    # kernel 3 with 1 padded: no window lies in the padding alone
    attributes: dict[str, Any] = {"kernel_shape": [3, 2, 3][:rank], "strides": [stride] * rank, **more}
    if pads == "explicit":
        attributes |= {"pads": [1, 0, 1][:rank] + [0, 1, 1][:rank], "ceil_mode": ceil_mode}
    else:
        attributes["auto_pad"] = pads
    name = f"{rank}d-s{stride}-{pads}-ceil{ceil_mode}" + "".join(f"-{k}{v}" for k, v in more.items())
    opset = {"LpPool": 18, "AveragePool": 19}.get(op_type, 17)
    return Case(name, op_type, (f32(2, 3, *(8, 7, 9)[:rank]),), attributes, opset)


def transposed_case(rank: int, stride: int, dilation: int, groups: int, padding: str) -> Case:
    x, weight = f32(2, 4, *(5, 4, 3)[:rank]), f32(4, 3, *(3, 2, 3)[:rank])
    attributes: dict[str, Any] = {"strides": [stride] * rank, "dilations": [dilation] * rank, "group": groups}
    attributes |= {
        "explicit": {"pads": [1, 0, 1][:rank] + [1, 1, 0][:rank]},
        "output_padding": {"output_padding": [stride - 1] * rank},
        "SAME_UPPER": {"auto_pad": "SAME_UPPER", "dilations": [1] * rank},
        "SAME_LOWER": {"auto_pad": "SAME_LOWER", "dilations": [1] * rank},
        "output_shape": {"output_shape": [(n - 1) * stride + 1 for n in (5, 4, 3)[:rank]]},
    }[padding]
    name = f"{rank}d-s{stride}-d{dilation}-g{groups}-{padding}"
    inputs = (x, weight, f32(3 * groups))
    return Case(name, "ConvTranspose", inputs, attributes, constants=(1, 2), atol=1e-4)


def resize_case(mode: str, coordinates: str, target: str, **more: Any) -> Case:
    x, empty = f32(1, 3, 6, 7), np.zeros(0, np.float32)
    scales = {"up": [1, 1, 2, 3], "down": [1, 1, 0.5, 0.65], "mixed": [1, 1, 1.7, 0.6]}
    roi = np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 1.2], np.float32) if coordinates == "tf_crop_and_resize" else empty
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **more}
    name = f"{mode}-{coordinates}-{target}" + "".join(f"-{k}-{v}" for k, v in more.items())
    if target == "sizes":
        inputs: tuple[Array | None, ...] = (x, roi, None, ints(1, 3, 9, 5))
    else:
        inputs = (x, roi, np.array(scales[target], np.float32))
    return Case(name, "Resize", inputs, attributes, 19 if "half_pixel_symmetric" in name else 13, (1, 2, 3), atol=1e-5)


def reduce_case(op_type: str, axes: tuple[int, ...] | None, keepdims: int, opset: int) -> Case:
    x, as_input = f32(2, 3, 4, 5, low=0.1), opset >= (13 if op_type == "ReduceSum" else 18)
    attributes: dict[str, Any] = {"keepdims": keepdims}
    if axes is not None and not as_input:
        attributes["axes"] = list(axes)
    inputs = (x, ints(*axes)) if axes is not None and as_input else (x,)
    return Case(f"{axes}-keep{keepdims}", op_type, inputs, attributes, opset, (1,), rtol=1e-4)


BINARY = [
    Case(name, op, inputs, constants=constants)
    for op in ("Add", "Sub", "Mul", "Div")
    for name, inputs, constants in (
        ("same", (X4, POSITIVE), ()),
        ("channel", (X4, f32(5, 1, 1, low=1)), (1,)),
        ("scalar", (scalar(2.5), POSITIVE), (0,)),
        ("both_ways", (f32(5, 1, 6, low=1), f32(2, 1, 7, 1, low=1)), ()),
        ("int64", (whole(3, 4), whole(3, 4, low=1)), ()),
    )
]
COMPARE = [
    Case(name, op, inputs)
    for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
    for name, inputs in (("float", (NASTY, np.zeros((2, 1), np.float32))), ("int", (whole(4, 5), whole(1, 5))))
]
VARIADIC = [
    Case(str(len(inputs)), op, inputs)
    for op in ("Max", "Min", "Sum", "Mean")
    for inputs in ((X4,), (X4, f32(5, 1, 1)), (X4, POSITIVE, f32(6)))
]
ARITHMETIC = [
    *BINARY,
    *COMPARE,
    *VARIADIC,
    *(
        Case(n, "Pow", (POSITIVE, e), constants=(1,))
        for n, e in (
            ("square", scalar(2)),
            ("root", np.array([0.5], np.float32)),
            ("any", f32(5, 1, 1)),
            ("int", np.array(3)),
        )
    ),
    Case("integers", "Pow", (whole(3, 4), whole(3, 4, low=0, high=4))),
    Case("floor", "Mod", (whole(4, 5), np.array([-4, 3, 5, -2, 7]))),
    Case("fmod", "Mod", (X4, f32(6, low=1)), {"fmod": 1}),
    Case("truncated", "Div", (ints(-7, 7, -7, 7, -6), ints(2, -2, -2, 2, 3))),
    Case("unsigned", "Div", (whole(9, dtype=np.uint8, low=0, high=200), whole(9, dtype=np.uint8, low=1, high=9))),
    *(Case("bool", op, (flags(3, 4), flags(4))) for op in ("And", "Or", "Xor")),
    *(
        Case("int", op, (whole(3, 4, low=0), whole(4, low=0)), opset=18)
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    *(
        Case(
            way,
            "BitShift",
            (whole(3, 4, dtype=np.uint32, low=0, high=99), np.arange(4, dtype=np.uint32)),
            {"direction": way},
        )
        for way in ("LEFT", "RIGHT")
    ),
    Case("channels", "PRelu", (X4, f32(5, 1, 1)), constants=(1,)),
    Case("one", "PRelu", (X4, f32(1)), constants=(1,)),
    Case("broadcast", "Where", (flags(2, 1, 7, 1), X4, f32(5, 1, 1))),
    Case("int", "Where", (flags(3, 1), whole(3, 4), np.array(5))),
]
SINGLE = [
    *(
        Case("signed", op, (X4,), opset=22)
        for op in (
            "Abs",
            "Atan",
            "Ceil",
            "Cos",
            "Cosh",
            "Erf",
            "Exp",
            "Floor",
            "Neg",
            "Reciprocal",
            "Round",
            "Sign",
            "Sin",
            "Sinh",
            "Tan",
            "Tanh",
            "Asinh",
            "Celu",
            "Elu",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Mish",
            "Relu",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Softplus",
            "Softsign",
            "ThresholdedRelu",
        )
    ),
    *(Case("float64", op, (X4.astype(np.float64),)) for op in ("Exp", "Relu", "Sigmoid", "Tanh", "Abs", "Neg")),
    *(
        Case("float16", op, (X4.astype(np.float16),), reference="onnx", rtol=2e-3, atol=1e-3)
        for op in ("Exp", "Relu", "Sigmoid", "Tanh", "Sqrt", "Erf")
        if op != "Sqrt"
    ),
    *(Case("unit", op, (UNIT,)) for op in ("Acos", "Asin", "Atanh")),
    *(Case("positive", op, (POSITIVE,)) for op in ("Log", "Sqrt")),
    Case("above_one", "Acosh", (POSITIVE + 1,)),
    Case("halves", "Round", (np.arange(-3, 3, 0.5, dtype=np.float32),)),
    Case("large", "Sigmoid", (np.array([-200, -90, 0, 90, 200], np.float32),)),
    Case("large", "Softplus", (np.array([-200, -90, 0, 90, 200], np.float32),)),
    Case("int", "Abs", (whole(3, 4),)),
    Case("int", "Neg", (whole(3, 4),)),
    Case("int", "Relu", (whole(3, 4, dtype=np.int32),)),
    Case("int", "BitwiseNot", (whole(3, 4),), opset=18),
    Case("bool", "Not", (flags(3, 4),)),
    Case("nasty", "IsNaN", (NASTY,)),
    *(Case(f"{a}{b}", "IsInf", (NASTY,), {"detect_negative": a, "detect_positive": b}) for a in (0, 1) for b in (0, 1)),
    Case("alpha", "LeakyRelu", (X4,), {"alpha": 0.3}),
    Case("alpha", "Elu", (X4,), {"alpha": 1.7}),
    Case("alpha", "Celu", (X4,), {"alpha": 1.7}),
    Case("both", "Selu", (X4,), {"alpha": 1.5, "gamma": 1.2}),
    Case("both", "HardSigmoid", (X4,), {"alpha": 0.4, "beta": 0.3}),
    Case("both", "Shrink", (X4,), {"lambd": 0.8, "bias": 0.4}),
    Case("alpha", "ThresholdedRelu", (X4,), {"alpha": 0.4}),
    *(Case(how, "Gelu", (X4,), {"approximate": how}, opset=20) for how in ("none", "tanh")),
    *(Case(str(a), "Swish", (X4,), {"alpha": a}, opset=24, reference="onnx") for a in (1.0, 1.5)),
    Case("attributes", "Clip", (X4,), {"min": 0.0, "max": 6.0}, opset=7),
    Case("no_limits", "Clip", (X4,), opset=7),
    Case("inputs", "Clip", (X4, scalar(-1), scalar(2)), constants=(1, 2)),
    Case("only_max", "Clip", (X4, None, scalar(1)), constants=(2,)),
    Case("computed", "Clip", (X4, scalar(-1), scalar(2))),
    Case("int", "Clip", (whole(3, 4, dtype=np.int8), scalar(-2, np.int8), scalar(3, np.int8)), constants=(1, 2)),
    Case("float_int", "Cast", (X4,), {"to": TensorProto.INT64}),
    Case("float_bool", "Cast", (NASTY,), {"to": TensorProto.BOOL}),
    Case("int_half", "Cast", (whole(3, 4),), {"to": TensorProto.FLOAT16}),
    Case("float_string", "Cast", (f32(3),), {"to": TensorProto.STRING}, reference="onnx"),
    Case("like", "CastLike", (X4, np.zeros(1, np.int32)), opset=19),
    Case("copy", "Identity", (X4,)),
    Case("bool", "Identity", (flags(3, 4),)),
    Case("old", "Dropout", (X4,), {"ratio": 0.3}, opset=7),
    Case("new", "Dropout", (X4, scalar(0.3)), constants=(1,)),
    Case("mask", "Dropout", (X4,), opset=13, outputs=2),
    Case("ratio_zero", "Dropout", (X4, scalar(0), np.array(True)), constants=(1, 2), outputs=2),
]
LINEAR = [
    Case("constant", "MatMul", (f32(4, 6), f32(6, 5)), constants=(1,), atol=1e-4),
    Case("constant_batched", "MatMul", (f32(2, 3, 4, 6), f32(6, 5)), constants=(1,), atol=1e-4),
    Case("constant_vector", "MatMul", (f32(6), f32(6, 5)), constants=(1,), atol=1e-4),
    Case("constant_left", "MatMul", (f32(4, 6), f32(2, 6, 5)), constants=(0,), atol=1e-4),
    Case("computed", "MatMul", (f32(2, 1, 4, 6), f32(3, 6, 5)), atol=1e-4),
    Case("vectors", "MatMul", (f32(6), f32(6)), atol=1e-4),
    Case("matrix_vector", "MatMul", (f32(2, 3, 6), f32(6)), atol=1e-4),
    Case("int", "MatMul", (whole(3, 4, dtype=np.int32), whole(4, 5, dtype=np.int32)), constants=(1,)),
    *(
        Case(
            f"{ta}{tb}-{name}-{constants}",
            "Gemm",
            (f32(*((6, 4) if ta else (4, 6))), f32(*((5, 6) if tb else (6, 5))), *([c] if c is not None else [])),
            {"alpha": 0.5, "beta": beta, "transA": ta, "transB": tb},
            constants=constants,
            atol=1e-4,
        )
        for ta, tb in product((0, 1), (0, 1))
        for name, c in (
            ("none", None),
            ("row", f32(5)),
            ("one_row", f32(1, 5)),
            ("scalar", f32(1)),
            ("column", f32(4, 1)),
            ("full", f32(4, 5)),
        )
        for constants, beta in (((), 1.0), ((1,), 1.0), ((1, 2), 2.0))
    ),
    *grid(conv_case, rank=[1, 2, 3], stride=[1, 2], dilation=[1], groups=[1, 2], pads=["explicit"], bias=[True]),
    *grid(conv_case, rank=[1, 2, 3], stride=[1], dilation=[2], groups=[1], pads=["explicit"], bias=[False]),
    *grid(
        conv_case,
        rank=[1, 2, 3],
        stride=[1, 2],
        dilation=[1],
        groups=[1],
        pads=["SAME_UPPER", "SAME_LOWER", "VALID"],
        bias=[True],
    ),
    Case("depthwise", "Conv", (f32(1, 6, 9, 9), f32(6, 1, 3, 3)), {"group": 6}, constants=(1,), atol=1e-4),
    Case("computed_weight", "Conv", (f32(1, 3, 9, 9), f32(4, 3, 3, 3)), atol=1e-4),
    *grid(transposed_case, rank=[1, 2, 3], stride=[1, 2], dilation=[1, 2], groups=[1, 2], padding=["explicit"]),
    *grid(
        transposed_case,
        rank=[1, 2],
        stride=[2],
        dilation=[1],
        groups=[1],
        padding=["output_padding", "SAME_UPPER", "SAME_LOWER", "output_shape"],
    ),
]
POOLING = [
    *grid(partial(pool_case, "MaxPool"), rank=[1, 2, 3], stride=[1, 2], pads=["explicit"], ceil_mode=[0, 1]),
    *grid(
        partial(pool_case, "MaxPool"),
        rank=[2],
        stride=[1, 2],
        pads=["SAME_UPPER", "SAME_LOWER", "VALID"],
        ceil_mode=[0],
    ),
    *grid(
        partial(pool_case, "AveragePool"),
        rank=[1, 2, 3],
        stride=[1, 2],
        pads=["explicit"],
        ceil_mode=[0, 1],
        count_include_pad=[0, 1],
    ),
    *grid(
        partial(pool_case, "AveragePool"),
        rank=[2],
        stride=[2],
        pads=["SAME_UPPER", "SAME_LOWER", "VALID"],
        ceil_mode=[0],
        count_include_pad=[0, 1],
    ),
    *grid(partial(pool_case, "LpPool"), rank=[1, 2, 3], stride=[2], pads=["explicit"], ceil_mode=[0], p=[1, 2, 3]),
    *(
        Case(
            f"indices-{order}",
            "MaxPool",
            (f32(2, 3, 8, 7),),
            {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1], "storage_order": order},
            outputs=2,
        )
        for order in (0, 1)
    ),
    Case(
        "indices_ties",
        "MaxPool",
        (whole(1, 2, 6, 6, low=0, high=3).astype(np.float32),),
        {"kernel_shape": [2, 2]},
        outputs=2,
    ),
    Case("indices_3d", "MaxPool", (f32(1, 2, 5, 6, 4),), {"kernel_shape": [2, 3, 2]}, outputs=2),
    Case("dilated", "MaxPool", (f32(2, 3, 9, 9),), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    Case(
        "dilated",
        "AveragePool",
        (f32(2, 3, 9, 9),),
        {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]},
        opset=19,
    ),
    *(
        Case(
            np.dtype(t).name,
            "MaxPool",
            (whole(1, 3, 6, 6, dtype=t, low=0, high=99),),
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        )
        for t in (np.uint8, np.int8)
    ),
    *(
        Case(f"{len(shape)}d", op, (f32(*shape),))
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
        for shape in ((2, 5, 9), (2, 5, 7, 6), (2, 3, 4, 5, 6))
    ),
]
SHAPING = [
    *(Case(str(axis), "Concat", (X4, X4 * 2, X4[..., :] + 1), {"axis": axis}) for axis in (0, 1, 2, -1)),
    *(
        Case(f"{shape}", "Reshape", (X4, np.array(shape, np.int64)), constants=(1,))
        for shape in ((2, -1), (0, 0, 42), (-1,), (7, 0, 2, 6))
    ),
    Case("allowzero", "Reshape", (np.zeros((0, 3), np.float32), ints(3, 0)), {"allowzero": 1}, constants=(1,)),
    *(Case(str(axis), "Flatten", (X4,), {"axis": axis}) for axis in (0, 1, 2, 4, -1)),
    Case("old", "Squeeze", (f32(1, 3, 1, 2),), {"axes": [0, 2]}, opset=11),
    Case("new", "Squeeze", (f32(1, 3, 1, 2), ints(-2)), constants=(1,)),
    Case("all", "Squeeze", (f32(1, 3, 1, 2),)),
    Case("old", "Unsqueeze", (X4,), {"axes": [0, 3]}, opset=11),
    Case("new", "Unsqueeze", (X4, ints(-1, 1)), constants=(1,)),
    Case("default", "Transpose", (X4,)),
    Case("nhwc", "Transpose", (X4,), {"perm": [0, 2, 3, 1]}),
    Case("attribute", "Split", (X4,), {"axis": 1, "split": [1, 4]}, opset=11, outputs=2),
    Case("equal", "Split", (f32(6, 4),), opset=13, outputs=3),
    Case("input", "Split", (X4, ints(2, 3)), {"axis": 1}, constants=(1,), outputs=2),
    Case("num_outputs", "Split", (f32(7, 4),), {"num_outputs": 3}, opset=18, outputs=3),
    Case("attributes", "Slice", (X4,), {"starts": [1, -3], "ends": [9, -1], "axes": [1, 2]}, opset=9),
    Case("inputs", "Slice", (X4, ints(1, -1), ints(2**40, -(2**40)), ints(1, -1), ints(2, -2)), constants=(1, 2, 3, 4)),
    Case("reversed", "Slice", (X4, ints(-1), ints(-(2**62)), ints(3), ints(-1)), constants=(1, 2, 3, 4)),
    Case("empty", "Slice", (X4, ints(3), ints(2), ints(1), ints(1)), constants=(1, 2, 3, 4)),
    Case("beyond", "Slice", (X4, ints(-99), ints(99), ints(2)), constants=(1, 2, 3)),
    *(Case(f"axis{axis}", "Gather", (X4, whole(3, 2, low=-5, high=5)), {"axis": axis}) for axis in (1, 2, -1)),
    Case("scalar", "Gather", (X4, np.array(1)), {"axis": 1}, constants=(1,)),
    Case("axis1", "GatherElements", (X4, whole(2, 3, 7, 6, low=-5, high=5)), {"axis": 1}),
    Case("slices", "GatherND", (X4, whole(4, 2, low=-2, high=2)), opset=13),
    Case("batched", "GatherND", (X4, whole(2, 3, 1, low=0, high=5)), {"batch_dims": 1}, opset=13),
    *(
        Case(mode, "Pad", (X4, ints(0, 1, 2, 3, 1, 0, 2, 1)), {"mode": mode}, constants=(1,))
        for mode in ("constant", "reflect", "edge")
    ),
    Case("wrap", "Pad", (X4, ints(0, 1, 2, 3, 1, 0, 2, 1)), {"mode": "wrap"}, opset=19, constants=(1,)),
    Case("value", "Pad", (X4, ints(0, 0, 1, 1, 0, 0, 1, 1), scalar(2.5)), constants=(1, 2)),
    Case("crop", "Pad", (X4, ints(0, -1, 2, -1, 0, -1, -2, 3)), constants=(1,)),
    Case("axes", "Pad", (X4, ints(1, 2, 2, 1), None, ints(-1, 1)), opset=18, constants=(1, 3)),
    Case("attributes", "Pad", (X4,), {"pads": [0, 0, 1, 2, 0, 0, 2, 1], "value": 1.5}, opset=7),
    Case("broadcast", "Expand", (f32(3, 1), ints(2, 1, 6)), constants=(1,)),
    Case("two_axes", "Tile", (f32(2, 3, 4), ints(1, 2, 3)), constants=(1,)),
    *(Case(mode, "DepthToSpace", (f32(2, 12, 3, 4),), {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")),
    Case("two", "SpaceToDepth", (f32(2, 3, 4, 6),), {"blocksize": 2}),
]
RESIZING = [
    *grid(
        resize_case,
        mode=["nearest", "linear"],
        coordinates=["half_pixel", "asymmetric", "pytorch_half_pixel"],
        target=["up", "down", "mixed", "sizes"],
    ),
    # "mixed" has coordinates at exact halves there, which round by chance
    *grid(
        resize_case, mode=["nearest", "linear"], coordinates=["half_pixel_symmetric"], target=["up", "down", "sizes"]
    ),
    *grid(resize_case, mode=["nearest", "linear", "cubic"], coordinates=["align_corners"], target=["up", "sizes"]),
    *grid(
        resize_case,
        mode=["cubic"],
        coordinates=["half_pixel", "asymmetric", "pytorch_half_pixel"],
        target=["up", "down", "sizes"],
        exclude_outside=[0, 1],
    ),
    *grid(resize_case, mode=["cubic"], coordinates=["half_pixel"], target=["mixed"], cubic_coeff_a=[-0.5]),
    *grid(
        resize_case,
        mode=["nearest"],
        coordinates=["half_pixel", "asymmetric"],
        target=["up", "mixed"],
        nearest_mode=["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
    ),
    *grid(
        resize_case,
        mode=["nearest", "linear"],
        coordinates=["tf_crop_and_resize"],
        target=["sizes"],
        extrapolation_value=[9.0],
    ),
    *(
        Case(
            f"opset10-{mode}-{scale}",
            "Resize",
            (f32(1, 2, 4, 6), np.array([1, 1, scale, 2], np.float32)),
            {"mode": mode},
            10,
            (1,),
        )
        for mode in ("nearest", "linear")
        for scale in (2.0, 0.5)
    ),
    Case(
        "volume",
        "Resize",
        (f32(1, 2, 3, 4, 5), np.zeros(0, np.float32), np.array([1, 1, 2, 1.5, 2], np.float32)),
        {"mode": "linear"},
        13,
        (1, 2),
        atol=1e-5,
    ),
    Case(
        "line",
        "Resize",
        (f32(2, 3, 5), np.zeros(0, np.float32), np.array([1, 1, 2.5], np.float32)),
        {"mode": "nearest"},
        13,
        (1, 2),
    ),
    *(
        Case(
            f"antialias-{mode}",
            "Resize",
            (f32(1, 2, 9, 8), None, None, ints(4, 5)),
            {"mode": mode, "antialias": 1, "axes": [2, 3]},
            18,
            (3,),
            atol=1e-5,
        )
        for mode in ("linear", "cubic")
    ),
    *(
        Case(
            policy,
            "Resize",
            (f32(1, 2, 6, 8), None, None, ints(9, 4)),
            {"mode": "nearest", "axes": [2, 3], "keep_aspect_ratio_policy": policy},
            18,
            (3,),
        )
        for policy in ("stretch", "not_larger", "not_smaller")
    ),
    Case(
        "uint8",
        "Resize",
        (
            whole(1, 2, 4, 6, dtype=np.uint8, low=0, high=255),
            np.zeros(0, np.float32),
            np.array([1, 1, 2, 2], np.float32),
        ),
        {"mode": "nearest"},
        13,
        (1, 2),
    ),
    *(
        Case(f"attribute-{mode}", "Upsample", (f32(1, 2, 4, 5),), {"mode": mode, "scales": [1.0, 1.0, 2.0, 3.0]}, 7)
        for mode in ("nearest", "linear")
    ),
    Case("input", "Upsample", (f32(1, 2, 4, 5), np.array([1, 1, 2, 3], np.float32)), {}, 9, (1,)),
]
REDUCTION = [
    *(
        reduce_case(op, axes, keepdims, opset)
        for op in sorted(CONVERTERS)
        if op.startswith("Reduce")
        for axes, keepdims, opset in ((None, 1, 11), ((1, -1), 0, 11), ((2, 3), 1, 13), ((2,), 0, 18), ((0, 1), 1, 18))
    ),
    Case("noop", "ReduceSum", (X4,), {"noop_with_empty_axes": 1}),
    Case("int", "ReduceSum", (whole(3, 4, 5, dtype=np.int32), ints(1)), constants=(1,)),
    Case("int", "ReduceMax", (whole(3, 4, 5, dtype=np.int8),), {"axes": [1]}),
    Case(
        "infinite",
        "ReduceLogSumExp",
        (np.array([[-np.inf, -np.inf], [np.inf, 0], [1000, 1001]], np.float32),),
        {"axes": [1]},
    ),
    *(
        Case(f"axis{axis}-{keepdims}", op, (X4,), {"axis": axis, "keepdims": keepdims})
        for op in ("ArgMax", "ArgMin")
        for axis, keepdims in ((0, 1), (1, 0), (-1, 1))
    ),
    *(
        Case(
            f"ties-{last}", op, (whole(4, 9, low=0, high=3).astype(np.float32),), {"axis": 1, "select_last_index": last}
        )
        for op in ("ArgMax", "ArgMin")
        for last in (0, 1)
    ),
]
NORMALIZATION = [
    *(
        Case(f"axis{axis}", op, (X4,), {"axis": axis}, opset)
        for op in ("Softmax", "LogSoftmax")
        for opset in (11, 13)
        for axis in (0, 1, 2, 3)
    ),
    *(Case("default", op, (X4,), {}, opset) for op in ("Softmax", "LogSoftmax") for opset in (11, 13)),
    Case("large", "Softmax", (np.array([[1000, 999, -1000]], np.float32),)),
    *(
        Case(
            f"axis{axis}",
            "LayerNormalization",
            (X4, f32(*X4.shape[axis:]), f32(*X4.shape[axis:])),
            {"axis": axis, "epsilon": 1e-3},
            constants=(1, 2),
            atol=1e-5,
        )
        for axis in (1, 2, 3, -1)
    ),
    Case("no_bias", "LayerNormalization", (X4, f32(6)), constants=(1,), atol=1e-5),
    Case("statistics", "LayerNormalization", (X4, f32(6), f32(6)), outputs=3, atol=1e-5),
    Case("deviation", "LayerNormalization", (X4, f32(6), f32(6)), outputs=("y", "", "d"), atol=1e-5),
    *(
        Case(
            f"axis{axis}",
            "RMSNormalization",
            (X4, f32(*X4.shape[axis:])),
            {"axis": axis},
            23,
            reference="onnx",
            atol=1e-5,
        )
        for axis in (2, -1)
    ),
    *(
        Case(
            "per_group",
            "GroupNormalization",
            (f32(2, 6, 4, 5), f32(groups), f32(groups)),
            {"num_groups": groups},
            18,
            reference="onnx",
            atol=1e-5,
        )
        for groups in (2, 6)
    ),
    *(
        Case(
            "per_channel",
            "GroupNormalization",
            (f32(2, 6, 4, 5), f32(6), f32(6)),
            {"num_groups": groups},
            21,
            atol=1e-5,
        )
        for groups in (1, 2, 6)
    ),
    *(
        Case(f"{len(shape)}d", "InstanceNormalization", (f32(*shape), f32(shape[1]), f32(shape[1])), atol=1e-5)
        for shape in ((2, 5, 9), (2, 5, 7, 6), (1, 3, 4, 5, 6))
    ),
    *(
        Case(
            f"{len(shape)}d-{opset}",
            "BatchNormalization",
            (f32(*shape), *(f32(shape[1], low=0.5) for _ in range(4))),
            {"epsilon": 1e-3},
            opset,
            constants=(1, 2, 3, 4),
            atol=1e-5,
        )
        for opset in (7, 9, 15)
        for shape in ((4, 5), (2, 5, 9), (2, 5, 7, 6), (1, 3, 4, 5, 6))
    ),
    Case(
        "training",
        "BatchNormalization",
        (X4, *(f32(5, low=0.5) for _ in range(4))),
        {"training_mode": 1, "momentum": 0.7},
        15,
        outputs=3,
        atol=1e-5,
        reference="onnx",
    ),
    *(
        Case(f"size{size}", "LRN", (f32(2, 7, 4, 5),), {"size": size, "alpha": 0.2, "beta": beta, "bias": 1.5})
        for size, beta in ((1, 0.75), (3, 0.75), (5, 0.6), (9, 0.75))
    ),
]
FALLBACK = [
    Case("axis", "CumSum", (f32(3, 4), np.array(1)), constants=(1,)),
    Case("lower", "Trilu", (f32(4, 4),), {"upper": 0}),
    Case("products", "Einsum", (f32(2, 3, 4), f32(2, 4, 5)), {"equation": "bij,bjk->bik"}),
    Case("largest", "TopK", (f32(3, 9), ints(4)), {"axis": 1}, constants=(1,), outputs=2),
    Case(
        "last_state",
        "LSTM",
        (f32(5, 2, 3), f32(1, 16, 3), f32(1, 16, 4)),
        {"hidden_size": 4},
        outputs=("", "h"),
        reference="onnx",
    ),
]
CASES = [*ARITHMETIC, *SINGLE, *LINEAR, *POOLING, *SHAPING, *RESIZING, *REDUCTION, *NORMALIZATION]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [*CASES, *FALLBACK], ids=str)
def test_op_matches_reference(case: Case, layout: str) -> None:
    node = onnx_node(case.model(), case.inputs, case.constants)
    assert_same(run_node(node, case.inputs, layout), case.expected(), case.rtol, case.atol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_converters_use_own_ops(case: Case) -> None:
    op = convert(onnx_node(case.model(), case.inputs, case.constants)).op
    assert isinstance(op, ReferenceOp) == (case.name == "float_string")


def test_every_converter_and_function_has_a_case() -> None:
    assert {case.op_type for case in CASES} == set(CONVERTERS)
    ops = [convert(onnx_node(case.model(), case.inputs, case.constants)).op for case in CASES]
    assert {op.function for op in ops if isinstance(op, Elementwise)} == set(FUNCTIONS)
    assert {op.function for op in ops if isinstance(op, Unary)} == set(UNARY)


@pytest.mark.parametrize("case", FALLBACK, ids=str)
def test_unknown_ops_fall_back_to_the_reference_evaluator(case: Case) -> None:
    assert isinstance(convert(onnx_node(case.model(), case.inputs, case.constants)).op, ReferenceOp)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "constants", "kind"),
    [
        ("Conv", (f32(1, 3, 8, 8), f32(4, 3, 3, 3)), {}, (1,), Conv2d),
        ("Conv", (f32(1, 3, 8, 8), f32(4, 3, 3, 3)), {}, (), Conv2d),
        ("MatMul", (f32(4, 6), f32(6, 5)), {}, (1,), Linear),
        ("MatMul", (f32(4, 6), f32(6, 5)), {}, (), MatMul),
        ("Gemm", (f32(4, 6), f32(5, 6), f32(5)), {"transB": 1}, (1, 2), Linear),
        ("Gemm", (f32(4, 6), f32(6, 5), f32(4, 5)), {}, (1,), Linear),
        ("Gemm", (f32(6, 4), f32(6, 5)), {"transA": 1}, (1,), Gemm),
        ("Gemm", (f32(4, 6), f32(6, 5)), {}, (), Gemm),
        ("Relu", (X4,), {}, (), Activate),
    ],
)
def test_layers_that_can_be_cut_or_fused_are_recognised(
    op_type: str, inputs: tuple[Array, ...], attributes: dict[str, Any], constants: tuple[int, ...], kind: type
) -> None:
    case = Case("kind", op_type, inputs, attributes)
    assert type(convert(onnx_node(case.model(), inputs, constants)).op) is kind


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("", "Reshape", (X4, ints(2, -1))), "the shape ('x1') is computed at run time; export with static shapes"),
        (Case("", "Slice", (X4, ints(0), ints(1))), "starts ('x1') is computed at run time"),
        (Case("", "Pad", (X4, ints(0, 0, 0, 0, 0, 0, 0, 0))), "pads ('x1') is computed at run time"),
        (Case("", "Resize", (X4, None, f32(4))), "scales ('x2') is computed at run time"),
        (Case("", "ReduceSum", (X4, ints(1))), "axes ('x1') is computed at run time"),
        (Case("", "Reshape", (X4, ints(11, -1)), constants=(1,)), "does not reshape to [11, -1]"),
        (Case("", "Flatten", (X4,), {"axis": 9}), "axis 9 is outside an input of rank 4"),
        (Case("", "MaxPool", (X4,), {"kernel_shape": [9, 9]}), "kernel (9, 9) is larger than the padded input (7, 6)"),
        (Case("", "Conv", (X4, f32(2, 3, 3, 3))), "weight of shape (2, 3, 3, 3) does not fit 5 input channels"),
        (Case("", "Add", (f32(2, 3), f32(4))), "shapes (2, 3), (4,) do not broadcast"),
        (
            Case("", "Resize", (X4, None, f32(4, low=1)), {"mode": "best"}, constants=(2,)),
            "mode is 'best', which is not one",
        ),
        (Case("", "NonZero", (X4,)), "the shape of output 0 depends on the data"),
        (Case("", "Bogus", (X4,)), "neither coexec nor the ONNX reference evaluator implements it"),
        (Case("", "Dropout", (X4, scalar(0.5), np.array(True)), constants=(1, 2)), "is in training mode"),
    ],
)
def test_errors_name_node_and_reason(case: Case, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        convert(onnx_node(case.model(), case.inputs, case.constants))
    text = str(caught.value)
    assert text.startswith(f"node 'tested' ({case.op_type}): ")
    assert message in text
    assert "\n" not in text


# Nonsense ---------------------------------------------------------------------------------------------

HUGE = 2**62
NONSENSE: dict[int, tuple[Any, ...]] = {
    AttributeProto.INT: (-HUGE, -1, 0, 1, 2, 7, HUGE, 1.5, "text", [1, 2]),
    AttributeProto.FLOAT: (math.nan, math.inf, -math.inf, 0.0, -1.5, "text", [0.5]),
    AttributeProto.STRING: ("", "nonsense", "VALID", "linear", 1),
    AttributeProto.FLOATS: ([], [math.nan] * 4, [0.0] * 4, 1.0),
}
OTHERS_REFUSE = {"LRN": "both others have limits of their own: odd sizes, positive numbers"}


def nonsense(kind: int, valid: Any) -> Iterator[Any]:
    """Values that an attribute of that type should not have, and some that it may."""
    if kind != AttributeProto.INTS:
        yield from NONSENSE.get(kind, ())
        return
    valid = list(valid or [1, 1])
    for number in (-HUGE, -1, 0, 1, 5, HUGE):
        yield [number] * len(valid)
        yield [number, *valid[1:]]
    yield from ([], valid[:-1], [*valid, valid[-1]], valid[::-1], 1.5)


def set_attribute(model: ModelProto, name: str, value: Any, kind: int | None = None) -> None:
    """Give the only node the attribute; ``kind`` is the type of an empty list."""
    node = model.graph.node[0]
    rest = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*rest, make_attribute(name, value, attr_type=kind if value == [] else None)])


def attribute_cases() -> list[Any]:
    """Each attribute of each op, in the first case of that op that names it, else in its first case."""
    found: dict[tuple[str, int, str], Case] = {}
    for case in [c for c in CASES if c.opset >= 9]:
        schema = get_schema(case.op_type, case.opset, "")
        for name in schema.attributes:
            key = (case.op_type, schema.since_version, name)
            if key not in found or (name in case.attributes and name not in found[key].attributes):
                found[key] = case
    return [pytest.param(case, name, id=f"{op}-{version}-{name}") for (op, version, name), case in found.items()]


@pytest.mark.parametrize(("case", "name"), attribute_cases())
def test_nonsense_in_an_attribute_is_refused_or_runs_alike(case: Case, name: str) -> None:
    kind = int(get_schema(case.op_type, case.opset, "").attributes[name].type.value)
    model, feed = whole_model(case)
    for value in nonsense(kind, case.attributes.get(name)):
        set_attribute(model, name, value, kind)
        if case.op_type in OTHERS_REFUSE:
            run_or_refuse(model, feed)
        else:
            assert_like_others_or_refused(model, feed)


@pytest.mark.parametrize(
    ("op_type", "attribute", "value", "message"),
    [
        ("Conv", "group", 0, "group is 0, outside 1 to 2147483647"),
        ("Conv", "strides", [0, 1], "strides is [0, 1], outside 1 to"),
        ("Conv", "dilations", [-1, 1], "dilations is [-1, 1], outside 1 to"),
        ("Conv", "pads", [1, 1], "pads has incorrect size"),
        ("Conv", "pads", [-1, 0, 0, 0], "pads is [-1, 0, 0, 0], outside 0 to"),
        ("Conv", "kernel_shape", [2, 3], "kernel_shape (2, 3) contradicts the weight"),
        ("Conv", "auto_pad", "SOME", "auto_pad is 'SOME', which is not one of"),
        ("MaxPool", "ceil_mode", 7, "ceil_mode is 7, outside 0 to 1"),
        ("MaxPool", "strides", [2**31, 1], "outside 1 to 2147483647"),
        ("Elu", "alpha", math.nan, "alpha is nan, not a finite number"),
        ("GatherND", "batch_dims", -7, "batch_dims is -7, outside 0 to"),
        ("Split", "num_outputs", 1, "num_outputs is 1, it has 3 outputs"),
    ],
)
def test_error_names_node_op_and_attribute(op_type: str, attribute: str, value: Any, message: str) -> None:
    case = next(c for c in CASES if c.op_type == op_type and (op_type != "Split" or c.name == "num_outputs"))
    if op_type == "Conv":
        case = conv_case(2, 1, 1, 1, "explicit", False)
    model, feed = whole_model(case)
    set_attribute(model, attribute, value)
    refusal = run_or_refuse(model, feed)
    assert isinstance(refusal, str)
    assert "tested" in refusal
    assert op_type in refusal
    assert message in refusal


def nonsense_constants(valid: Array) -> Iterator[Array]:
    """Other values, lengths, ranks and dtypes for a constant input."""
    whole_numbers = valid.dtype.kind in "iu"
    for number in (-HUGE, -2, 0, 1, 7, 2**31, HUGE) if whole_numbers else (math.nan, math.inf, -1, 0, 1e-9, 0.3, 2):
        if valid.dtype.kind != "b":
            yield np.full(valid.shape, number, np.int64 if whole_numbers else valid.dtype)
    flat = valid.reshape(-1)
    yield from (np.concatenate([flat, flat]), flat[:-1], flat[:0], valid[None], valid.astype(np.int32))


def constant_cases() -> list[Any]:
    """Each small constant input of each op, in its first case."""
    found = {
        (case.op_type, get_schema(case.op_type, case.opset, "").since_version, index): (case, index)
        for case in reversed(CASES)
        for index in case.constants
        if case.opset >= 9 and index < len(case.inputs) and case.inputs[index] is not None
        if np.size(case.inputs[index]) <= 20 and "crop" not in case.name
    }
    return [pytest.param(*value, id=f"{op}-{version}-{index}") for (op, version, index), value in found.items()]


@pytest.mark.parametrize(("case", "index"), constant_cases())
def test_nonsense_in_a_constant_is_refused_or_runs_alike(case: Case, index: int) -> None:
    valid = case.inputs[index]
    assert valid is not None
    for value in nonsense_constants(valid):
        inputs = (*case.inputs[:index], value, *case.inputs[index + 1 :])
        assert_like_others_or_refused(*whole_model(replace(case, inputs=inputs)))


def dtype_cases() -> list[Case]:
    return list({case.op_type: case for case in reversed(CASES) if case.opset >= 9 and len(case.inputs) > 1}.values())


@pytest.mark.parametrize("case", dtype_cases(), ids=str)
def test_inputs_of_other_dtypes_are_refused_or_run_alike(case: Case) -> None:
    for index, dtype in product(range(len(case.inputs)), (np.int32, np.float64)):
        if case.inputs[index] is not None:
            inputs = [x if i != index or x is None else x.astype(dtype) for i, x in enumerate(case.inputs)]
            assert_like_others_or_refused(*whole_model(replace(case, inputs=tuple(inputs))))


# Axes of size 0 ---------------------------------------------------------------------------------------


def emptied(case: Case, axis: int) -> Case:
    """The case with ``axis`` of its first input empty, and what has to match it in the others."""
    first = case.inputs[0]
    assert first is not None
    inputs: list[Array | None] = [np.take(first, [], axis)]
    for x in case.inputs[1:]:
        own = axis - first.ndim + x.ndim if x is not None else -1
        if case.op_type in ("Conv", "ConvTranspose"):
            own = {"Conv": 1, "ConvTranspose": 0}[case.op_type] if axis == 1 and x is not None and x.ndim > 1 else -1
        elif case.op_type in ("BatchNormalization", "GroupNormalization", "InstanceNormalization"):
            own = 0 if axis == 1 else -1
        same = x is not None and 0 <= own < x.ndim and (x.shape[own] == first.shape[axis] or x.ndim > 2)
        inputs.append(np.take(x, [], own) if x is not None and same else x)
    return replace(case, inputs=tuple(inputs))


EMPTY = {(c.op_type, c.opset, c.inputs[0].ndim, c.constants): c for c in CASES if c.inputs[0] is not None}


@pytest.mark.parametrize("case", [c for c in EMPTY.values() if c.opset >= 9], ids=str)
def test_axes_without_elements_are_refused_or_run_alike(case: Case) -> None:
    assert case.inputs[0] is not None
    for axis in range(case.inputs[0].ndim):
        assert_like_others_or_refused(*whole_model(emptied(case, axis)))


EMPTY_LAYERS = [
    *(
        Case(f"{a}x{b}", "MatMul", (f32(*a), f32(*b)), constants=(1,))
        for a, b in (
            ((0, 3), (3, 4)),
            ((2, 0), (0, 4)),
            ((2, 3), (3, 0)),
            ((2, 5, 0), (0, 4)),
            ((2, 0, 3), (3, 4)),
            ((0,), (0, 4)),
        )
    ),
    *(
        Case(f"{a}x{b}", "Gemm", (f32(*a), f32(*b), f32(b[1])), constants=(1, 2))
        for a, b in (((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)))
    ),
    *(
        Case(f"{a}x{b}", "Conv", (f32(*a), f32(*b), f32(b[0])), {"pads": [1, 1, 1, 1]}, constants=(1, 2))
        for a, b in (
            ((0, 3, 5, 5), (4, 3, 3, 3)),
            ((1, 0, 5, 5), (4, 0, 3, 3)),
            ((1, 3, 5, 5), (0, 3, 3, 3)),
            ((1, 3, 0, 5), (4, 3, 2, 3)),
        )
    ),
]


@pytest.mark.parametrize("case", EMPTY_LAYERS, ids=str)
def test_layers_without_elements_run_uncut(case: Case) -> None:
    model, feed = whole_model(case)
    assert not load_graph(model).split_nodes()
    outputs = run_or_refuse(model, feed)
    assert not isinstance(outputs, str)
    assert_same(outputs, run_onnxruntime(model, feed))


# Pooling ----------------------------------------------------------------------------------------------


@st.composite
def pools(draw: st.DrawFn) -> Case:
    op_type, rank = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"])), draw(st.integers(1, 2))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    attributes: dict[str, Any] = {"kernel_shape": kernel, "ceil_mode": draw(st.integers(0, 1))}
    attributes["strides"] = draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank))
    attributes["dilations"] = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    padding = draw(st.sampled_from(["pads", "pads", "pads", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if padding == "pads":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        attributes["auto_pad"] = padding
    if op_type == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    size = draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    return Case("any", op_type, (f32(1, 2, *size),), attributes, opset=22)


@given(pools())
@settings(max_examples=300)
def test_any_pooling(case: Case) -> None:
    model, feed = whole_model(case)
    outputs = run_or_refuse(model, feed)
    if isinstance(outputs, str):
        assert "is larger than the padded input" in outputs or "runtimes disagree" in outputs
        return
    assert_same(outputs, run_onnxruntime(model, feed), 1e-4, 1e-4)


def test_pooling_far_larger_than_its_input_is_quick() -> None:
    attributes = {"kernel_shape": [2**30, 2**30], "auto_pad": "SAME_UPPER"}
    for op_type in ("MaxPool", "AveragePool"):
        (whole,) = run_or_refuse(*whole_model(Case("huge", op_type, (X4,), attributes)))
        function = np.max if op_type == "MaxPool" else np.mean
        np.testing.assert_allclose(whole, np.broadcast_to(function(X4, (2, 3), keepdims=True), X4.shape), rtol=1e-4)


def test_gather_refuses_indices_outside_the_axis() -> None:
    case = Case("outside", "Gather", (f32(3, 4), ints(0, 3)))
    with pytest.raises(InputError, match=r"outside \[-3, 3\)"):
        run_node(onnx_node(case.model(), case.inputs, ()), case.inputs, "row major")


def test_importing_the_ops_and_the_table_does_not_import_onnx() -> None:
    code = (
        "import sys, pkgutil, importlib, coexec.ops\n"
        "for m in pkgutil.iter_modules(coexec.ops.__path__): importlib.import_module('coexec.ops.' + m.name)\n"
        "import coexec.frontends.onnx_ops\n"
        "sys.exit('onnx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
