"""ONNX's own backend node tests, through coexec.onnx_backend, by coexec's own ops."""

from __future__ import annotations

import warnings

import pytest
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from coexec.onnx_backend import CoexecBackend

# Families that must pass as a whole: test names by the op that they are for.
FAMILIES = (
    "AveragePool",
    "BatchNormalization",
    "Celu",
    "Clip",
    "Concat",
    "Conv",
    "Elu",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "LayerNormalization",
    "LeakyRelu",
    "LogSoftmax",
    "LpPool",
    "MatMul",
    "MaxPool",
    "Mish",
    "PRelu",
    "Relu",
    "Reshape",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the generators of the cases overflow on purpose
    CASES = {
        case.name: case
        for case in load_model_tests(kind="node")
        if case.model is not None
        and len(case.model.graph.node) == 1
        and case.model.graph.node[0].op_type in FAMILIES
        and case.model.graph.node[0].domain in ("", "ai.onnx")
    }


def test_every_family_has_cases() -> None:
    assert {case.model.graph.node[0].op_type for case in CASES.values()} == set(FAMILIES)
    assert len(CASES) > 150


@pytest.mark.parametrize("name", sorted(CASES))
def test_node(name: str) -> None:
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the reference evaluator would announce itself by a warning
        warnings.filterwarnings("default", category=RuntimeWarning)
        prepared = CoexecBackend.prepare(case.model, "CPU")
        for inputs, expected in case.data_sets:
            outputs = list(prepared.run(inputs))
            Runner.assert_similar_outputs(expected, outputs, rtol=case.rtol, atol=case.atol)
