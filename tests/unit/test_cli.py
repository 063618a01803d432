"""The command line where there is no OpenCL: documents, exit codes, one-line errors, untouched files."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from command_line import (
    COMMAND,
    NO_OPENCL,
    Result,
    coexec,
    environment,
    expected_output,
    small_input,
    small_model,
)
from synthetic_device import write_profile

from coexec.api import partition
from coexec.errors import InputError
from coexec.kernels import LAYER_KERNELS
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
    shown = coexec("devices")
    assert shown.code == 0 and document["hint"] in shown.out and shown.err == ""


def test_devices_without_pyopencl() -> None:
    hidden = "import sys; sys.modules['pyopencl'] = None"
    document = coexec("devices", "--json", setup=hidden).document
    assert document["devices"] == [] and "pip install pyopencl" in document["hint"]


def test_partition_writes_the_plan_that_it_prints(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    result = coexec("partition", folder / "small.onnx", "--json", "-o", target)
    document = result.document
    assert document["predicted_ms"] > 0 and document["planning_ms"] > 0
    assert 0 < document["memory"]["shared_bytes"] < document["memory"]["separate_bytes"]
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
    turn_us = json.loads((profile / "device.json").read_text())["turn_us"]
    for layer, row in zip(plan["layers"], document["explain"], strict=True):
        split = layer["cpu_us"] > 0 and layer["gpu_us"] > 0
        sync_us = 12.5 if split else 0.0  # what the profile says
        assert layer["cpu_impl"] == "" or (layer["cpu_impl"] in LAYER_KERNELS) == (plan["cpu_device"] != "")
        assert layer["predicted_us"] == pytest.approx(max(layer["cpu_us"], layer["gpu_us"]) + sync_us)
        others = [row["cpu_only_us"], row["gpu_only_us"]]
        others += [row[key]["predicted_us"] for key in ("best_channel", "best_row") if row[key]]
        # What is best by itself may lose: changing sides between two layers costs as well.
        assert row["predicted_us"] == layer["predicted_us"] <= min(others) * 1.002 + 2 * turn_us
    chosen = sum(row["predicted_us"] for row in document["explain"])
    assert chosen <= sum(row["cpu_only_us"] for row in document["explain"]) * 1.002
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

PATHS = [
    "partition @@",
    "partition @small.onnx --profile @@",
    "partition @small.onnx -o @@",
    "partition @small.onnx --timeline @@",
    "predict @small.onnx --profile @@",
    "run @@",
    "run @small.onnx --plan @@",
    "run @small.onnx --input @@",
    "run @small.onnx --output @@",
    "demo --model @@",
    "profile -o @@",
    "train @@",
    "validate @@",
    "validate --layers @@",
    "bench @small.onnx @@",
    "bench --layers @@",
    "bench --html @@",
]
"""Every place of a path; @@ is one that cannot be."""

NUMBERS = ["partition @small.onnx --effort", "validate --suite linear --seconds", "bench --seconds"]

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
    (2, "bench --peers nosuch", ["nosuch", "numpy, onnxruntime, openvino"]),
    (2, "bench --html @nowhere/page.html", ["nowhere"]),
    (2, "bench @small.onnx --html @small.onnx", ["also what is read"]),
    (2, "partition " + "n" * 256, ["File name too long"]),
    (2, "partition @small.onnx --effort nan", ["positive finite"]),
    (2, "profile -o @new --budget " + "9" * 400, ["positive finite"]),
    (2, "nosuch", ["nosuch", "--help"]),
    (2, "devices --nosuch", ["--nosuch", "--help"]),
    (2, "partition", ["MODEL"]),
]


@pytest.mark.parametrize(("code", "words", "expected"), ERRORS, ids=[words for _, words, _ in ERRORS])
def test_errors_are_one_line(folder: Path, code: int, words: str, expected: list[str]) -> None:
    before = sorted(p.name for p in folder.iterdir())
    _one_line(coexec(*in_folder(folder, words), *(["--json"] if code == 3 else [])), code, expected)
    assert sorted(p.name for p in folder.iterdir()) == before


@pytest.mark.parametrize("words", PATHS)
def test_paths_are_checked_everywhere(folder: Path, words: str) -> None:
    _refused_in_process(in_folder(folder, words.replace("@@", "n" * 256)), "File name too long")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0"])
@pytest.mark.parametrize("words", NUMBERS)
def test_numbers_are_checked_everywhere(folder: Path, words: str, value: str) -> None:
    _refused_in_process([*in_folder(folder, words), value], "positive finite number")


def _refused_in_process(arguments: list[str], expected: str) -> None:
    """As exit code 2 with one line; a process of its own for each would take long."""
    from coexec.cli.commands import app

    with pytest.raises(InputError, match=expected) as raised:
        app(arguments, standalone_mode=False)
    assert len(str(raised.value).splitlines()) == 1


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


@pytest.mark.parametrize("name", ["typer", "rich.console", "coexec.cli.commands", "coexec.cli.terminal"])
def test_interrupt_while_the_command_is_loaded(name: str) -> None:
    """By its entry point, as installed."""
    (entry,) = entry_points(group="console_scripts", name="coexec")
    wait = (
        "import sys, time\n"
        "class Wait:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {name!r}: print('ready', file=sys.stderr, flush=True); time.sleep(60)\n"
        "sys.meta_path.insert(0, Wait())\n"
        f"from {entry.module} import {entry.attr}; {entry.attr}()"
    )
    assert _interrupted([sys.executable, "-c", wait, "devices"]) == (130, "", "coexec: interrupted\n")


def test_interrupt_while_arguments_are_checked(folder: Path) -> None:
    check = (
        "import sys, time, coexec.arguments as a\n"
        "def check(*_): print('ready', file=sys.stderr, flush=True); time.sleep(60)\n"
        "a.check_path = check\n"
        "from coexec.__main__ import main; main()"
    )
    command = [sys.executable, "-c", check, "partition", str(folder / "small.onnx")]
    assert _interrupted(command) == (130, "", "coexec: interrupted\n")


def test_interrupt() -> None:
    sleep = (
        "import sys, time, coexec.cli.device_report as d\n"
        "def report(): print('ready', file=sys.stderr, flush=True); time.sleep(60)\n"
        "d.device_report = report\n"
        "from coexec.__main__ import main; main()"
    )
    command = [sys.executable, "-c", sleep, "devices", "--json"]
    assert _interrupted(command) == (130, "", "coexec: interrupted\n")


def _interrupted(command: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr after Ctrl-C, pressed when the command has said "ready"."""
    with subprocess.Popen(
        command, env={**os.environ, **NO_OPENCL}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


# Streams

SHOWING = ["devices", "devices --json", "--help", "--version", "bench --help"]


def in_shell(words: str, redirection: str) -> Result:
    """The command line with a shell's redirections or pipe; the exit code is the command's."""
    command = f"{shlex.join([*COMMAND, *words.split()])} {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(False), capture_output=True, text=True, timeout=60)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("words", SHOWING)
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("| head -c 0", 141, ""),
        ("2>&1 | head -c 0", 141, ""),
        ("> /dev/full", 2, "coexec: cannot write to stdout: No space left on device; send it elsewhere\n"),
        (">&-", 2, "coexec: stdout is closed; redirect it to /dev/null if its content is not wanted\n"),
        (">&- 2>&-", 2, ""),
    ],
)
def test_stdout_that_takes_nothing(words: str, redirection: str, code: int, said: str) -> None:
    # A reader that has gone before the command starts to write: else the pipe's buffer might take it all.
    redirection = redirection.replace("| head -c 0", "| true")
    result = in_shell(words, redirection)
    assert (result.code, result.out, result.err) == (code, "", said)


@pytest.mark.parametrize("redirection", ["2>&-", "<&- 2>&-", "2>/dev/full", "2> >(true)"])
def test_stderr_is_not_needed(folder: Path, redirection: str) -> None:
    """Nor does what belongs there come to stdout; this command warns."""
    words = f"partition {folder / 'small.onnx'} --json"
    result = in_shell(words, redirection)
    assert result.code == 0 and result.err == ""
    assert set(json.loads(result.out)) >= {"plan"}
    assert in_shell("partition nothing", redirection).code == 2


def test_stdout_that_lacks_a_letter(tmp_path: Path) -> None:
    onnx.save(relu_model(["\u00fc"]), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones(3, np.float32))
    words = f"run {tmp_path / 'm.onnx'} --input {tmp_path / 'in.npz'}"
    result = in_shell(f"{words}", "| PYTHONIOENCODING= cat")
    assert result.code == 0 and "\u00fc" in result.out
    narrow = subprocess.run(
        [*COMMAND, *words.split()], env={**environment(False), "PYTHONIOENCODING": "ascii"}, capture_output=True
    )
    assert narrow.returncode == 0 and b"\\xfc" in narrow.stdout


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


# Output files


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A model with its weights in a file beside it, what runs it, and links to all of them."""
    onnx.save(small_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    np.savez(tmp_path / "in.npz", input=X)
    partition(tmp_path / "m.onnx", device="cpu").plan.save(tmp_path / "plan.json")
    (tmp_path / "old.json").write_text("precious")
    for name in ("m.onnx", "w.bin", "in.npz", "plan.json", "old.json"):
        (tmp_path / f"soft_{name}").symlink_to(name)
        (tmp_path / f"hard_{name}").hardlink_to(tmp_path / name)
    (tmp_path / "soft_new").symlink_to("new")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


@pytest.mark.parametrize("kind", ["@", "@soft_", "@hard_", "@folder/../"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("partition @m.onnx -o KINDm.onnx", "also what is read"),
        ("partition @m.onnx -o KINDw.bin", "also what is read"),
        ("partition @m.onnx --timeline KINDw.bin", "also what is read"),
        ("run @m.onnx --input @in.npz --output KINDw.bin", "also what is read"),
        ("run @m.onnx --input @in.npz --output KINDin.npz", "also what is read"),
        ("run @m.onnx --input @in.npz --plan @plan.json --output KINDplan.json", "also what is read"),
        ("partition @m.onnx -o @old.json --timeline KINDold.json", "name two files"),
    ],
)
def test_no_output_overwrites_what_is_read_or_written(outputs: Path, words: str, expected: str, kind: str) -> None:
    _refused(outputs, words.replace("KIND", kind), expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("partition @m.onnx -o @new --timeline @new", "name two files"),
        ("partition @m.onnx -o @new --timeline @soft_new", "name two files"),
        ("partition @m.onnx -o @folder", "is a folder"),
        ("partition @m.onnx --timeline @fifo", "no regular file"),
        ("run @m.onnx --input @in.npz --output @fifo", "no regular file"),
        ("partition @m.onnx -o @m.onnx/new", "Not a directory"),
    ],
)
def test_outputs_that_cannot_be(outputs: Path, words: str, expected: str) -> None:
    _refused(outputs, words, expected)


def _refused(folder: Path, words: str, expected: str) -> None:
    """With one line, and every file stays as it was."""

    def state() -> dict[str, object]:
        return {p.name: (p.lstat().st_ino, p.is_file() and p.read_bytes()) for p in folder.iterdir()}

    before = state()
    _refused_in_process(in_folder(folder, words), expected)
    assert state() == before


def test_a_pipe_is_no_output_file(folder: Path) -> None:
    _one_line(coexec("partition", folder / "small.onnx", "-o", "/dev/stdout"), 2, ["no regular file"])


# What the commands are made of


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0, 0.0, -0.0])
def test_positive(value: float) -> None:
    from coexec.arguments import positive

    with pytest.raises(InputError, match="--effort must be a positive finite number"):
        positive("--effort", value)
    assert positive("--effort", 0.5) == 0.5


@pytest.mark.parametrize("text", ["n" * 256, "n/" * 3000, "nul\0", "\ud800", "@loop"])
def test_paths_that_cannot_be(tmp_path: Path, text: str) -> None:
    from coexec.arguments import check_path

    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError) as raised:
        check_path("--plan", text.replace("@", f"{tmp_path}/"))
    assert str(raised.value).startswith("--plan ") and len(str(raised.value)) < 300
    for fine in ("", "resnet18", str(tmp_path), str(tmp_path / "new"), __file__, f"{__file__}/below"):
        check_path("--plan", fine)


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


FINE_NAMES = (["file"], ["args"], ["a/b"], ["/a"], ["../a", "a"], ["ünïcode"], ["x.npy"], ["n" * 65000], ["a", "A"])
BAD_NAMES = (["n" * 70000], ["ü" * 33000], ["a\0b"], ["a\0b", "a\0c"], ["y", "y.npy"])


def relu_model(names: list[str]) -> onnx.ModelProto:
    """From input "x" (3 numbers) to outputs of these names."""
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Relu", ["x"], [name], name=f"n{i}") for i, name in enumerate(names)]
    ends = [value(name, onnx.TensorProto.FLOAT, [3]) for name in names]
    graph = onnx.helper.make_graph(nodes, "relus", [value("x", onnx.TensorProto.FLOAT, [3])], ends)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("names", [*FINE_NAMES, *BAD_NAMES], ids=lambda names: ascii(names)[:20])
def test_npz_is_right_or_refused(tmp_path: Path, names: list[str]) -> None:
    onnx.save(relu_model(names), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.float32([-1, 0, 2]))
    (tmp_path / "out.npz").write_text("precious")
    words = ["run", tmp_path / "m.onnx", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz", "--json"]
    result = coexec(*words)
    if names in BAD_NAMES:
        _one_line(result, 2, ["rename it"])
        assert (tmp_path / "out.npz").read_text() == "precious"
        return
    assert set(result.document["outputs"]) == set(names)
    with np.load(tmp_path / "out.npz") as made:
        assert set(made.files) == set(names)
        for name in names:
            np.testing.assert_array_equal(made[name], np.float32([0, 0, 2]))


Names = st.lists(st.sampled_from(["a", ".npy", "/", "..", "\0", "ü", "\\"]), max_size=4).map("".join)


@hypothesis.given(names=st.lists(Names, min_size=1, max_size=4, unique=True))
def test_npz_names_come_back(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    from coexec.cli.npz import check_names, load_arrays, save_arrays

    target = str(tmp_path_factory.mktemp("npz") / "a.npz")
    try:
        check_names(target, names)
    except InputError:
        return
    values = {name: np.full((2, i + 1), i, np.int64) for i, name in enumerate(names)}
    save_arrays(target, values)
    loaded = load_arrays(target)
    assert set(loaded) == set(values)
    for key, value in values.items():
        np.testing.assert_array_equal(loaded[key], value)
        assert loaded[key].dtype == value.dtype


@pytest.mark.parametrize("members", [["x.npy", "x.npy"], ["x.npy", "x"], ["x.npy", "x.npy.npy"]], ids=" ".join)
def test_npz_whose_names_are_not_told_apart_is_refused(tmp_path: Path, members: list[str]) -> None:
    from coexec.cli.npz import load_arrays

    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in members:
            with archive.open(name, "w") as member:
                np.lib.format.write_array(member, X)
    with pytest.raises(InputError, match="an array is called 'x'"):
        load_arrays(str(tmp_path / "a.npz"))


@hypothesis.given(
    compression=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_npz(
    tmp_path_factory: pytest.TempPathFactory, compression: int, damage: list[tuple[float, int]]
) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array(member, X[:, :, :4, :4])
    data = bytearray(content.getvalue())
    for place, value in damage:
        data[int(place * len(data))] = value
    _load_or_refuse(tmp_path_factory, bytes(data))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 30 + ",)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': (), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': {}, 'fortran_order': 0, 'shape': (True,)}",
        "(" * 2000,
        "'''",
    ],
)
def test_npz_with_nonsense_for_a_header(tmp_path_factory: pytest.TempPathFactory, header: str) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(64))
    _load_or_refuse(tmp_path_factory, content.getvalue())


def _load_or_refuse(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    from coexec.cli.npz import load_arrays

    path = tmp_path_factory.mktemp("npz") / "a.npz"
    path.write_bytes(data)
    try:
        load_arrays(str(path))
    except InputError as error:
        assert len(str(error).splitlines()) == 1


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


def test_a_hidden_driver_is_told_apart_from_a_missing_one() -> None:
    """OCL_ICD_VENDORS hides what the extra has installed; installing it again would not help."""
    from coexec.opencl_runtime import pip_drivers

    hint = coexec("devices", "--json").document["hint"]
    assert ("OCL_ICD_VENDORS" in hint) == bool(pip_drivers())


def test_lines_of_a_pipe_have_no_trailing_blanks(folder: Path) -> None:
    result = coexec("partition", folder / "small.onnx")
    assert result.code == 0 and "CPU routine" in result.out
    assert [line for line in result.out.splitlines() if line != line.rstrip()] == []
