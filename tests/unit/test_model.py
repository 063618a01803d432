"""The object that users hold: CPU-only runs, errors, threads, warnings, saved plans."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import coexec
from coexec.frontends.onnx_ops import CONVERTERS
from coexec.layout import Array

COUNTS = ("cpu_threads", "compute_units")
NO_COUNTS = (0, -1, "2", 1.5, 2.0, float("nan"), True, [1])
NO_DURATIONS = (0, -1.0, float("nan"), float("inf"), "10", True)


def network() -> onnx.ModelProto:
    """Two products, an activation after each."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((32, 32), np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["input", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w1"], ["c"], name="second"),
        helper.make_node("Tanh", ["c"], ["output"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, (4, 32))],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, (4, 32))],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def reference(model: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"input": x})[0])


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(1).standard_normal((4, 32), np.float32)


def test_cpu_only(x: Array) -> None:
    proto = network()
    model = coexec.partition(proto, device="cpu")
    assert model.plan.device == ""
    assert [(p.name, p.shape, p.type) for p in model.get_inputs()] == [("input", (4, 32), "tensor(float)")]
    assert [(p.name, p.shape, p.type) for p in model.get_outputs()] == [("output", (4, 32), "tensor(float)")]
    np.testing.assert_allclose(model(x), reference(proto, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.run(["output"], {"input": x})[0], model(x))


def test_outputs_are_the_callers_own(x: Array) -> None:
    model = coexec.partition(network(), device="cpu")
    first = model(x)
    kept = first.copy()
    model(2 * x)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "'input' is missing"),
        ({"x": np.zeros((4, 32), np.float32)}, "no input 'x'"),
        ({"input": np.zeros((4, 32))}, "dtype float32"),
        ({"input": np.zeros((4, 31), np.float32)}, "shape \\(4, 32\\)"),
        ({"input": [[0.0] * 32] * 4}, "NumPy array"),
    ],
)
def test_wrong_feeds(feed: dict[str, Array], message: str) -> None:
    model = coexec.partition(network(), device="cpu")
    with pytest.raises(coexec.InputError, match=message) as error:
        model.run(None, feed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "fp8"}, "precision"),
        ({"adapt": True}, "adapt"),
        ({"cpu_threads": 0}, "cpu_threads"),
        ({"cpu_threads": 10_000}, "cpu_threads"),
        ({"compute_units": -1}, "compute_units"),
        ({"compute_units": 2}, "no OpenCL device is used"),
        ({"effort": 3}, "effort limits profile='measure'"),
        ({"example_inputs": (1,)}, "example_inputs"),
        ({"sync": "events"}, "needs an OpenCL device"),
        ({"sync": "telepathy"}, "no sync strategy 'telepathy'; there are"),
        ({"sync": ""}, "no sync strategy ''"),
        *(({name: bad}, f"{name} must be a whole number from 1") for name in COUNTS for bad in NO_COUNTS),
        *(({"effort": bad, "profile": "measure"}, "effort must be a positive") for bad in NO_DURATIONS),
        *(({name: bad}, f"{name} is True or False") for name in ("strict", "adapt") for bad in (0, "no", None)),
        *(({"profile": bad}, "a profile is a name or a folder") for bad in (3, ["a"], True)),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(coexec.InputError, match=message) as error:
        coexec.partition(network(), device="cpu", **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_wrong_calls_say_what_to_do(x: Array) -> None:
    model = coexec.partition(network(), device="cpu")
    for arguments, message in (((), "1 inputs .input., not 0"), ((x, x), "not 2"), (({"input": x},), "model.run"),
                               ((x.tolist(),), "must be a NumPy array, not list")):  # fmt: skip
        with pytest.raises(coexec.InputError, match=message):
            model(*arguments)  # type: ignore[arg-type]
    with pytest.raises(coexec.InputError, match="call it"):
        coexec.partition(coexec.zoo.resnet18)


def test_names_are_seen_before_they_are_loaded() -> None:
    assert {*coexec.__all__, "zoo"} <= set(dir(coexec))
    assert "small" in repr(coexec.partition(network(), device="cpu"))


@pytest.mark.parametrize("bad", [42, None, b"model", {"nodes": []}])
def test_no_model_at_all(bad: object) -> None:
    with pytest.raises(coexec.InputError, match="ONNX"):
        coexec.partition(bad, device="cpu")


@pytest.mark.parametrize("bad", [{}, 3, None, b"plan", [1]])
def test_no_plan_at_all(bad: object) -> None:
    model = coexec.partition(network(), device="cpu")
    with pytest.raises(coexec.InputError, match="a plan is"):
        coexec.load(network(), plan=bad)  # type: ignore[arg-type]
    with pytest.raises(coexec.InputError, match="a plan is"):
        model.plan = bad  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        ("output", {}, "a list of names"),
        (3, {}, "a list of names"),
        (["nothing"], {}, "no output 'nothing'"),
        (None, None, "a dict"),
        (None, [np.zeros((4, 32), np.float32)], "a dict"),
        (None, np.zeros((4, 32), np.float32), "a dict"),
    ],
)
def test_wrong_arguments_of_a_run(names: object, feed: object, message: str) -> None:
    model = coexec.partition(network(), device="cpu")
    with pytest.raises(coexec.InputError, match=message):
        model.run(names, feed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu_threads": 2}, "CPU threads 2"),
        ({"device": "elsewhere:0", "compute_units": 1}, "device 'elsewhere:0'"),
        ({"device_name": "another"}, "device 'another'"),
        ({"sync": "events"}, "sync 'events'"),
        ({"sync": "telepathy"}, "telepathy"),
        ({"signature": "x"}, "another model"),
        ({"tasks": ()}, "make it again"),
    ],
)
def test_a_plan_that_is_not_for_this_model_changes_nothing(x: Array, change: dict[str, Any], message: str) -> None:
    model = coexec.partition(network(), device="cpu", cpu_threads=1)
    before, expected = model.plan, model(x)
    with pytest.raises(coexec.PlanError, match=message):
        model.plan = replace(before, **change)
    assert model.plan is before
    np.testing.assert_array_equal(model(x), expected)
    model.plan = replace(before, costs_from="elsewhere")
    np.testing.assert_array_equal(model(x), expected)


def test_threads_take_turns() -> None:
    proto = network()
    model = coexec.partition(proto, device="cpu")
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal((4, 32), np.float32) for _ in range(8)]
    expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(200):
            if not np.array_equal(model(inputs[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reference_evaluator_is_named_once_with_its_share(x: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CONVERTERS, "Tanh")  # as if it had no implementation of its own
    proto = network()
    model = coexec.partition(proto, device="cpu")
    with pytest.warns(UserWarning, match=r"Tanh x1: \d+% of the run's time"):
        first = model(x)
    np.testing.assert_allclose(first, reference(proto, x), rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x)


def open_network() -> onnx.ModelProto:
    """The network with any batch size."""
    proto = network()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto


def test_a_plan_knows_the_input_shapes_that_it_was_made_for(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((8, 32), np.float32)
    plan = coexec.partition(open_network(), input_shapes={"input": (8, 32)}, device="cpu").plan
    plan.save(tmp_path / "plan.json")
    model = coexec.load(open_network(), plan=tmp_path / "plan.json")
    np.testing.assert_allclose(model(x), reference(open_network(), x), rtol=1e-5, atol=1e-6)
    with pytest.raises(coexec.PlanError, match="input shapes input=8x32, the model is read with input=4x32"):
        coexec.load(open_network(), plan=plan, input_shapes={"input": (4, 32)})
    with pytest.raises(coexec.PlanError, match="the model is read with input=4x32"):
        coexec.load(network(), plan=plan)
    with pytest.raises(coexec.ModelError, match=r"open dimensions.*--input-shape input=1x32"):
        coexec.load(open_network(), plan=replace(plan, input_shapes={"other": (8, 32)}))


def test_saved_plan_runs_without_predictors_and_tables(tmp_path: Path, x: Array) -> None:
    """A deployment that only loads a plan pays neither for LightGBM nor for pandas."""
    onnx.save(network(), tmp_path / "model.onnx")
    coexec.partition(tmp_path / "model.onnx", device="cpu").plan.save(tmp_path / "plan.json")
    code = (
        "import sys, numpy, coexec; "
        "model = coexec.load('model.onnx', plan='plan.json'); "
        "model(numpy.zeros((4, 32), numpy.float32)); "
        "print([m for m in ('lightgbm', 'pandas', 'sklearn', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_opencl_is_said_once_and_everything_works(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "model.onnx")
    code = (
        "import numpy, coexec; model = coexec.partition('model.onnx'); "
        "model(numpy.zeros((4, 32), numpy.float32)); print(model.plan.device == '')"
    )
    env = {**os.environ, "OCL_ICD_VENDORS": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
    assert done.stderr.count("no usable OpenCL device") == 1
