"""Validation and benchmarks give the documents that their users rely on, and measure what they say."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from coexec import zoo
from coexec.cli.bench_page import bench_page
from coexec.cli.tables import bench_view
from coexec.device import cpu_cores
from coexec.errors import CoexecError, InputError
from coexec.experiments.bench import Effort, bench_layers, bench_models
from coexec.experiments.conformance import Link
from coexec.experiments.layer_model import layer_model
from coexec.experiments.setting import open_setting
from coexec.experiments.suites import NamedLayer
from coexec.experiments.validate import grid, validate_layers, validate_model
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

LAYERS = [
    NamedLayer("dense", Linear(8, 64, 128)),
    NamedLayer("conv", Conv2d(1, 8, 14, 14, 64, 3, 3, 1, 1, 1, 1, 1, 1)),
]
LAYER_KEYS = {
    "name", "op", "axis", "cut", "units", "predicted_us", "measured_us", "oracle_us", "oracle_axis", "oracle_cut",
    "cpu_us", "gpu_us", "efficiency",
}  # fmt: skip
SUMMARY_KEYS = {"device", "noise", "layers", "oracle_ratio", "speedup", "oracle_speedup", "efficiency", "mape"}


def positive(values: dict[str, Any], *names: str) -> None:
    for name in names:
        assert isinstance(values[name], float) and values[name] > 0 and math.isfinite(values[name]), name


def check_validation(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document)) == document
    assert document.keys() >= SUMMARY_KEYS
    for row in document["layers"]:
        assert row.keys() >= LAYER_KEYS
        positive(row, "predicted_us", "measured_us", "oracle_us", "cpu_us", "gpu_us", "efficiency")
        assert 0 <= row["cut"] <= row["units"]
        ideal = 1 / (1 / row["cpu_us"] + 1 / row["gpu_us"])
        assert row["efficiency"] == pytest.approx(ideal / row["measured_us"])
        if all(row[name] == row[f"oracle_{name}"] for name in ("axis", "cut", "cpu_kernel")):
            assert row["oracle_us"] == row["measured_us"]
        if row["cut"] == 0:
            assert row["cpu_us"] <= row["measured_us"]
    rows = document["layers"]
    ratios = [row["oracle_us"] / row["measured_us"] for row in rows]
    speedups = [min(row["cpu_us"], row["gpu_us"]) / row["measured_us"] for row in rows]
    assert document["oracle_ratio"] == pytest.approx(math.prod(ratios) ** (1 / len(rows)))
    assert document["speedup"] == pytest.approx(math.prod(speedups) ** (1 / len(rows)))
    assert document["oracle_speedup"] == pytest.approx(document["speedup"] / document["oracle_ratio"])


@pytest.mark.filterwarnings("ignore:no profile fits", "ignore:profile .* fits only nearly")
def test_validation_of_layers(sampled_link: Link) -> None:
    calls: list[tuple[int, int, str]] = []
    document = validate_layers(
        LAYERS,
        device=sampled_link.info.id,
        sync=sampled_link.sync,
        step=32,
        seconds_per_layer=0.3,
        progress=lambda *call: calls.append(call),
    )
    check_validation(document)
    assert [row["name"] for row in document["layers"]] == ["dense", "conv"]
    positive(document["mape"], "cpu", "gpu")
    assert calls == [(0, 2, "dense"), (1, 2, "conv"), (2, 2, "done")]
    assert document["environment"]["sync"] == sampled_link.sync
    # Both exclusive choices; channels at 32, 64, 96 of 128; no row at 32 of 8; and the choice itself. All but the GPU's
    # own by all that the CPU side has.
    kinds = 1 + (open_setting(sampled_link.info.id, sync=sampled_link.sync).use.cpu_traits is not None)
    assert document["layers"][0]["candidates"] in (1 + 4 * kinds, 2 + 4 * kinds)


def test_validation_of_a_measured_choice(sampled_link: Link) -> None:
    document = validate_layers(
        LAYERS[:1], device=sampled_link.info.id, profile="measure", seconds_per_layer=0.3, step=64
    )
    check_validation(document)
    assert document["mape"] == {"cpu": None, "gpu": None}
    assert document["costs_from"] == "measurement"


@pytest.mark.filterwarnings("ignore:no profile fits", "ignore:profile .* fits only nearly")
def test_validation_of_a_model(sampled_link: Link) -> None:
    model = layer_model(LAYERS[1].op, copies=3)
    document = validate_model(
        model, device=sampled_link.info.id, sync=sampled_link.sync, step=32, seconds_per_layer=0.3
    )
    check_validation(document)
    assert [row["count"] for row in document["layers"]] == [3]
    end = document["end_to_end"]
    positive(end, "plan_ms", "cpu_ms", "gpu_ms", "per_layer_ms", "best_found_ms")
    assert end["best_found_ms"] <= min(end["plan_ms"], end["cpu_ms"], end["gpu_ms"], end["per_layer_ms"])


def test_grid_covers_both_axes(sampled_link: Link) -> None:
    setting = open_setting(sampled_link.info.id, sync=sampled_link.sync)
    op = Conv2d(1, 8, 20, 9, 640, 3, 3, 1, 1, 1, 1, 1, 1, groups=2)
    kernels = {False} if setting.use.cpu_traits is None else {False, True}
    rows = np.unique(np.linspace(1, 19, 17).astype(int)).tolist()
    for step, most, expected in ((None, 17, rows), (5, 99, [5, 10, 15])):
        whole, *others = grid(op, setting, step, most)
        assert (whole.axis, whole.cut) == ("channel", 640)
        assert {choice.cpu_kernel for choice in others} == kernels
        for by_kernel in kernels:
            own = [choice for choice in others if choice.cpu_kernel == by_kernel]
            assert [c.cut for c in own if c.axis == "channel"] == [0, 320]
            assert [c.cut for c in own if c.axis == "row"] == expected


def check_shown(document: dict[str, Any]) -> None:
    """Both views of a benchmark can be made of it."""
    assert bench_view(document)
    ElementTree.fromstring(bench_page(document).partition("\n")[2])


def test_benchmark_of_layers(sampled_link: Link) -> None:
    for threads in sorted({1, min(2, cpu_cores())}):
        document = bench_layers(
            LAYERS,
            peers=["numpy", "onnxruntime"],
            threads=threads,
            device=sampled_link.info.id,
            sync=sampled_link.sync,
            effort=Effort(2, 0.1),
        )
        assert json.loads(json.dumps(document)) == document
        assert document["models"] == []
        for layer, row in zip(LAYERS, document["layers"], strict=True):
            assert row["name"] == layer.name
            positive(row, "coexec_us", "cpu_us", "gpu_us")
            positive(row["peers"], "numpy", "onnxruntime")
            assert 1 < row["speedup_cap"] <= 2
            assert row["speedup"] == pytest.approx(min(row["cpu_us"], row["gpu_us"]) / row["coexec_us"])
            assert (row["gpu_all_cores_us"] is None) == (threads == 1 or not sampled_link.info.emulated_gpu)
            best = min(row["peers"], key=lambda name: row["peers"][name])
            assert (row["best_peer"], row["best_peer_us"]) == (best, row["peers"][best])
            assert row["ratio"] == pytest.approx(row["best_peer_us"] / row["coexec_us"])
            if threads == 1:
                assert row["cpu_ratio"] == pytest.approx(row["best_peer_us"] / row["cpu_us"])
                assert row["gpu_ratio"] == pytest.approx(row["best_peer_us"] / row["gpu_us"])
            assert row["differences"]["numpy"] < 1e-5
        assert [(group["of"], group["rows"]) for group in document["summary"]] == [
            ("linear", 1), ("conv2d", 1), ("all layers", 2),
        ]  # fmt: skip
        assert document["notes"] == [] and document["noise"] >= 0
        check_shown(document)
        environment = document["environment"]
        assert environment["device"] == sampled_link.info.id and environment["driver"]
        assert environment["versions"]["onnxruntime"] and environment["peer_threads"] == threads
        assert environment["compute_units"] == environment["cpu_threads"] == 1 or not sampled_link.info.emulated_gpu


@pytest.mark.filterwarnings("ignore:no profile fits", "ignore:profile .* fits only nearly")
def test_benchmark_of_models(sampled_link: Link) -> None:
    model = zoo.build("squeezenet", image_size=64)
    document = bench_models(
        [model],
        device=sampled_link.info.id,
        sync=sampled_link.sync,
        effort=Effort(2, 0.1),
        peers=["numpy", "onnxruntime"],
    )
    assert json.loads(json.dumps(document)) == document
    (row,) = document["models"]
    assert row["model"] == "squeezenet"
    positive(row, "coexec_ms", "split_ms", "cpu_ms", "gpu_ms", "ratio", "split_ratio", "speedup")
    # With one core, only one side has it; the split beside it has one core for each.
    alone = ["all cores for the GPU side", "all cores for the CPU side"]
    assert row["way"] in (alone if sampled_link.info.emulated_gpu else ["cpu + gpu"])
    assert row["best_peer"] == "onnxruntime" and row["best_peer_ms"] == row["peers"]["onnxruntime"]
    assert [group["of"] for group in document["summary"]] == ["models"]
    check_shown(document)
    assert row["peers"]["numpy"] is None
    positive(row["peers"], "onnxruntime")
    assert row["notes"] == ["numpy: NumPy runs single layers only"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: validate_layers(LAYERS, step=0),
        lambda: validate_layers(LAYERS, seconds_per_layer=0),
        lambda: validate_layers(LAYERS, device="cpu"),
        lambda: validate_layers(LAYERS, device="none:7"),
        lambda: bench_layers(LAYERS, threads=0),
        lambda: bench_layers(LAYERS, peers=["tvm"]),
        lambda: bench_models(["no_such_model"], peers=[]),
    ],
)
def test_wrong_arguments(opencl_device: Any, call: Any) -> None:
    with pytest.raises(CoexecError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_model_without_layers_to_split() -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    with pytest.raises(InputError, match="relu has no layer that can be split"):
        validate_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
