"""ONNX's own node tests, through coexec's converters and NumPy routines."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from single_node import LAYOUTS, assert_same, onnx_node, run_node

from coexec.errors import ModelError
from coexec.frontends.onnx_ops import CONVERTERS, convert
from coexec.layout import Array
from coexec.ops.reference_op import ReferenceOp

SKIPPED = {
    "test_identity_opt": "an optional, not a tensor",
    "test_identity_sequence": "a sequence, not a tensor",
    "test_not_2d": "opset 1; coexec reads 9 and newer",
    "test_not_3d": "opset 1; coexec reads 9 and newer",
    "test_not_4d": "opset 1; coexec reads 9 and newer",
    "test_training_dropout": "random by definition",
    "test_training_dropout_default": "random by definition",
    "test_training_dropout_default_mask": "random by definition",
    "test_training_dropout_mask": "random by definition",
}

NEEDS_CONSTANTS = frozenset(
    {"Dropout", "Expand", "Pad", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze", "Upsample"}
    | {name for name in CONVERTERS if name.startswith("Reduce")}
)
"""Ops with an input that decides the output's shape."""

REFERENCE_ALLOWED = frozenset({"Cast", "CastLike"})
"""Ops whose exotic dtypes (float8, int4, strings, ...) the ONNX reference evaluator may convert."""


@cache
def cases() -> dict[str, Any]:
    """Single-node models of the op types that coexec converts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    single = {t.name: t for t in tests if t.model is not None and len(t.model.graph.node) == 1}
    nodes = {name: t.model.graph.node[0] for name, t in single.items()}
    return {name: t for name, t in single.items() if nodes[name].op_type in CONVERTERS and not nodes[name].domain}


def read(name: str) -> tuple[Any, list[Array | None], list[Array]]:
    """Model, inputs as the node has them, expected outputs."""
    test = cases()[name]
    inputs, outputs = test.data_sets[0]
    given = dict(zip([i.name for i in test.model.graph.input], inputs, strict=True))
    names = test.model.graph.node[0].input
    return test.model, [_array(given[n]) if n else None for n in names], [_array(y) for y in outputs]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def parameters() -> list[Any]:
    marks = {name: [pytest.mark.skip(reason=reason)] for name, reason in SKIPPED.items()}
    return [pytest.param(name, marks=marks.get(name, [])) for name in cases()]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
@pytest.mark.parametrize("name", parameters())
def test_onnx_node_case(name: str, constant: bool, layout: str) -> None:
    model, inputs, expected = read(name)
    node = onnx_node(model, inputs, range(len(inputs)) if constant else ())
    try:
        op = convert(node).op
    except ModelError as error:
        if constant or node.op_type not in NEEDS_CONSTANTS:
            raise
        assert "is computed at run time; export with static shapes" in str(error)
        return
    assert node.op_type in REFERENCE_ALLOWED or not isinstance(op, ReferenceOp)
    # The tolerances of onnx.backend.test, which some cases' rounded constants need.
    assert_same(run_node(node, inputs, layout), expected, rtol=1e-3, atol=1e-6)


def test_suite_is_there_and_skips_are_named_rightly() -> None:
    assert len(cases()) > 600
    assert set(SKIPPED) <= set(cases())
    assert len({cases()[name].model.graph.node[0].op_type for name in cases()}) > 100
