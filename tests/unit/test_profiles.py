"""Profile folders: sampling, files, training, predicting, and every way in which they can be damaged."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synthetic_device import DEVICE, cpu_us, gpu_us, rows_of, sample, write_profile

from coexec.api import cost_source
from coexec.backends.cpu import CPU_BY_NAME, variant_for
from coexec.errors import ProfileError
from coexec.experiments.suites import SUITES, load_layers
from coexec.kernels import KERNEL_BY_NAME
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.ops.base import SplitOp, stack_columns
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.predictors import Predictors, load_predictors, match
from coexec.predictors.features import feature_names
from coexec.predictors.matching import differences_of, misfit
from coexec.profiling.heldout import held_out
from coexec.profiling.profile_files import (
    DEVICE as DEVICE_FILE,
)
from coexec.profiling.profile_files import (
    HEADER,
    MEASUREMENTS,
    DeviceRecord,
    Journal,
    read_measurements,
)
from coexec.profiling.workloads import levels, workload, workloads

POINTS = 400


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained profile of the synthetic device; tests copy what they damage."""
    for name in ("pandas", "sklearn"):
        pytest.importorskip(name, reason=f"training needs {name} (pip install coexec[train])")
    from coexec.predictors.train import train

    folder = write_profile(tmp_path_factory.mktemp("profiles") / "formula", POINTS, noise=0.01)
    train(folder)
    return folder


@pytest.fixture
def damaged(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained profile."""
    folder = tmp_path / "formula"
    folder.mkdir()
    for file in trained.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


# Sampling


def test_sequence_is_the_same_wherever_it_is_taken_up() -> None:
    traits = DEVICE.traits(1)
    whole = list(itertools.islice(workloads(traits, (1, 2), (1, 2)), 60))
    resumed = list(itertools.islice(workloads(traits, (1, 2), (1, 2), start=whole[30].sample), 30))
    assert resumed == whole[30:]
    other = workloads(traits, (1, 2), (1, 2), seed=1)
    assert list(itertools.islice(other, 60)) != whole


@pytest.mark.parametrize("suite", SUITES)
def test_suites_are_held_out(suite: str) -> None:
    for layer in load_layers(suite):
        assert held_out(layer.op), layer.name
        assert held_out(replace(layer.op, bias=True, residual=True)), layer.name


def test_nothing_held_out_is_sampled() -> None:
    made = sample(1500)
    assert not any(held_out(op) for w in made for op in (w.gpu, w.cpu))
    # The predicate is not so wide that it hides whole kinds of layers.
    assert {type(w.cpu) for w in made} == {Linear, Conv2d}


def test_a_short_sample_holds_every_implementation_and_level() -> None:
    made = sample(120)
    assert {variant_for(w.cpu).name for w in made} == set(CPU_BY_NAME)
    kernels = {launch(w.gpu.kind, w.gpu.columns(), DEVICE.traits(1)).names()[0] for w in made}
    assert kernels == set(KERNEL_BY_NAME)
    assert {(w.compute_units, w.threads) for w in made} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_parts_of_cut_layers_are_sampled() -> None:
    parts = [w for w in sample(300) if w.gpu != w.cpu]
    halo = [w for w in parts if isinstance(w.gpu, Conv2d) and w.gpu.pad_top != w.gpu.pad_bottom]
    channels = [w for w in parts if w.cpu.units("channel") != w.gpu.units("channel")]
    assert len(parts) > 60 and len(halo) > 10 and len(channels) > 30


@pytest.mark.parametrize(
    ("most", "expected"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_levels(most: int, expected: tuple[int, ...]) -> None:
    assert levels(most) == expected


def test_every_workload_is_a_valid_part() -> None:
    for number in range(400):
        made = workload(number, DEVICE.traits(1), (1, 2, 4), (1, 2, 4), seed=3)
        for op in (made.gpu, made.cpu) if made else ():
            assert min(op.units("channel"), op.units("row")) >= 1
            assert min(int(v[0]) for v in op.columns().values()) >= 0


# Files


def test_measurements_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "p", 40)
    expected = [row for w in sample(40) for row in rows_of(w)]
    for got, row in zip(read_measurements(folder), expected, strict=True):
        assert (got.sample, got.side, got.implementation) == (row["sample"], row["side"], row["implementation"])
        assert got.median_us == pytest.approx(row["median_us"], rel=1e-12)
        assert all(int(got.columns[n][0]) == row[n] for n in got.columns if n != "activation")


def test_pandas_reads_the_measurements(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas comes with coexec[train]")
    folder = write_profile(tmp_path / "p", 40)
    frame = pandas.read_csv(folder / MEASUREMENTS)
    assert list(frame.columns) == list(HEADER)
    assert frame["median_us"].tolist() == pytest.approx([m.median_us for m in read_measurements(folder)])


def test_device_record_round_trip(tmp_path: Path) -> None:
    DEVICE.save(tmp_path)
    assert DeviceRecord.load(tmp_path) == DEVICE


def test_resume_drops_half_a_line_and_keeps_the_rest(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "p", 20)
    path = folder / MEASUREMENTS
    before = path.read_bytes()
    path.write_bytes(before + b"20,gpu,conv2d,conv2d_dir")
    assert len(read_measurements(folder)) == 40
    extra = rows_of(sample(21)[-1])[0]
    with Journal(path, HEADER, resume=True) as journal:
        assert path.read_bytes() == before
        journal.append(extra)
    assert len(read_measurements(folder)) == 41
    assert path.read_bytes().startswith(before)


def test_a_line_is_in_the_file_before_the_next_is_measured(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.csv", ("a", "b"), resume=False) as journal:
        journal.append({"a": 1})
        assert (tmp_path / "m.csv").read_text() == "a,b\n1,\n"


def test_an_existing_journal_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("precious\n")
    with pytest.raises(ProfileError, match="resume"):
        Journal(path, HEADER, resume=False)
    with pytest.raises(ProfileError, match="other columns"):
        Journal(path, HEADER, resume=True)
    assert path.read_text() == "precious\n"


def _hold(path: Path, held: Any, release: Any) -> None:
    with Journal(path, HEADER, resume=True):
        held.set()
        release.wait(20)


def test_two_processes_cannot_write_one_journal(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "m.csv", held, release))
    other.start()
    try:
        assert held.wait(20)
        with pytest.raises(ProfileError, match="another process"):
            Journal(tmp_path / "m.csv", HEADER, resume=True)
    finally:
        release.set()
        other.join(20)
    Journal(tmp_path / "m.csv", HEADER, resume=True).close()  # and now it can


# Damaged measurements


def _edit(column: str, value: str) -> Callable[[str], str]:
    def edit(line: str) -> str:
        cells = line.split(",")
        cells[HEADER.index(column)] = value
        return ",".join(cells)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_edit("median_us", "nan"), "line 6: median_us is nan"),
        (_edit("median_us", "inf"), "line 6: median_us is inf"),
        (_edit("median_us", "0"), "line 6: median_us is 0"),
        (_edit("median_us", "-3.5"), "line 6: median_us is -3.5"),
        (_edit("median_us", "fast"), "line 6"),
        (_edit("side", "npu"), "line 6: side 'npu'"),
        (_edit("kind", "conv9d"), "line 6"),
        (_edit("activation", "magic"), "line 6"),
        (_edit("residual", "-1"), "line 6: a size is negative"),
        (_edit("N", "0"), "line 6: a size is 0"),
        (_edit("N", "x"), "line 6"),
        (lambda line: line[: len(line) // 2], "line 6 has"),
        (lambda line: line + ",1", "line 6 has"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, edit: Callable[[str], str], message: str) -> None:
    path = write_profile(tmp_path / "p", 10) / MEASUREMENTS
    lines = path.read_text().splitlines()
    lines[5] = edit(lines[5])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ProfileError, match=message) as caught:
        read_measurements(tmp_path / "p")
    assert "\n" not in str(caught.value)


# Training and predicting


def test_predictions_of_unseen_shapes(trained: Path) -> None:
    predictors = Predictors.load(trained)
    assert predictors.sync_us() == DEVICE.sync_us
    unseen = sample(300, seed=7)
    for units in (1, 2):
        traits = DEVICE.traits(units)
        errors = _errors(
            [w.gpu for w in unseen],
            lambda k, c, t=traits: predictors.gpu_us(k, c, t),
            lambda op, t=traits: gpu_us(op, t),
        )
        assert errors.mean() < 0.05, (units, errors.mean())
        errors = _errors(
            [w.cpu for w in unseen],
            lambda k, c, t=units: predictors.cpu_us(k, c, t),
            lambda op, t=units: cpu_us(op, t),
        )
        assert errors.mean() < 0.05, (units, errors.mean())


def _errors(ops: list[SplitOp], predict: Callable[..., Any], truth: Callable[[SplitOp], float]) -> Any:
    relative = []
    for kind in ("linear", "conv2d"):
        own = [op for op in ops if op.kind == kind]
        predicted = predict(kind, stack_columns([op.columns() for op in own]))
        relative += [abs(p / truth(op) - 1) for p, op in zip(predicted, own, strict=True)]
    return np.array(relative)


def test_larger_parts_than_measured_still_scale(trained: Path) -> None:
    predictors = Predictors.load(trained)
    huge = Linear(8192, 4096, 8192)  # 140 times the largest workload of a profile
    predicted = predictors.cpu_us("linear", huge.columns(), 1)[0]
    assert predicted == pytest.approx(cpu_us(huge, 1), rel=0.15)
    predicted = predictors.gpu_us("linear", huge.columns(), DEVICE.traits(1))[0]
    assert predicted == pytest.approx(gpu_us(huge, DEVICE.traits(1)), rel=0.15)


def test_reported_accuracy_is_of_unseen_parts(trained: Path) -> None:
    reports = Predictors.load(trained).reports
    assert {(r.processor, r.implementation) for r in reports} == (
        {("cpu", name) for name in CPU_BY_NAME} | {("gpu", name) for name in KERNEL_BY_NAME}
    )
    for report in reports:
        # 1 % of noise was added to each time: nothing that has not seen it can be much below.
        assert report.mape is not None and 0.006 < report.mape < 0.08
        assert report.within_10pct is not None and report.within_10pct > 0.75
    assert sum(r.points for r in reports) == 2 * POINTS


def test_training_again_gives_the_same_models(damaged: Path, trained: Path) -> None:
    from coexec.predictors.train import train

    train(damaged)
    for file in trained.glob("*.txt"):
        assert (damaged / file.name).read_bytes() == file.read_bytes()


def test_a_loaded_profile_predicts_what_the_trained_one_did(trained: Path, damaged: Path) -> None:
    columns = stack_columns([w.cpu.columns() for w in sample(100) if w.cpu.kind == "conv2d"])
    first = load_predictors(trained).cpu_us("conv2d", columns, 2)
    again = load_predictors(str(damaged)).cpu_us("conv2d", columns, 2)
    assert np.array_equal(first, again)
    one_by_one = [
        load_predictors(trained).cpu_us("conv2d", {n: v[i : i + 1] for n, v in columns.items()}, 2)[0]
        for i in range(0, len(first), 25)
    ]
    assert np.array_equal(first[::25], one_by_one)


def test_thousands_of_predictions_are_quick(trained: Path) -> None:
    predictors = Predictors.load(trained)
    op = Conv2d(1, 64, 56, 56, 256, 3, 3, 1, 1, 1, 1, 1, 1)
    stop = np.arange(1, 4001) % 256 + 1
    columns = Conv2d.cut_columns("channel", op.columns(), np.zeros_like(stop), stop)
    predictors.gpu_us("conv2d", columns, DEVICE.traits(1))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        predictors.gpu_us("conv2d", columns, DEVICE.traits(1))
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.5  # 0.03 s on an idle core; the bound only catches a loop over rows


def test_tuning_goes_on_from_its_storage(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="tuning needs optuna (pip install coexec[train])")
    from coexec.predictors.train import train

    folder = write_profile(tmp_path / "p", 60)
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    first = train(folder, trials=2, storage=storage)
    again = train(folder, trials=3, storage=storage)
    tuned = sum(m.mape is not None for m in first.models)
    summaries = optuna.get_all_study_summaries(storage)
    assert [s.n_trials for s in summaries] == [3] * tuned and tuned > 0
    for before, after in zip(first.models, again.models, strict=True):
        assert before.points == after.points


def test_tuning_with_a_bad_storage_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="tuning needs optuna (pip install coexec[train])")
    from coexec.predictors.train import train

    folder = write_profile(tmp_path / "p", 60)
    with pytest.raises(ProfileError, match="Optuna storage 'nonsense'"):
        train(folder, trials=1, storage="nonsense")


def test_too_few_points_of_one_implementation_are_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="training needs pandas (pip install coexec[train])")
    from coexec.predictors.train import train

    folder = write_profile(tmp_path / "p", 80)
    report = {m.implementation: m for m in train(folder).models}
    assert report["numpy_depthwise"].mape is None and "20 needed" in report["numpy_depthwise"].note
    predictors = Predictors.load(folder)
    assert predictors.cpu_us("linear", Linear(8, 64, 64).columns(), 1) > 0
    depthwise = Conv2d(1, 32, 14, 14, 32, 3, 3, groups=32)
    with pytest.raises(ProfileError, match=r"cannot predict numpy_depthwise .* 20 needed"):
        predictors.cpu_us("conv2d", depthwise.columns(), 1)


def test_three_points_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="training needs pandas (pip install coexec[train])")
    from coexec.predictors.train import train

    folder = write_profile(tmp_path / "p", 3)
    with pytest.raises(ProfileError, match="too few measurements"):
        train(folder)
    assert not (folder / "predictors.json").exists()


@pytest.mark.parametrize("package", ["pandas", "sklearn"])
def test_missing_training_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    from coexec.predictors.train import train

    folder = write_profile(tmp_path / "p", 3)
    for module in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ProfileError, match=rf"needs {package}: pip install coexec\[train\]"):
        train(folder)


@pytest.mark.parametrize("side", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_features_are_named_once_and_finite(side: str, kind: str) -> None:
    from coexec.predictors.features import cpu_features, gpu_features, matrix

    names = feature_names(side, kind)
    assert len(set(names)) == len(names)
    ops = [w.gpu for w in sample(200) if w.gpu.kind == kind]
    columns = stack_columns([op.columns() for op in ops])
    if side == "cpu":
        features = cpu_features(kind, columns, 2)
    else:
        features = gpu_features(kind, columns, launch(kind, columns, DEVICE.traits(2)))
    assert tuple(features) == names
    assert np.isfinite(matrix(features, names)).all()


def test_gpu_features_are_those_of_the_launch() -> None:
    from coexec.predictors.features import gpu_features

    op, traits = Linear(50, 768, 3072), GpuTraits(2, 16, 32, True)
    launches = launch("linear", op.columns(), traits)
    _, tile = launches.one()
    features = gpu_features("linear", op.columns(), launches)
    assert [features[n][0] for n in ("MR", "NV", "VW")] == [tile.defines[n] for n in ("MR", "NV", "VW")]
    groups = int(np.prod(tile.global_size))
    assert features["work_groups"][0] == groups
    assert features["waves"][0] == -(-groups // 2)


# Damaged or foreign predictors


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def _delete(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _truncate(folder: Path) -> None:
    path = folder / "cpu_numpy_matmul.txt"
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_delete(DEVICE_FILE), "device.json"),
        (_delete("predictors.json"), "coexec train"),
        (_delete("cpu_numpy_matmul.txt"), "cpu_numpy_matmul.txt"),
        (_write(DEVICE_FILE, b"{"), "no JSON"),
        (_write(DEVICE_FILE, b"[1]"), "not a JSON object"),
        (_write(DEVICE_FILE, b"\xff\xfe\x00"), "not text"),
        (_write("predictors.json", b"null"), "not a JSON object"),
        (_json(DEVICE_FILE, lambda d: d.update(schema=99)), "upgrade coexec"),
        (_json(DEVICE_FILE, lambda d: d.pop("schema")), "schema None"),
        (_json(DEVICE_FILE, lambda d: d.pop("cores")), "cores"),
        (_json(DEVICE_FILE, lambda d: d.update(sync_us=float("nan"))), "sync_us is nan"),
        (_json(DEVICE_FILE, lambda d: d.update(sync_us=-1.0)), "sync_us is -1"),
        (_json("predictors.json", lambda d: d.update(schema=2)), "upgrade coexec"),
        (_json("predictors.json", lambda d: d["features"]["cpu linear"].update(hash="0")), "other features"),
        (_json("predictors.json", lambda d: d.pop("models")), "damaged"),
        (_json("predictors.json", lambda d: d["models"][0].update(work_us=[1.0])), "make no sense"),
        (_json("predictors.json", lambda d: d["models"][0].update(mape=float("nan"))), "make no sense"),
        (_json("predictors.json", lambda d: d["models"][0].update(file="../x.txt")), "not in the profile's folder"),
        (_truncate, "is not the file that"),
    ],
)
def test_damaged_predictors_are_refused(damaged: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(damaged)
    with pytest.raises(ProfileError, match=message) as caught:
        Predictors.load(damaged)
    assert "\n" not in str(caught.value)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ProfileError, match="no profile 'nowhere'"):
        Predictors.load("nowhere")


# Matching


def _device(**changes: Any) -> Any:
    values = {"name": "Formula", "platform": "Synthetic (OpenCL 3.0)", "driver": "1", "type": "cpu"} | changes
    width = values.pop("vector_width", 16)
    return SimpleNamespace(**values, traits=lambda units: GpuTraits(units, width, 32, True))


@pytest.mark.parametrize(
    ("changes", "cores", "cpu", "expected"),
    [
        ({}, 2, "Formula", []),
        ({"driver": "2"}, 2, "Formula", ["driver"]),
        ({"platform": "Synthetic (OpenCL 3.1)"}, 2, "Formula", ["platform"]),
        ({"name": "Other"}, 2, "Other", ["device", "CPU"]),
        ({}, 4, "Formula", None),
        ({"platform": "Another (OpenCL 3.0)"}, 2, "Formula", None),
        ({"type": "gpu"}, 2, "Formula", None),
        ({"vector_width": 8}, 2, "Formula", None),
    ],
)
def test_what_a_profile_fits(changes: dict[str, Any], cores: int, cpu: str, expected: list[str] | None) -> None:
    found = differences_of(DEVICE, _device(**changes), cores, cpu)
    words = None if found is None else [text.split("measured with ")[1].split(" ")[0] for text in found]
    assert words == expected


@pytest.mark.parametrize(
    ("changes", "cores", "expected"),
    [
        ({}, 2, ""),
        ({"driver": "7"}, 2, "it was measured with driver '1', here it is '7'"),
        ({"vector_width": 8}, 2, "it was measured on another kind of device, 'Formula' beside 2 cores, here it is"),
        ({}, 4, "here it is 'Formula' beside 4"),
    ],
)
def test_a_named_profile_says_what_speaks_against_it(
    changes: dict[str, Any], cores: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coexec.predictors.matching.cpu_model", lambda: "Formula")
    assert expected in misfit(DEVICE, _device(**changes), cores)
    assert bool(misfit(DEVICE, _device(**changes), cores)) == bool(expected)


def test_a_named_profile_of_another_device_is_used_with_a_warning(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="may mislead: it was measured with CPU") as caught:
        monkeypatch.setattr("coexec.predictors.matching.cpu_model", lambda: "Another")
        monkeypatch.setattr("coexec.api.cpu_cores", lambda: 2)
        costs = cost_source(_device(), str(trained))
    assert len(caught) == 1 and costs.name == f"profile {trained.name}"


def test_a_real_gpu_fits_by_name_only() -> None:
    gpu = replace(DEVICE, emulated_gpu=False, device_type="gpu")
    assert differences_of(gpu, _device(type="gpu"), 2, "Formula") == []
    assert differences_of(gpu, _device(type="gpu", name="Another"), 2, "Formula") is None


def test_match_names_the_nearest_trained_profile(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = {}
    for name, driver in (("near", "0"), ("exact", "1"), ("untrained", "1")):
        shipped[name] = tmp_path / name
        shipped[name].mkdir()
        replace(DEVICE, driver=driver).save(shipped[name])
        if name != "untrained":
            (shipped[name] / "predictors.json").write_bytes((trained / "predictors.json").read_bytes())
    monkeypatch.setattr("coexec.predictors.matching.shipped_profiles", lambda: shipped)
    monkeypatch.setattr("coexec.predictors.matching.cpu_model", lambda: "Formula")
    assert match(_device(), 2) == ("exact", "")
    name, note = match(_device(driver="7"), 2) or ("", "")
    assert name in ("exact", "near") and "driver" in note and "'7'" in note
    assert match(_device(), 64) is None


def test_predictors_are_imported_without_their_heavy_packages() -> None:
    heavy = ("lightgbm", "pandas", "sklearn", "optuna", "scipy", "pyopencl")
    code = f"import sys, coexec.predictors; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
