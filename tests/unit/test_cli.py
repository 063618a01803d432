"""The command line where there is no OpenCL: documents, exit codes, one-line errors, untouched files."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import NO_OPENCL, Result, coexec, expected_output, small_input, small_model
from synthetic_device import write_profile

from coexec.predictors.model import shipped_profiles

X = small_input()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good and bad files for all tests, which read them only."""
    made = tmp_path_factory.mktemp("cli")
    onnx.save(small_model(), made / "small.onnx")
    onnx.save(small_model(channels=24), made / "other.onnx")
    data = (made / "small.onnx").read_bytes()
    (made / "random.onnx").write_bytes(np.random.default_rng(0).bytes(4000))
    (made / "truncated.onnx").write_bytes(data[: len(data) // 2])
    np.savez(made / "in.npz", input=X)
    np.savez(made / "name.npz", image=X)
    np.savez(made / "dtype.npz", input=X.astype(np.float64))
    np.savez(made / "shape.npz", input=X[:, :, 1:])
    np.savez(made / "more.npz", input=X, mask=X)
    np.save(made / "one.npy", X)
    (made / "one.npz").write_bytes((made / "one.npy").read_bytes())
    (made / "pickled.npz").write_bytes(pickle.dumps({"input": X}))
    np.savez(made / "objects.npz", input=np.array([{"a": 1}], dtype=object))
    (made / "cut.npz").write_bytes((made / "in.npz").read_bytes()[:900])
    (made / "noise.json").write_text("{ this is no plan")
    (made / "list.json").write_text("[1, 2]")
    assert coexec("partition", made / "small.onnx", "-o", made / "plan.json").code == 0
    assert coexec("partition", made / "other.onnx", "-o", made / "other.json").code == 0
    plan = json.loads((made / "plan.json").read_text())
    (made / "waits.json").write_text(json.dumps({**plan, "tasks": plan["tasks"][1:]}))
    (made / "elsewhere.json").write_text(json.dumps({**plan, "device": "nowhere:0"}))
    (made / "empty").mkdir()
    return made


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained profile of a device that is nowhere."""
    for name in ("pandas", "sklearn"):
        pytest.importorskip(name, reason=f"training needs {name} (pip install coexec[train])")
    made = write_profile(tmp_path_factory.mktemp("profiles") / "formula", 500)
    assert coexec("train", made).code == 0
    return made


def in_folder(folder: Path, words: str) -> list[str]:
    """Arguments with every "@name" made a path in the folder."""
    return [str(folder / word[1:]) if word.startswith("@") else word for word in words.split()]


# Documents


def test_devices_without_opencl() -> None:
    document = coexec("devices", "--json").document
    assert document["devices"] == []
    assert document["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert document["cpu"]["backends"]
    assert "cpu-device" in document["hint"]
    shown = coexec("devices")
    assert shown.code == 0 and "cpu-device" in shown.out and shown.err == ""


def test_devices_without_pyopencl() -> None:
    hidden = "import sys; sys.modules['pyopencl'] = None"
    document = coexec("devices", "--json", setup=hidden).document
    assert document["devices"] == [] and "pip install pyopencl" in document["hint"]


def test_partition_writes_the_plan_that_it_prints(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    result = coexec("partition", folder / "small.onnx", "--json", "-o", target)
    document = result.document
    assert document["predicted_ms"] > 0 and document["planning_ms"] > 0
    assert [layer["name"] for layer in document["plan"]["layers"]] == ["conv1", "conv2", "fc"]
    assert {task["side"] for task in document["plan"]["tasks"]} == {"cpu"}
    assert json.loads(target.read_text()) == document["plan"]
    assert result.problems == [] and "no usable OpenCL device" in result.err
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("planned", [True, False], ids=["plan", "no plan"])
def test_run(folder: Path, tmp_path: Path, planned: bool) -> None:
    target = tmp_path / "out.npz"
    plan = ["--plan", folder / "plan.json"] if planned else []
    result = coexec(
        "run", folder / "small.onnx", *plan, "--input", folder / "in.npz", "--output", target, "--repeat", "2", "--json"
    )
    document = result.document
    assert document["latency_ms"] > 0 and document["outputs"] == {"output": [1, 10]}
    with np.load(target) as outputs:
        assert outputs.files == ["output"]
        reference = expected_output(folder / "small.onnx", X)
        np.testing.assert_allclose(outputs["output"], reference, atol=1e-5 * np.abs(reference).max())


def test_demo_without_a_device(folder: Path) -> None:
    document = coexec("demo", "--model", folder / "small.onnx", "--json").document
    assert document["model"] == "small"
    assert document["max_rel_error"] <= 1e-5 and document["checked_against"].startswith("onnxruntime")
    assert document["coexec_ms"] > 0 and document["cpu_ms"] > 0 and document["cpu_all_cores_ms"] > 0
    for key in ("device", "sync", "gpu_ms", "gpu_all_cores_ms"):
        assert document[key] is None
    assert document["emulated_gpu"] is False
    assert [layer["name"] for layer in document["layers"]] == ["conv1", "conv2", "fc"]
    assert [layer["shape"] for layer in document["layers"]] == ["3->16 3x3 @20", "16->32 3x3/2 @20", "1x32x10"]


def test_demo_says_when_it_did_not_check(folder: Path) -> None:
    hidden = "import sys; sys.modules['onnxruntime'] = None"
    document = coexec("demo", "--model", folder / "small.onnx", "--json", setup=hidden).document
    assert document["max_rel_error"] is None and document["checked_against"] is None
    assert "pip install onnxruntime" in document["not_checked"]


def test_demo_fails_on_a_wrong_result(folder: Path) -> None:
    spoil = (
        "import coexec.experiments.reference_check as c; right = c.relative_error\n"
        "c.relative_error = lambda got, reference: right(got + 1, reference)"
    )
    result = coexec("demo", "--model", folder / "small.onnx", "--json", setup=spoil)
    assert result.code == 1
    assert json.loads(result.out)["max_rel_error"] > 0.01
    assert len(result.problems) == 1 and "differs" in result.problems[0]


def test_predict_for_a_device_that_is_not_here(folder: Path, profile: Path, tmp_path: Path) -> None:
    arguments = ["--profile", profile, "--compute-units", "1", "--explain", "--timeline", tmp_path / "t.json", "--json"]
    result = coexec("predict", folder / "small.onnx", *arguments)
    document = result.document
    plan = document["plan"]
    assert (plan["device"], plan["device_name"], plan["compute_units"]) == ("synthetic:0", "Formula (1)", 1)
    assert result.err == ""
    for layer, row in zip(plan["layers"], document["explain"], strict=True):
        sync_us = 12.5 if layer["cut"] else 0.0  # what the profile says
        assert layer["predicted_us"] == pytest.approx(max(layer["cpu_us"], layer["gpu_us"]) + sync_us)
        others = [row["cpu_only_us"], row["gpu_only_us"]]
        others += [row[key]["predicted_us"] for key in ("best_channel", "best_row") if row[key]]
        assert row["predicted_us"] == layer["predicted_us"] <= min(others) * 1.002
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "task"} == {task["node"] for task in plan["tasks"]}


def test_tables_keep_every_number(folder: Path, profile: Path) -> None:
    """In 40 columns as well: what is shown is what JSON has."""
    arguments = ["predict", str(folder / "small.onnx"), "--profile", str(profile), "--explain"]
    document = coexec(*arguments, "--json").document
    narrow = coexec(*arguments, setup="import os; os.environ['COLUMNS'] = '40'")
    assert narrow.code == 0 and "…" not in narrow.out
    for layer in document["plan"]["layers"]:
        for key in ("cpu_us", "gpu_us", "predicted_us"):
            assert f" {layer[key]:.1f} " in narrow.out
    assert "\x1b" not in narrow.out


# Exit codes and one-line errors

ERRORS = [
    (2, "partition @missing.onnx", ["missing.onnx"]),
    (2, "partition nothing", ["'nothing'", "resnet18"]),
    (2, "partition @random.onnx", ["random.onnx"]),
    (2, "partition @truncated.onnx", ["truncated.onnx"]),
    (2, "partition @empty", ["empty"]),
    (2, "partition @small.onnx --profile nosuch", ["nosuch"]),
    (2, "partition @small.onnx --profile @empty", ["device.json"]),
    (3, "partition @small.onnx --device nosuch:0", ["nosuch:0", "coexec devices"]),
    (2, "partition @small.onnx --cpu-threads 0", ["cpu-threads"]),
    (2, "partition @small.onnx --cpu-threads 100000", ["100000"]),
    (2, "partition @small.onnx --compute-units 1", ["no OpenCL device"]),
    (2, "partition @small.onnx --input-shape input=axb", ["input=axb", "name=1x3x224x224"]),
    (2, "partition @small.onnx --input-shape nosuch=1x3", ["nosuch"]),
    (2, "partition @small.onnx -o @nowhere/plan.json", ["nowhere"]),
    (2, "partition @small.onnx -o @small.onnx", ["also what is read"]),
    (2, "predict @small.onnx --profile nosuch", ["nosuch"]),
    (2, "predict @small.onnx", ["--profile"]),
    (2, "run @small.onnx --output @out.npz", ["--input", "input (float32 1x3x20x20)"]),
    (2, "run @small.onnx --input @missing.npz", ["missing.npz"]),
    (2, "run @small.onnx --input @name.npz", ["'image'", "input"]),
    (2, "run @small.onnx --input @more.npz", ["'mask'"]),
    (2, "run @small.onnx --input @dtype.npz", ["float64", "float32"]),
    (2, "run @small.onnx --input @shape.npz", ["(1, 3, 20, 20)", "(1, 3, 19, 20)"]),
    (2, "run @small.onnx --input @one.npz", ["np.savez"]),
    (2, "run @small.onnx --input @pickled.npz", ["pickled.npz"]),
    (2, "run @small.onnx --input @objects.npz", ["objects.npz"]),
    (2, "run @small.onnx --input @cut.npz", ["cut.npz"]),
    (2, "run @small.onnx --input @random.onnx", ["random.onnx"]),
    (2, "run @small.onnx --input @in.npz --plan @missing.json", ["missing.json"]),
    (2, "run @small.onnx --input @in.npz --plan @noise.json", ["noise.json", "no JSON"]),
    (2, "run @small.onnx --input @in.npz --plan @list.json", ["plan"]),
    (2, "run @small.onnx --input @in.npz --plan @waits.json", ["plan"]),
    (2, "run @small.onnx --input @in.npz --plan @other.json", ["another model"]),
    (2, "run @small.onnx --input @in.npz --plan @elsewhere.json", ["nowhere:0"]),
    (2, "run @small.onnx --input @in.npz --plan @plan.json --device cpu", ["--plan", "--device"]),
    (2, "run @small.onnx --input @in.npz --repeat 0", ["repeat"]),
    (3, "sync", ["no usable OpenCL device"]),
    (2, "sync --device cpu", ["cpu"]),
    (3, "profile -o @new", ["no usable OpenCL device"]),
    (2, "profile -o @new --budget soon", ["soon"]),
    (2, "train @empty", ["device.json"]),
    (2, "validate", ["--suite"]),
    (2, "validate @small.onnx --suite linear", ["--suite"]),
    (3, "validate --suite linear", ["no usable OpenCL device"]),
    (2, "bench --suite nosuch", ["nosuch"]),
    (2, "nosuch", ["nosuch", "--help"]),
    (2, "devices --nosuch", ["--nosuch", "--help"]),
    (2, "partition", ["MODEL"]),
]


@pytest.mark.parametrize(("code", "words", "expected"), ERRORS, ids=[words for _, words, _ in ERRORS])
def test_errors_are_one_line(folder: Path, code: int, words: str, expected: list[str]) -> None:
    before = sorted(p.name for p in folder.iterdir())
    _one_line(coexec(*in_folder(folder, words), *(["--json"] if code == 3 else [])), code, expected)
    assert sorted(p.name for p in folder.iterdir()) == before


def _one_line(result: Result, code: int, expected: list[str]) -> None:
    assert result.code == code, result.err
    assert result.out == ""
    assert len(result.problems) == 1, result.err
    assert result.problems[0].startswith("coexec: ")
    for word in expected:
        assert word in result.problems[0]


DAMAGED_PROFILES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "compute units": ("device.json", lambda data: json.dumps({**json.loads(data), "compute_units": []}).encode()),
    "half a record": ("device.json", lambda data: data[: len(data) // 2]),
    "deep record": ("device.json", lambda data: b"[" * 100_000),
    "long number": ("predictors.json", lambda data: data.replace(b'"points": ', b'"points": ' + b"9" * 5000, 1)),
    "no features": ("predictors.json", lambda data: json.dumps({**json.loads(data), "features": {}}).encode()),
    "half a model": ("cpu_numpy_im2col.txt", lambda data: data[: len(data) // 2]),
}


@pytest.mark.parametrize("command", ["partition", "predict"])
@pytest.mark.parametrize("damage", DAMAGED_PROFILES)
def test_damaged_profiles_are_bad_input(folder: Path, tmp_path: Path, damage: str, command: str) -> None:
    name, change = DAMAGED_PROFILES[damage]
    made = shutil.copytree(shipped_profiles()["intel-cpu-2core"], tmp_path / "damaged")
    (made / name).write_bytes(change((made / name).read_bytes()))
    target = tmp_path / "plan.json"
    target.write_text("precious")
    _one_line(coexec(command, folder / "small.onnx", "--profile", made, "-o", target), 2, [name])
    assert target.read_text() == "precious"


@pytest.mark.parametrize("value", ["9" * 5000, "9" * 400, "1" + "0" * 30, "100000", "1000"])
def test_plans_with_numbers_that_cannot_be_are_bad_input(folder: Path, tmp_path: Path, value: str) -> None:
    text = (folder / "plan.json").read_text()
    for field in ("cpu_threads", "predicted_ms"):
        if field == "predicted_ms" and len(value) < 30:
            continue  # a slow machine
        damaged = re.sub(rf'"{field}": [^,]+', f'"{field}": {value}', text, count=1)
        (tmp_path / "plan.json").write_text(damaged)
        result = coexec("run", folder / "small.onnx", "--input", folder / "in.npz", "--plan", tmp_path / "plan.json")
        _one_line(result, 2, ["plan"])


@pytest.mark.parametrize(
    "words",
    [
        "run @small.onnx --input @shape.npz --output @@",
        "run @small.onnx --input @cut.npz --output @@",
        "run @small.onnx --input @in.npz --plan @other.json --output @@",
        "run @random.onnx --input @in.npz --output @@",
        "partition @truncated.onnx -o @@",
        "partition @small.onnx --profile nosuch -o @@",
        "partition @small.onnx --profile nosuch --timeline @@",
    ],
)
def test_failure_leaves_the_output_as_it_was(folder: Path, tmp_path: Path, words: str) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    result = coexec(*in_folder(folder, words.replace("@@", str(target))))
    assert result.code == 2
    assert target.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("value", ["x" * 70_000, "a b " * 20_000, "two\nlines\u2028three\r", "x" * 199])
def test_messages_keep_their_sense_whatever_is_quoted(value: str) -> None:
    from coexec.errors import ProfileError

    text = str(ProfileError(f"{value} cannot be read; make it again"))
    assert len(text.splitlines()) == 1 and len(text) <= 600
    assert text.endswith("cannot be read; make it again")
    text = str(ProfileError(f"{'x' * 5000} cannot be read: {'x' * 5000}; make it again"))
    assert " cannot be read: " in text and text.endswith("make it again") and len(text) <= 600


FAULT = (
    "import coexec.cli.device_report as d\ndef fail(): raise RuntimeError('boom\\nsecond line')\nd.device_report = fail"
)


def test_faults_are_one_line_and_ask_for_a_report() -> None:
    result = coexec("devices", "--json", setup=FAULT)
    _one_line(result, 1, ["internal fault", "RuntimeError: boom second line", "report"])
    shown = coexec("--debug", "devices", setup=FAULT)
    assert shown.code == 1 and "Traceback" in shown.err


def test_nothing_else_reaches_stdout() -> None:
    """Not even what a driver prints by its own means, before or after the document."""
    noisy = (
        "import atexit, os, coexec.cli.device_report as d; real = d.device_report\n"
        "atexit.register(os.write, 1, b'noise')\n"
        "def report(): os.write(1, b'noise'); print('noise'); return real()\n"
        "d.device_report = report"
    )
    result = coexec("devices", "--json", setup=noisy)
    assert set(result.document) >= {"devices", "cpu"}
    assert result.err.count("noise") == 3


def test_warnings_are_one_line_each() -> None:
    warn = (
        "import warnings, coexec.cli.device_report as d; real = d.device_report\n"
        "def report():\n"
        " for _ in range(3): warnings.warn('two\\nlines')\n"
        " return real()\n"
        "d.device_report = report"
    )
    assert coexec("devices", setup=warn).err == "warning: two lines\n"


def test_interrupt() -> None:
    sleep = (
        "import sys, time, coexec.cli.device_report as d\n"
        "def report(): print('ready', file=sys.stderr, flush=True); time.sleep(60)\n"
        "d.device_report = report\n"
        "from coexec.cli.commands import main; main()"
    )
    command = [sys.executable, "-c", sleep, "devices", "--json"]
    with subprocess.Popen(
        command, env={**os.environ, **NO_OPENCL}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, "", "coexec: interrupted\n")


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]], ids=" ".join)
def test_help(arguments: list[str]) -> None:
    result = coexec(*arguments)
    assert result.code == 0 and result.err == "" and "coexec" in result.out


# Import

LIGHT = (
    "import sys, time; start = time.perf_counter(); import coexec; print(time.perf_counter() - start); "
    "print([n for n in ('pyopencl', 'lightgbm', 'pandas', 'onnx', 'msgspec', 'typer', 'rich') if n in sys.modules])"
)


def test_import_is_light() -> None:
    def measured() -> tuple[float, str]:
        done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
        seconds, loaded = done.stdout.splitlines()
        return float(seconds), loaded

    runs = [measured() for _ in range(5)]
    assert {loaded for _, loaded in runs} == {"[]"}
    assert min(seconds for seconds, _ in runs) < 0.3


def test_a_saved_plan_runs_without_predictors(folder: Path) -> None:
    """Neither LightGBM nor pandas is loaded."""
    check = (
        "import sys\n"
        f"import coexec, numpy as np\nmodel = coexec.load({str(folder / 'small.onnx')!r}, "
        f"plan={str(folder / 'plan.json')!r})\n"
        "model(np.zeros((1, 3, 20, 20), np.float32))\n"
        "print([n for n in ('lightgbm', 'pandas', 'sklearn', 'optuna') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# What the commands are made of


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400), (".5 min", 30), ("2H", 7200)]
)
def test_durations(text: str, seconds: float) -> None:
    from coexec.arguments import duration_s

    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "5 days", "nan", "inf", "1e400", "m"])
def test_no_durations(text: str) -> None:
    from coexec.arguments import duration_s
    from coexec.errors import InputError

    with pytest.raises(InputError):
        duration_s(text)


def test_input_shapes() -> None:
    from coexec.arguments import input_shapes

    assert input_shapes(["a=1x3x224x224", "b:0=7", "c=d=2,3"]) == {"a": (1, 3, 224, 224), "b:0": (7,), "c=d": (2, 3)}


@pytest.mark.parametrize("name", ["file", "args", "a/b", "ünïcode", "x.npy"])
def test_npz_takes_any_name(tmp_path: Path, name: str) -> None:
    from coexec.cli.npz import load_arrays, save_arrays

    values = {name: np.arange(6.0).reshape(2, 3), "other": np.array(5, np.int64)}
    save_arrays(str(tmp_path / "a.npz"), values)
    loaded = load_arrays(str(tmp_path / "a.npz"))
    assert set(loaded) == set(values)
    for key, value in values.items():
        np.testing.assert_array_equal(loaded[key], value)
        assert loaded[key].dtype == value.dtype


def test_npz_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    from coexec.cli.npz import save_arrays

    (tmp_path / "a.npz").write_text("precious")
    with pytest.raises(ValueError, match="Object arrays"):
        save_arrays(str(tmp_path / "a.npz"), {"bad": np.array([{}], dtype=object)})
    assert [p.read_text() for p in tmp_path.iterdir()] == ["precious"]


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("got", "reference", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [2.0, 1.0], INF),
        ([2.0, 1.0], [NAN, 1.0], INF),
        ([INF, 1.0], [INF, 2.0], 0.5),
        ([1.0], [1.0, 1.0], INF),
        ([], [], 0.0),
    ],
)
def test_relative_error(got: list[float], reference: list[float], error: float) -> None:
    from coexec.experiments.reference_check import relative_error

    assert relative_error(np.array(got), np.array(reference)) == pytest.approx(error)


Make = Callable[[], object]


def _shapes() -> list[tuple[Make, str]]:
    from coexec.ops.conv2d import Conv2d
    from coexec.ops.linear import Linear

    return [
        (lambda: Linear(50, 768, 3072), "50x768x3072"),
        (lambda: Conv2d(1, 64, 56, 56, 128, 3, 3, 2, 2), "64->128 3x3/2 @56"),
        (lambda: Conv2d(2, 64, 56, 28, 128, 1, 7), "2 x 64->128 1x7 @56x28"),
        (lambda: Conv2d(1, 32, 9, 9, 32, 3, 3, 1, 2, groups=32), "32->32 3x3/1x2 depthwise @9"),
        (lambda: Conv2d(1, 32, 9, 9, 64, 3, 3, dilation_h=2, dilation_w=2, groups=4), "32->64 3x3 d2 g4 @9"),
    ]


@pytest.mark.parametrize(("make", "text"), _shapes())
def test_shape_text(make: Callable[[], object], text: str) -> None:
    assert make().shape_text == text  # type: ignore[arg-type]
