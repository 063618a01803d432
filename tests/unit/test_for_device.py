"""What kernels compute of an op (``for_device``) is what the op itself computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_ops import F4, attentions, pools
from single_node import Case, onnx_node

from coexec.frontends.onnx_ops import convert
from coexec.layout import Array, Shape
from coexec.ops.attention import Attention
from coexec.ops.base import ArraySpec, DeviceOp, Op
from coexec.ops.global_pool import GlobalPool
from coexec.ops.layer_norm import LayerNorm
from coexec.ops.pool import Pool
from coexec.ops.softmax import Softmax


def specs_of(arrays: Sequence[Array | None]) -> list[ArraySpec | None]:
    return [None if a is None else ArraySpec(a.shape, a.dtype) for a in arrays]


def by_kernels(op: Op, arrays: Sequence[Array | None]) -> Array | None:
    """The result of the op's form for kernels, in the logical shape; None if it has none."""
    specs = specs_of(arrays)
    device_op = op.for_device(specs)
    if device_op is None:
        return None
    assert isinstance(device_op, DeviceOp)
    output = np.full(op.infer(specs)[0].shape, np.nan)
    inputs, canonical = device_op.canonical(arrays, output)
    result = device_op.reference(inputs)
    assert result.shape == canonical.shape
    canonical[...] = result
    return output


def assert_same_by_kernels(op: Op, *arrays: Array | None) -> None:
    output = np.empty(op.infer(specs_of(arrays))[0].shape, np.float32)
    op.run(arrays, [output])
    found = by_kernels(op, arrays)
    assert found is not None
    np.testing.assert_allclose(found, output, rtol=1e-5, atol=2e-6)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@given(pools())
def test_pool(case: tuple[Pool, Shape]) -> None:
    op, shape = case
    assert_same_by_kernels(op, normal(*shape))


shapes4 = st.tuples(*(st.integers(1, 5),) * 4)


@given(st.sampled_from(["max", "average"]), shapes4)
def test_global_pool(function: str, shape: Shape) -> None:
    assert_same_by_kernels(GlobalPool(function), normal(*shape))


@given(st.data())
def test_layer_norm(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    affine = shape[axis:]
    ones = data.draw(st.integers(0, 2))  # leading axes of size 1 change nothing
    scale = normal(*(1,) * min(ones, axis), *affine, seed=1)
    bias = normal(*affine, seed=2) if data.draw(st.booleans()) else None
    op = LayerNorm(axis, data.draw(st.sampled_from([1e-5, 0.3])))
    assert_same_by_kernels(op, normal(*shape), scale, bias)


@given(attentions())
def test_attention(op: Attention) -> None:
    arrays = [normal(*op.array_shapes[role], seed=i) for i, role in enumerate("qkv")]
    assert_same_by_kernels(op, *arrays)


def image(*shape: int) -> tuple[Array]:
    return (normal(*(shape or (2, 3, 9, 8))),)


POOLING: dict[str, dict[str, Any]] = {
    "plain": {"kernel_shape": [2, 3]},
    "strided": {"kernel_shape": [3, 3], "strides": [2, 3]},
    "padded": {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1]},
    "dilated": {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [2, 1, 0, 1]},
    "ceil": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    "same": {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "same lower": {"kernel_shape": [2, 2], "strides": [1, 2], "auto_pad": "SAME_LOWER"},
}
AFFINE = (normal(8, seed=1), normal(8, seed=2))
CASES = [
    *(Case(name, "MaxPool", image(), options) for name, options in POOLING.items()),
    *(
        Case(f"{name}-include{include}", "AveragePool", image(), {**options, "count_include_pad": include}, opset=19)
        for name, options in POOLING.items()
        for include in (0, 1)
    ),
    Case("image", "GlobalAveragePool", image()),
    Case("image", "GlobalMaxPool", image()),
    Case("last", "LayerNormalization", (*image(), *AFFINE), {"axis": -1, "epsilon": 1e-3}),
    Case("no bias", "LayerNormalization", (*image(), AFFINE[0]), {"axis": 3}),
    Case("three axes", "LayerNormalization", (*image(2, 3, 2, 4), normal(3, 2, 4), normal(3, 2, 4)), {"axis": 1}),
    Case("one axis", "LayerNormalization", (normal(8), *AFFINE), {"axis": 0}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_onnxruntime(case: Case) -> None:
    op = convert(onnx_node(case.model(), case.inputs, ())).op
    found = by_kernels(op, case.inputs)
    assert found is not None
    np.testing.assert_allclose(found, case.expected()[0], rtol=1e-5, atol=2e-6)


def pooling(op_type: str, *shape: int, **more: Any) -> Op:
    options = {"kernel_shape": [2] * (len(shape) - 2), **more}
    outputs = 2 if op_type == "MaxPool" and "storage_order" in options else 1
    case = Case("", op_type, image(*shape), options, outputs=outputs)
    return convert(onnx_node(case.model(), case.inputs, ())).op


NOT_BY_KERNELS: dict[str, tuple[Op, tuple[Shape, ...]]] = {
    "one spatial axis": (pooling("MaxPool", 1, 2, 5), ((1, 2, 5),)),
    "three spatial axes": (pooling("AveragePool", 1, 2, 5, 4, 3), ((1, 2, 5, 4, 3),)),
    "indices": (pooling("MaxPool", 1, 2, 5, 4, storage_order=0), ((1, 2, 5, 4),)),
    "Lp": (pooling("LpPool", 1, 2, 5, 4), ((1, 2, 5, 4),)),
    "global, one spatial axis": (GlobalPool("max"), ((1, 2, 5),)),
    "global Lp": (GlobalPool("lp"), ((1, 2, 5, 4),)),
    "with statistics": (LayerNorm(1, statistics=2), ((3, 4), (4,))),
    "scale of fewer elements": (LayerNorm(1), ((2, 3, 4), (4,))),
    "scale per row": (LayerNorm(1), ((3, 4), (3, 4))),
    "scale of as many elements, per row": (LayerNorm(1), ((4, 4), (4, 1))),
    "no kernel": (Softmax((1,)), ((3, 4),)),
}


@pytest.mark.parametrize("name", NOT_BY_KERNELS)
def test_what_kernels_do_not_compute(name: str) -> None:
    op, shapes = NOT_BY_KERNELS[name]
    specs = [ArraySpec(shape, F4) for shape in shapes]
    op.infer(specs)
    assert op.for_device(specs) is None
