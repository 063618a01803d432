"""The command line on each OpenCL device: plan, run by the plan, demo, cost of a hand-over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import coexec, expected_output, small_input, small_model

from coexec.device import DeviceInfo
from coexec.predictors.model import shipped_profiles
from coexec.sync import SYNC

SIZE = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cli") / "small.onnx"
    onnx.save(small_model(channels=64, size=SIZE), target)
    return target


def test_devices(opencl_device: DeviceInfo) -> None:
    document = coexec("devices", "--json", opencl=True).document
    (device,) = (d for d in document["devices"] if d["id"] == opencl_device.id)
    for key in ("name", "platform", "driver", "type", "compute_units", "svm_capabilities", "emulated_gpu"):
        assert device[key] == getattr(opencl_device, key)
    assert device["usable"] is True and device["reason"] == "" and document["hint"] == ""
    assert set(device["sync"]) | set(device["sync_unavailable"]) == set(SYNC)
    assert "events" in device["sync"] and all(device["sync_unavailable"].values())


@pytest.mark.parametrize("shares", [["--compute-units", "1"], []], ids=["one unit", "any"])
def test_partition_then_run(opencl_device: DeviceInfo, model: Path, tmp_path: Path, shares: list[str]) -> None:
    plan, given, target = tmp_path / "plan.json", tmp_path / "in.npz", tmp_path / "out.npz"
    x = small_input(SIZE)
    np.savez(given, input=x)
    made = coexec("partition", model, "--device", opencl_device.id, *shares, "-o", plan, "--json", opencl=True)
    tasks = made.document["plan"]["tasks"]
    assert json.loads(plan.read_text()) == made.document["plan"]
    assert "gpu" in {task["side"] for task in tasks}, "nothing would test the device"
    ran = coexec("run", model, "--plan", plan, "--input", given, "--output", target, "--json", opencl=True).document
    assert ran["latency_ms"] > 0 and ran["outputs"] == {"output": [1, 10]}
    reference = expected_output(model, x)
    with np.load(target) as outputs:
        np.testing.assert_allclose(outputs["output"], reference, atol=1e-5 * np.abs(reference).max())


def test_a_plan_of_another_device_is_refused(opencl_device: DeviceInfo, model: Path, tmp_path: Path) -> None:
    plan, given = tmp_path / "plan.json", tmp_path / "in.npz"
    np.savez(given, input=small_input(SIZE))
    made = coexec("partition", model, "--device", opencl_device.id, "-o", plan, "--json", opencl=True).document["plan"]
    plan.write_text(json.dumps({**made, "device_name": "another GPU (1.0)"}))
    refused = coexec("run", model, "--plan", plan, "--input", given, opencl=True)
    assert refused.code == 2 and len(refused.problems) == 1 and "another GPU" in refused.problems[0]


def test_too_many_compute_units(opencl_device: DeviceInfo, model: Path) -> None:
    many = str(opencl_device.compute_units + 1)
    refused = coexec("partition", model, "--device", opencl_device.id, "--compute-units", many, opencl=True)
    assert refused.code == 2 and len(refused.problems) == 1 and many in refused.problems[0]


def test_demo(opencl_device: DeviceInfo, model: Path) -> None:
    document = coexec("demo", "--model", model, "--device", opencl_device.id, "--json", opencl=True).document
    assert document["device"] == opencl_device.id and document["sync"] in SYNC
    assert document["emulated_gpu"] == opencl_device.emulated_gpu
    assert document["max_rel_error"] <= 1e-5 and document["correct"] is True
    for key in ("coexec_ms", "cpu_ms", "gpu_ms", "cpu_all_cores_ms", "gpu_all_cores_ms"):
        assert document[key] > 0
    assert document["speedup"] == pytest.approx(min(document["cpu_ms"], document["gpu_ms"]) / document["coexec_ms"])
    assert len(document["layers"]) == 3
    for row in document["layers"]:
        ideal_us = 1 / (1 / row["cpu_whole_us"] + 1 / row["gpu_whole_us"])
        assert row["efficiency"] == pytest.approx(ideal_us / row["measured_us"])
        assert (row["gpu_us"] is None) == (row["cut"] == 0)
        assert (row["cpu_us"] is None) == (row["cut"] == row["units"])


def test_demo_says_that_the_gpu_is_emulated(opencl_device: DeviceInfo, model: Path) -> None:
    if not opencl_device.emulated_gpu:
        pytest.skip(f"{opencl_device.id} is a real GPU")
    shown = coexec("demo", "--model", model, "--device", opencl_device.id, opencl=True)
    assert shown.code == 0 and "emulated GPU: " in shown.out


def test_sync(opencl_device: DeviceInfo) -> None:
    arguments = ["sync", "--device", opencl_device.id, "--rounds", "300", "--json"]
    document = coexec(*arguments, opencl=True).document
    assert document["device"] == opencl_device.id
    names = [strategy["name"] for strategy in document["strategies"]]
    assert "events" in names and set(names) | set(document["unavailable"]) == set(SYNC)
    for strategy in document["strategies"]:
        assert 0 < strategy["median_us"] <= strategy["p99_us"]
        assert strategy["rounds"] >= 300


def test_validating_by_a_damaged_profile_is_bad_input(opencl_device: DeviceInfo, model: Path, tmp_path: Path) -> None:
    made = shutil.copytree(shipped_profiles()["intel-cpu-2core"], tmp_path / "damaged")
    record = json.loads((made / "device.json").read_text())
    (made / "device.json").write_text(json.dumps({**record, "cores": 0}))
    result = coexec("validate", model, "--device", opencl_device.id, "--profile", made, opencl=True)
    assert result.code == 2 and result.out == ""
    assert len(result.problems) == 1 and "device.json" in result.problems[0] and "cores" in result.problems[0]
