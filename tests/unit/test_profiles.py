"""Profile folders: sampling, files, training, predicting, and every way in which they can be damaged."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import re
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
from damage import NUMBERS_THAT_CANNOT_BE, VALUES, at, one_line, places, whole_files, with_value, without
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_device import DEVICE, cpu_kernel_us, cpu_traits, cpu_us, gpu_us, rows_of, sample, write_profile

from coexec.api import cost_source
from coexec.backends.cpu import CPU_BY_NAME, variant_for
from coexec.errors import ProfileError
from coexec.experiments.suites import SUITES, load_layers
from coexec.kernels import LAYER_KERNELS
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.ops.base import SplitOp, stack_columns
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.predictors import Predictors, load_predictors, match
from coexec.predictors.features import Form, feature_names
from coexec.predictors.matching import differences_of, misfit
from coexec.predictors.model_files import load_models
from coexec.profiling.heldout import held_out
from coexec.profiling.measuring import fit_split_costs
from coexec.profiling.profile_files import (
    DEVICE as DEVICE_FILE,
)
from coexec.profiling.profile_files import (
    HEADER,
    MEASUREMENTS,
    SYNC_COSTS,
    SYNC_HEADER,
    DeviceRecord,
    Journal,
    SplitTimes,
    op_row,
    read_measurements,
    read_sync_costs,
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
    assert kernels == set(LAYER_KERNELS)
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
    whole = read_measurements(folder)
    path.write_bytes(before + b"20,gpu,conv2d,conv2d_dir")
    assert len(read_measurements(folder)) == len(whole)
    extra = rows_of(sample(21)[-1])[0]
    with Journal(path, HEADER, resume=True) as journal:
        assert path.read_bytes() == before
        journal.append(extra)
    assert len(read_measurements(folder)) == len(whole) + 1
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
        (_edit("median_us", "nan"), "line 6: .*median_us"),
        (_edit("median_us", "inf"), "line 6: .*median_us"),
        (_edit("median_us", "0"), "line 6: .*median_us"),
        (_edit("median_us", "1e-320"), "line 6: .*median_us"),
        (_edit("median_us", "-3.5"), "line 6: .*median_us"),
        (_edit("median_us", "fast"), "line 6: .*median_us"),
        (_edit("side", "npu"), "line 6: .*'npu'.*side"),
        (_edit("side", "cpu"), "line 6: .*threads"),
        (_edit("kind", "conv9d"), "line 6: .*'conv9d'.*kind"),
        (_edit("kind", "linear"), "line 6"),
        (_edit("implementation", "linear_tile"), "line 6: linear_tile computes no conv2d on side gpu"),
        (_edit("implementation", "numpy_im2col"), "line 6: numpy_im2col computes no conv2d on side gpu"),
        (_edit("implementation", "../../etc"), "line 6: .*implementation"),
        (_edit("activation", "magic"), "line 6: there is no activation 'magic'"),
        (_edit("residual", "-1"), "line 6: .*residual"),
        (_edit("bias", "7"), "line 6: .*bias"),
        (_edit("N", "0"), "line 6: .*N"),
        (_edit("N", "1" + "0" * 30), "line 6: .*N"),
        (_edit("H", str(2**31 - 1)), "line 6: the layer is too large"),
        (_edit("groups", "7919"), "line 6: 7919 groups do not divide"),
        (_edit("KH", "5000"), "line 6: the kernel is larger than the padded input"),
        (_edit("spread", "nan"), "line 6: .*spread"),
        (_edit("spread", "-0.5"), "line 6: .*spread"),
        (_edit("repeats", "0"), "line 6: .*repeats"),
        (_edit("M", "8"), "line 6: .*`M`"),
        (lambda line: line[: len(line) // 2], "line 6: it has"),
        (lambda line: line + ",1", "line 6: it has"),
        (lambda line: "", "line 6: it has"),
        (lambda line: line.replace("conv2d", '"conv2d\n', 1), "line 6"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, edit: Callable[[str], str], message: str) -> None:
    path = write_profile(tmp_path / "p", 10) / MEASUREMENTS
    lines = path.read_text().splitlines()
    # The fifth line is of a convolution on the GPU side.
    first = next(line for line in lines if line.split(",")[1:3] == ["gpu", "conv2d"])
    lines.remove(first)
    lines.insert(5, edit(first))
    path.write_text("\n".join(lines) + "\n")
    before = path.read_bytes()
    with pytest.raises(ProfileError, match=message) as caught:
        read_measurements(tmp_path / "p")
    one_line(caught.value)
    assert "delete that line" in str(caught.value)
    assert path.read_bytes() == before
    if "\n" not in lines[5]:
        del lines[5]  # as the message says: all others are still there
        path.write_text("\n".join(lines) + "\n")
        assert len(read_measurements(tmp_path / "p")) == len(lines) - 1


CELLS = {
    **{
        c: c
        for c in ("-1", "0", "1.5", "nan", "-inf", "1e400", "x", "X", "", " ", "true", "null", '"', "\x00", "\ufffd")
    },
    "10**30": "1" + "0" * 30,
    "5000 digits": "9" * 5000,
    "140000 characters": "x" * 140_000,
}
MAY_BE = {
    "0": {"sample", "bias", "residual", "pad_top", "pad_left", "pad_bottom", "pad_right", "spread", "unix_s"},
    "1.5": {"median_us", "spread", "unix_s"},
    **{name: {"implementation"} for name in ("x", "true", "null", "nan")},  # of another version
}


@pytest.mark.parametrize("column", HEADER)
def test_no_damaged_cell_makes_nonsense(tmp_path: Path, column: str) -> None:
    path = write_profile(tmp_path / "p", 10) / MEASUREMENTS
    lines = path.read_text().splitlines()
    for kind in ("linear", "conv2d"):
        number = next(i for i, line in enumerate(lines) if f",{kind}," in line)
        original = lines[number].split(",")[HEADER.index(column)]
        for name, cell in CELLS.items():
            changed = [*lines[:number], _edit(column, cell)(lines[number]), *lines[number + 1 :]]
            path.write_text("\n".join(changed) + "\n", encoding="utf-8")
            if cell == original or column in MAY_BE.get(name, ()):
                continue
            with pytest.raises(ProfileError, match=f"line {number + 1}: ") as caught:
                read_measurements(tmp_path / "p")
                pytest.fail(f"{name} was taken for {column}")
            one_line(caught.value)


@given(data=st.data())
@settings(max_examples=100)
def test_measurements_with_any_damage(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_damage"
    if not folder.exists():
        write_profile(folder, 10)
        (folder / "good.csv").write_bytes((folder / MEASUREMENTS).read_bytes())
    content = bytearray((folder / "good.csv").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=20))
    (folder / MEASUREMENTS).write_bytes(content)
    try:
        found = read_measurements(folder)
    except ProfileError as error:
        one_line(error)
    else:
        assert all(0 < m.median_us < 1e13 and m.repeats > 0 for m in found)


@pytest.mark.parametrize("name", [MEASUREMENTS, SYNC_COSTS])
def test_a_last_line_without_its_end_is_kept(tmp_path: Path, name: str) -> None:
    """Editors may leave it out when a bad line is deleted as the message says."""
    path = tmp_path / name
    header = HEADER if name == MEASUREMENTS else SYNC_HEADER
    op = op_row(Linear(8, 8, 8))
    shared = {**op, "threads": 1, "spread": 0.1, "repeats": 5, "unix_s": 1.5}
    if name == MEASUREMENTS:
        row = {**shared, "sample": 0, "side": "cpu", "implementation": "numpy_matmul", "median_us": 7.5}
    else:
        times = {"cpu_us": 5, "gpu_us": 5, "split_us": 8, "sync_us": 3}
        row = {**shared, **times, "axis": "channel", "cut": 4, "compute_units": 1}

    def count() -> int:
        return len(read_measurements(tmp_path) if name == MEASUREMENTS else read_sync_costs(tmp_path))

    with Journal(path, header, resume=False) as journal:
        journal.append(row)
        journal.append(row)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert count() == 2
    Journal(path, header, resume=True).close()
    assert path.read_bytes() == whole
    for cut in range(2, len(whole.splitlines()[-1]) - 2):
        path.write_bytes(whole[:-cut])
        before = count()
        Journal(path, header, resume=True).close()
        assert count() == before >= 1
    path.write_bytes(_bytes_of_header(header)[:-5])
    Journal(path, header, resume=True).close()
    assert path.read_bytes() == _bytes_of_header(header)
    path.write_bytes(b"precious")
    with pytest.raises(ProfileError, match="other columns"):
        Journal(path, header, resume=True)
    assert path.read_bytes() == b"precious"


def _bytes_of_header(header: tuple[str, ...]) -> bytes:
    return ",".join(header).encode() + b"\n"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x", "", "1e400", "9" * 5000])
def test_damaged_sync_costs_are_refused(tmp_path: Path, value: str) -> None:
    row = {**op_row(Linear(8, 8, 8)), "axis": "row", "cut": 4, "threads": 1, "compute_units": 1, "repeats": 5}
    row |= {"cpu_us": 5, "gpu_us": 5, "split_us": 8, "sync_us": value, "spread": 0, "unix_s": 0}
    with Journal(tmp_path / SYNC_COSTS, SYNC_HEADER, resume=False) as journal:
        journal.append(row)
    with pytest.raises(ProfileError, match=r"line 2: .*sync_us") as caught:
        read_sync_costs(tmp_path)
    one_line(caught.value)


@pytest.mark.parametrize(("sync_us", "slowdown"), [(3.0, 0.0), (0.0, 0.25), (8.0, 0.1)])
def test_what_splits_add_is_told_apart(sync_us: float, slowdown: float) -> None:
    """A time for each, and a share of what the longer side takes; the shorter one does not matter."""
    alone_us = [(20.0, 20.0), (50.0, 45.0), (90.0, 100.0), (700.0, 400.0), (1500.0, 2000.0)]
    times = [SplitTimes(a, b, sync_us + (1 + slowdown) * max(a, b)) for a, b in alone_us]
    assert fit_split_costs(times) == pytest.approx((sync_us, slowdown), abs=1e-9)
    noisy = [
        t._replace(split_us=t.split_us * (1 + e)) for t, e in zip(times * 6, np.tile([0.03, -0.03], 15), strict=True)
    ]
    found = fit_split_costs(noisy)
    assert abs(found[0] - sync_us) < 1.5 and abs(found[1] - slowdown) < 0.06


def test_splits_that_cost_nothing_cost_nothing() -> None:
    assert fit_split_costs([SplitTimes(50.0, 40.0, 45.0), SplitTimes(500.0, 400.0, 450.0)]) == (0.0, 0.0)


def test_kernels_of_a_cpu_side_without_a_device_are_named(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="training needs pandas (pip install coexec[train])")
    from coexec.predictors.train import train

    folder = write_profile(tmp_path / "p", 200)
    replace(DEVICE, cpu_kernels=None).save(folder)
    with pytest.raises(ProfileError, match=r"line \d+: device.json names nothing that runs kernels") as caught:
        train(folder)
    one_line(caught.value)


def test_a_line_that_its_implementation_does_not_compute_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="training needs pandas (pip install coexec[train])")
    from coexec.predictors.train import train

    for implementation, other in (("numpy_depthwise", "numpy_im2col"), ("conv2d_depthwise", "conv2d_direct")):
        path = write_profile(tmp_path / implementation, 200) / MEASUREMENTS
        lines = path.read_text().splitlines()
        groups = HEADER.index("groups")
        number = next(i for i, line in enumerate(lines) if f",{other}," in line and line.split(",")[groups] == "1")
        lines[number] = lines[number].replace(other, implementation)
        path.write_text("\n".join(lines) + "\n")
        # Enough others of it, so that it is trained at all.
        with pytest.raises(ProfileError, match=f"line {number + 1}: {implementation} does not compute such") as caught:
            train(path.parent)
        one_line(caught.value)


def test_copies_of_lines_count_once(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="training needs pandas (pip install coexec[train])")
    from coexec.predictors.train import train

    path = write_profile(tmp_path / "p", 80) / MEASUREMENTS
    once = [report.points for report in train(tmp_path / "p").models]
    head, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(head + "".join(line * 2 for line in lines))
    assert [report.points for report in train(tmp_path / "p").models] == once


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
    assert [predictors.knows_cpu_kernels(threads) for threads in (1, 2)] == [True, False]
    errors = _errors(
        [w.cpu for w in unseen],
        lambda k, c: predictors.cpu_kernel_us(k, c, cpu_traits(1)),
        lambda op: cpu_kernel_us(op, 1),
    )
    assert errors.mean() < 0.05, errors.mean()


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
        {("cpu", name) for name in (*CPU_BY_NAME, *LAYER_KERNELS)} | {("gpu", name) for name in LAYER_KERNELS}
    )
    for report in reports:
        # 1 % of noise was added to each time: nothing that has not seen it can be much below.
        assert report.mape is not None and 0.006 < report.mape < 0.08
        assert report.within_10pct is not None and report.within_10pct > 0.75
    assert sum(r.points for r in reports) == sum(len(rows_of(w)) for w in sample(POINTS))


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
    with pytest.raises(ProfileError, match=rf"needs {package}: install it"):
        train(folder)


@pytest.mark.parametrize("form", ["kernel", "routine"])
@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_features_are_named_once_and_finite(form: Form, kind: str) -> None:
    from coexec.predictors.features import kernel_features, matrix, routine_features

    names = feature_names(form, kind)
    assert len(set(names)) == len(names)
    ops = [w.gpu for w in sample(200) if w.gpu.kind == kind]
    columns = stack_columns([op.columns() for op in ops])
    if form == "routine":
        features = routine_features(kind, columns, 2)
    else:
        features = kernel_features(kind, columns, launch(kind, columns, DEVICE.traits(2)))
    assert tuple(features) == names
    assert np.isfinite(matrix(features, names)).all()


def test_a_kernels_features_are_those_of_the_launch() -> None:
    from coexec.predictors.features import kernel_features

    op, traits = Linear(50, 768, 3072), GpuTraits(2, 16, 32, True)
    launches = launch("linear", op.columns(), traits)
    _, tile = launches.one()
    features = kernel_features("linear", op.columns(), launches)
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


def _numpy(data: dict[str, Any]) -> Any:
    """Entry of a model of NumPy's convolutions."""
    return next(m for m in data["models"] if m["implementation"] == "numpy_im2col")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_delete(DEVICE_FILE), "device.json"),
        (_delete("predictors.json"), "coexec train"),
        (_delete("cpu_numpy_matmul.txt"), "cpu_numpy_matmul.txt"),
        (_write(DEVICE_FILE, b"{"), "no JSON"),
        (_write(DEVICE_FILE, b"[1]"), "device.json is damaged"),
        (_write(DEVICE_FILE, b"\xff\xfe\x00"), "no JSON"),
        (_write("predictors.json", b"null"), "predictors.json is damaged"),
        (_json(DEVICE_FILE, lambda d: d.update(schema=99)), "upgrade coexec"),
        (_json(DEVICE_FILE, lambda d: d.pop("schema")), "schema"),
        (_json(DEVICE_FILE, lambda d: d.pop("cores")), "cores"),
        (_json(DEVICE_FILE, lambda d: d.update(sync_us=float("nan"))), "no JSON"),
        (_json(DEVICE_FILE, lambda d: d.update(sync_us=-1.0)), "sync_us"),
        (_json(DEVICE_FILE, lambda d: d.update(emulated_gpu=False)), "emulated_gpu False"),
        (_json(DEVICE_FILE, lambda d: d.update(device_type="gpu")), "emulated_gpu True"),
        (_json(DEVICE_FILE, lambda d: d.update(cores=60_000)), "cores is 60000"),
        (_json(DEVICE_FILE, lambda d: d.update(compute_units=[1, 8])), "cores is 2"),
        (_json(DEVICE_FILE, lambda d: d.update(threads=[64])), "64 threads"),
        (_json("predictors.json", lambda d: d.update(schema=2)), "upgrade coexec"),
        (_json("predictors.json", lambda d: d["features"]["routine linear"].update(hash="0")), "other features"),
        (_json("predictors.json", lambda d: d["features"]["routine linear"]["names"].pop()), "other features"),
        (_json("predictors.json", lambda d: d["features"].pop("kernel linear")), "other features"),
        (_json("predictors.json", lambda d: d.pop("models")), "damaged"),
        (_json("predictors.json", lambda d: d["models"][0].update(work_us=[1.0])), "rates"),
        (_json("predictors.json", lambda d: d["models"][0].update(mape=-0.5)), "mape"),
        (_json("predictors.json", lambda d: d["models"][0].update(file="../x.txt")), "'../x.txt'"),
        (_json("predictors.json", lambda d: d["models"][0].update(file=None)), "no model"),
        (_json("predictors.json", lambda d: d["models"][0].update(sha256=None)), "sha256"),
        (_json("predictors.json", lambda d: _numpy(d).update(processor="gpu")), "computes no conv2d"),
        (_json("predictors.json", lambda d: d["models"][0].update(op="linear")), "computes no linear"),
        (_json("predictors.json", lambda d: d["models"].append(d["models"][0])), "twice"),
        (_truncate, "is not the file that"),
    ],
)
def test_damaged_predictors_are_refused(damaged: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(damaged)
    with pytest.raises(ProfileError, match=message) as caught:
        Predictors.load(damaged)
    one_line(caught.value)


FREE = {"device_name", "device_id", "platform", "driver", "cpu_model", "sync", "note", "trained", "started", "python"}
"""Any text (of at least a character for some) is possible there."""


@pytest.mark.parametrize("name", [DEVICE_FILE, "predictors.json"])
def test_no_damaged_field_of_a_profile_makes_nonsense(damaged: Path, name: str) -> None:
    """Each field by each value: refused in one line, or taken for what it is."""
    session = {"started": "2026-12-01", "load": 0.5, "seconds": 1.5, "points": 2}
    replace(DEVICE, versions={"python": "3"}, sessions=(session,)).save(damaged)  # type: ignore[arg-type]
    document = json.loads((damaged / name).read_text())
    load: Callable[[Path], Any] = DeviceRecord.load if name == DEVICE_FILE else load_models
    load(damaged)
    for place in places(document):
        original = at(document, place)
        for title, value in VALUES.items():
            (damaged / name).write_text(with_value(document, place, value))
            try:
                load(damaged)
            except ProfileError as error:
                one_line(error)
                continue
            now = json.loads(value)
            assert title not in NUMBERS_THAT_CANNOT_BE or place[-1] == "seed" or "parameters" in place, (place, title)
            if place == ("cpu_kernels",) and now is None:
                continue  # nothing ran kernels there
            if isinstance(original, int | float) and not isinstance(original, bool):
                assert isinstance(now, int | float) and not isinstance(now, bool), (place, title)
            else:
                assert type(now) is type(original), (place, title)
        optional = name == DEVICE_FILE and (place == ("sessions",) or set(place) & {"sessions", "versions"})
        optional = optional or any(part in place for part in ("parameters", "versions"))
        if isinstance(place[-1], str) and not (optional and place not in {("versions",), ("parameters",)}):
            (damaged / name).write_text(without(document, place))
            with pytest.raises(ProfileError) as caught:
                load(damaged)
                pytest.fail(f"{place} is not needed")
            one_line(caught.value)


@pytest.mark.parametrize("name", [DEVICE_FILE, "predictors.json"])
def test_whole_files_of_a_profile(damaged: Path, name: str) -> None:
    for title, content in whole_files(json.loads((damaged / name).read_text())).items():
        (damaged / name).write_bytes(content)
        with pytest.raises(ProfileError, match=name) as caught:
            Predictors.load(damaged)
            pytest.fail(f"{title} was taken")
        one_line(caught.value)


def _model(change: Callable[[str], str], fitting_hash: bool = True) -> Callable[[Path], None]:
    """Another text for the model of matrix products, and the hash that goes with it."""

    def damage(folder: Path) -> None:
        path = folder / "cpu_numpy_matmul.txt"
        text = change(path.read_text())
        path.write_text(text)
        data = json.loads((folder / "predictors.json").read_text())
        entry = next(e for e in data["models"] if e["implementation"] == "numpy_matmul")
        entry["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "predictors.json").write_text(json.dumps(data))

    return damage


def _same_length(pattern: str, put: str) -> Callable[[str], str]:
    """The first number that the pattern captures replaced, without moving what follows."""
    return lambda text: re.sub(
        pattern, lambda m: m[0].replace(m[1], put.ljust(len(m[1]), "0")[: len(m[1])]), text, count=1
    )


MODEL_TEXTS: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "something else": lambda text: "hello\n" * 1000,
    "zeros": lambda text: "\0" * 1000,
    **{
        f"cut at {share}": lambda text, s=share: text[: int(len(text) * s)]
        for share in (0.001, 0.01, 0.02, 0.1, 0.5, 0.9, 0.97, 0.99, 0.999)  # type: ignore[misc]
    },
    "middle missing": lambda text: text[:50_000] + text[60_000:],
    "trees moved": lambda text: text.replace("Tree=5\n", "Tree=5\n\n", 1),
    "three outputs": lambda text: text.replace("num_class=1", "num_class=3"),
    "other objective": lambda text: text.replace("objective=regression", "objective=poisson", 1),
    "fewer features": lambda text: re.sub(r"max_feature_idx=\d+", "max_feature_idx=3", text),
    "other features": lambda text: text.replace("feature_names=rows depth", "feature_names=depth rows"),
    "unknown feature": _same_length(r"split_feature=\d+ (\d\d) ", "99"),
    "no leaves": lambda text: text.replace("num_leaves=15", "num_leaves=00", 1),
    "more leaves": lambda text: text.replace("num_leaves=15", "num_leaves=99", 1),
    "categories": lambda text: text.replace("num_cat=0", "num_cat=9", 1),
    "by category": _same_length(r"decision_type=(\d)", "1"),
    "circle": _same_length(r"left_child=(\d)", "0"),
    "endless": _same_length(r"leaf_value=-?(\d\S+)", "1e999"),
    "no number": _same_length(r"leaf_value=-?(\d\S+)", "nan "),
    "categories of pandas": lambda text: text.replace("pandas_categorical:null", "pandas_categorical:[["),
}


@pytest.mark.parametrize("case", MODEL_TEXTS)
def test_damaged_models_are_refused(damaged: Path, case: str) -> None:
    """Before LightGBM reads them, which would end the process in most of these cases."""
    text = (damaged / "cpu_numpy_matmul.txt").read_text()
    assert MODEL_TEXTS[case](text) != text
    _model(MODEL_TEXTS[case])(damaged)
    with pytest.raises(ProfileError, match=r"cpu_numpy_matmul.txt is damaged") as caught:
        Predictors.load(damaged)
    one_line(caught.value)


def test_models_that_predict_no_times_are_refused(damaged: Path) -> None:
    _model(lambda text: re.sub(r"leaf_value=\S+", lambda m: f"leaf_value=9.{'0' * (len(m[0]) - 16)}e99", text))(damaged)
    with pytest.raises(ProfileError, match="no numbers"), np.errstate(over="ignore"):
        Predictors.load(damaged).cpu_us("linear", Linear(8, 64, 64).columns(), 1)


def test_folders_that_are_no_profiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "folders" / DEVICE_FILE).mkdir(parents=True)
    for profile in ("file", "empty", "folders", "none", "lines\nin it", "x" * 300, "x" * 70_000, "zero\0", "\ud800"):
        with pytest.raises(ProfileError) as caught:
            Predictors.load(f"{tmp_path}/{profile}")
        one_line(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
@pytest.mark.parametrize("name", [".", DEVICE_FILE, "predictors.json", "cpu_numpy_matmul.txt"])
def test_what_may_not_be_read(damaged: Path, name: str) -> None:
    mode = (damaged / name).stat().st_mode
    (damaged / name).chmod(0)
    try:
        with pytest.raises(ProfileError, match="cannot read") as caught:
            Predictors.load(damaged)
        one_line(caught.value)
    finally:
        (damaged / name).chmod(mode)


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


def test_match_passes_over_what_cannot_be_read(damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {"gone": tmp_path / "gone", "file": tmp_path / "file" / "x", "damaged": damaged}
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("coexec.predictors.matching.shipped_profiles", lambda: shipped)
    monkeypatch.setattr("coexec.predictors.matching.cpu_model", lambda: "Formula")
    assert match(_device(), 2) == ("damaged", "")
    for content in whole_files(json.loads((damaged / DEVICE_FILE).read_text())).values():
        (damaged / DEVICE_FILE).write_bytes(content)
        assert match(_device(), 2) is None


def test_predictors_are_imported_without_their_heavy_packages() -> None:
    heavy = ("lightgbm", "pandas", "sklearn", "optuna", "scipy", "pyopencl")
    code = f"import sys, coexec.predictors; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
