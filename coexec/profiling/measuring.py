"""Measures a device into a profile folder: parts of layers on each side alone, and what a hand-over costs.

Every step takes the next workload of `coexec.profiling.workloads` and measures it on both sides, with cold weights
(`coexec.measure`). Results are appended as they come, so an interrupted profile is a fair, smaller one.
"""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coexec.api import CPU_ONLY
from coexec.backends.cpu import CPU_BY_NAME, variant_for
from coexec.device import DeviceInfo, Session, cpu_cores, cpu_kernels, cpu_model, find_device
from coexec.errors import DeviceError, InputError, ProfileError
from coexec.kernels import LAYER_KERNELS
from coexec.launch import launch
from coexec.measure import REST_S, LayerRig, Timing, interleaved
from coexec.measured_plan import whole_on_cpu
from coexec.ops.base import Axis, SplitOp
from coexec.ops.linear import Linear
from coexec.plan import Plan, Side, Task
from coexec.planner import Choice, Resources, aligned_cuts, assemble
from coexec.predictors.model_files import MIN_POINTS
from coexec.profiling.networks import conv
from coexec.profiling.profile_files import (
    DEVICE,
    HEADER,
    MEASUREMENTS,
    SYNC_COSTS,
    SYNC_HEADER,
    DeviceRecord,
    Journal,
    SessionRecord,
    SplitTimes,
    op_row,
    read_measurements,
    read_sync_costs,
)
from coexec.profiling.workloads import Workload, levels, workloads
from coexec.sync import Sync, open_sync
from coexec.ways import Machine, Way

DEFAULT_BUDGET_S = 20 * 60.0
SYNC_SHARE = 0.08
"""Share of the budget that sync costs may take, at most."""
SYNC_ROUNDS = 30
"""Hand-over measurements wanted in all."""
BUSY_LOAD = 0.5
"""Load average per core from which other work is likely to slow down what is measured."""
MAX_FAILURES = 3
"""Workloads in a row that the device may refuse before the profile gives up."""

SYNC_LAYERS: tuple[tuple[SplitOp, Axis], ...] = (
    (Linear(50, 256, 256, bias=True), "channel"),
    (conv(32, 28, 64, 3, 1), "channel"),
    (conv(64, 14, 64, 3, 1), "row"),
    (Linear(8, 512, 512, bias=True), "channel"),
    (conv(64, 28, 128, 1, 1), "row"),
    (Linear(128, 128, 256, bias=True), "row"),
    (Linear(196, 384, 768, bias=True), "channel"),
    (conv(128, 28, 128, 3, 1), "row"),
    (Linear(196, 1024, 1024, bias=True), "channel"),
    (conv(64, 56, 256, 1, 1), "row"),
)
"""Layers so small (some 20 to 200 us) that a hand-over shows beside their work, and larger ones (to some ms) that
show how much both sides slow one another down."""


@dataclass(frozen=True)
class Progress:
    """How far a profile is."""

    elapsed_s: float
    budget_s: float
    points: int


@dataclass(frozen=True)
class Summary:
    """What a profile run did: lines added and in all, workloads that the device refused, and why first.

    ``short_of_points`` are the implementations that have fewer than ``needed_points`` measurements.
    """

    folder: Path
    added: int
    points: int
    elapsed_s: float
    sync_us: float
    skipped: int = 0
    skip_reason: str = ""
    short_of_points: Mapping[str, int] = field(default_factory=dict)
    needed_points: int = MIN_POINTS


def profile(
    device_id: str | None,
    out_dir: str | os.PathLike[str],
    budget_s: float = DEFAULT_BUDGET_S,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    *,
    sync: str | None = None,
    seed: int = 0,
) -> Summary:
    """Measure ``device_id`` into ``out_dir`` for about ``budget_s`` seconds.

    None is the device of the profile that is resumed, or else the best one. An interrupted profile is valid;
    ``resume`` adds to it. Raises ProfileError if the folder exists and ``resume`` is not set, or belongs to another
    device; DeviceError if the device is missing or fails.
    """
    if not budget_s > 0:
        raise ProfileError(f"the budget is {budget_s} s; it must be longer than 0")
    if device_id == CPU_ONLY:
        raise InputError("a profile is of an OpenCL device beside the CPU; name one, or leave out --device")
    if device_id is None and resume and (Path(out_dir) / DEVICE).exists():
        device_id = DeviceRecord.load(Path(out_dir)).device_id
    info = find_device(device_id)
    if info is None:
        raise DeviceError("no usable OpenCL device to profile; `coexec devices` says what was found")
    folder = _folder(Path(out_dir), resume)
    load = os.getloadavg()[0]
    if load > BUSY_LOAD * cpu_cores():
        warnings.warn(
            f"this machine is busy (load average {load:.1f} on {cpu_cores()} cores), and what is measured beside other "
            "work misleads: stop that and start anew",
            stacklevel=2,
        )
    run = _Run(info, folder, time.perf_counter(), budget_s, progress)
    with (
        Journal(folder / MEASUREMENTS, HEADER, resume) as measurements,
        Journal(folder / SYNC_COSTS, SYNC_HEADER, resume) as sync_costs,
    ):
        earlier = read_measurements(folder)
        record = _record(folder, _describe(info, sync, seed), bool(earlier))
        run.bench = Bench(info, sync, record.compute_units)
        session: SessionRecord = {
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "load": load,
        }
        record = replace(record, sync=run.bench.sync_name)
        record = _with_sync_cost(run, record, sync_costs)
        replace(record, sessions=(*record.sessions, session)).save(folder)
        try:
            start = max((m.sample for m in earlier), default=-1) + 1
            sequence = workloads(info.traits(1), record.compute_units, record.threads, start, record.seed)
            run.measure(sequence, measurements)
        finally:
            session |= {"seconds": round(run.elapsed_s(), 1), "points": run.points}
            replace(record, sessions=(*record.sessions, session)).save(folder)
    return Summary(
        folder=folder,
        added=run.points,
        points=len(earlier) + run.points,
        elapsed_s=run.elapsed_s(),
        sync_us=record.sync_us,
        skipped=run.skipped,
        skip_reason=run.skip_reason,
        short_of_points=_short_of_points(folder, record.cpu_kernels is not None),
    )


def _short_of_points(folder: Path, on_cpu: bool) -> dict[str, int]:
    """Implementations that have too few measurements to be predicted, with how many they have."""
    return {str(code): count for code, count in _points(folder, on_cpu).items() if count < MIN_POINTS}


def _points(folder: Path, on_cpu: bool) -> dict[Code, int]:
    """How many measurements each implementation has, kernels of the CPU side among them if it can run any."""
    sides: list[tuple[Side, Mapping[str, Any]]] = [("gpu", LAYER_KERNELS), ("cpu", CPU_BY_NAME)]
    sides += [("cpu", LAYER_KERNELS)] if on_cpu else []
    counts = {Code(side, name): 0 for side, names in sides for name in names}
    for measurement in read_measurements(folder):
        code = Code(measurement.side, measurement.implementation)
        counts[code] = counts.get(code, 0) + 1
    return counts


class Code(NamedTuple):
    """An implementation on the side where it runs."""

    side: Side
    name: str

    def __str__(self) -> str:
        return f"{self.side} {self.name}"


@dataclass(frozen=True)
class Part:
    """One of the things that a workload has measured, alone: an op by one implementation on one side."""

    code: Code
    op: SplitOp
    choice: Choice


class Bench:
    """The device opened once for each number of compute units that is measured."""

    def __init__(self, info: DeviceInfo, sync: str | None, compute_units: Sequence[int]) -> None:
        self.machine = Machine.here(info)
        self._syncs = {units: open_sync(Session(info, units), sync) for units in compute_units}

    @property
    def sync_name(self) -> str:
        return next(iter(self._syncs.values())).name

    def sync(self, compute_units: int) -> Sync:
        return self._syncs[compute_units]

    def use(self, workload: Workload) -> Resources:
        """What a workload uses of the machine."""
        return self.machine.resources(Way("", workload.compute_units, workload.threads))

    def parts(self, workload: Workload) -> list[Part]:
        """The GPU's part, and the CPU's by each of its implementations."""
        use, op = self.use(workload), workload.cpu
        kernel = _kernel(workload.gpu, self.machine, workload.compute_units)
        parts = [Part(Code("gpu", kernel), workload.gpu, _all_of(workload.gpu))]
        if use.cpu_traits is not None:
            name = launch(op.kind, op.columns(), use.cpu_traits).names()[0]
            parts.append(Part(Code("cpu", name), op, Choice("channel", 0)))
        # Last, since its threads spin on for a while.
        return [*parts, Part(Code("cpu", variant_for(op).name), op, Choice("channel", 0, cpu_kernel=False))]

    def measure(self, workload: Workload) -> list[Timing]:
        """Each of the workload's parts alone.

        One after the other, not in turn: the CPU side's further threads spin on for a while after each run, and
        would halve the speed of a GPU that is emulated on the same cores.
        """
        sync, use = self.sync(workload.compute_units), self.use(workload)
        timings = []
        for part in self.parts(workload):
            timer = LayerRig(part.op, sync, use).timer(part.choice)
            timings += interleaved([timer], warm_up_s=0.02, min_rounds=5, max_rounds=15, budget_s=0.15)
        if workload.threads > 1:
            time.sleep(REST_S)
        return timings


@dataclass
class _Run:
    """State of one call of `profile`."""

    info: DeviceInfo
    folder: Path
    started: float
    budget_s: float
    progress: Callable[[Progress], None] | None
    points: int = 0
    skipped: int = 0
    skip_reason: str = ""
    bench: Bench = field(init=False)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def report(self) -> None:
        if self.progress is not None:
            self.progress(Progress(self.elapsed_s(), self.budget_s, self.points))

    def measure(self, sequence: Iterator[Workload], journal: Journal) -> None:
        """Measure workload after workload until the budget is spent.

        Workloads of implementations that have far more points than the rarest one so far are left out.
        """
        failures = 0
        counts, reached = _points(self.folder, self.bench.machine.cpu_kernels is not None), set[Code]()
        for workload in sequence:
            if self.elapsed_s() >= self.budget_s:
                return
            codes = [part.code for part in self.bench.parts(workload)]
            reached.update(codes)
            rarest = min(counts[code] for code in reached)
            if min(counts[code] for code in codes) > 2 * rarest + MIN_POINTS // 2:
                continue
            for code in codes:
                counts[code] += 1
            try:
                timings = self.bench.measure(workload)
            except DeviceError as error:
                failures += 1
                self.skipped += 1
                self.skip_reason = self.skip_reason or str(error)
                if failures == MAX_FAILURES:
                    raise
                continue
            failures = 0
            for part, timing in zip(self.bench.parts(workload), timings, strict=True):
                journal.append(_row(workload, part, timing))
                self.points += 1
            self.report()


def _row(workload: Workload, part: Part, timing: Timing) -> dict[str, Any]:
    """A line of measurements.csv."""
    on_gpu = part.code.side == "gpu"
    return {
        "sample": workload.sample,
        "unix_s": round(time.time(), 1),
        **op_row(part.op),
        "side": part.code.side,
        "implementation": part.code.name,
        **({"compute_units": workload.compute_units} if on_gpu else {"threads": workload.threads}),
        "median_us": f"{timing.median_us:.3f}",
        "spread": f"{timing.spread:.4f}",
        "repeats": timing.repeats,
    }


def _kernel(op: SplitOp, machine: Machine, compute_units: int) -> str:
    assert machine.traits is not None  # there is a device
    return launch(op.kind, op.columns(), machine.traits(compute_units)).names()[0]


def _all_of(op: SplitOp) -> Choice:
    return Choice("channel", op.units("channel"))


def _with_sync_cost(run: _Run, record: DeviceRecord, journal: Journal) -> DeviceRecord:
    """The record with the hand-over cost, from the profile's earlier sync.csv and a few more measurements."""
    units, threads = _split_shares(record)
    sync, use = run.bench.sync(units), run.bench.machine.resources(Way("", units, threads))
    known = read_sync_costs(run.folder)
    until = SYNC_SHARE * run.budget_s
    for i in range(len(known), SYNC_ROUNDS):
        op, axis = SYNC_LAYERS[i % len(SYNC_LAYERS)]
        row = split_row(op, axis, sync, use)
        if row is not None:
            journal.append({**row, "unix_s": round(time.time(), 1)})
            known.append(SplitTimes(*(float(row[name]) for name in SplitTimes._fields)))
        run.report()
        if run.elapsed_s() > until:
            break
    if known:
        sync_us, slowdown = fit_split_costs(known)
        record = replace(record, sync_us=round(sync_us, 3), slowdown=round(slowdown, 4))
    return replace(record, turn_us=round(turn_us(run.bench.sync(record.compute_units[-1]), record.cores), 3))


def fit_split_costs(times: Sequence[SplitTimes]) -> tuple[float, float]:
    """What splits add to the longer of their sides alone, as microseconds and as a share of it, neither negative.

    By least squares of the error relative to the whole: each split is the median of many runs.
    """
    from scipy.optimize import nnls

    cpu_us, gpu_us, split_us = np.array(times).T
    alone_us = np.maximum(cpu_us, gpu_us)
    terms = np.stack([np.ones_like(alone_us), alone_us], axis=1) / split_us[:, None]
    sync_us, slowdown = nnls(terms, (split_us - alone_us) / split_us)[0]
    return float(sync_us), float(slowdown)


def split_row(op: SplitOp, axis: Axis, sync: Sync, use: Resources) -> dict[str, Any] | None:
    """A split at the cut where both sides take about as long, and what it adds to the longer of them alone.

    A line of sync.csv; None for a layer without such a cut.
    """
    whole = LayerRig(op, sync, use)
    on_cpu = whole_on_cpu(whole)
    gpu, cpu = interleaved(
        [whole.timer(_all_of(op)), whole.timer(on_cpu)], 0.01, min_rounds=3, max_rounds=5, budget_s=0.1
    )
    cuts = aligned_cuts(op, axis, use)
    if not cuts:
        return None
    ideal = op.units(axis) * cpu.median_us / (cpu.median_us + gpu.median_us)
    cut = min(cuts, key=lambda c: abs(c - ideal))
    parts = op.part(axis, 0, cut).op, op.part(axis, cut, op.units(axis)).op
    gpu, cpu, split = interleaved(
        [
            LayerRig(parts[0], sync, use).timer(_all_of(parts[0])),
            LayerRig(parts[1], sync, use).timer(on_cpu),
            whole.timer(replace(on_cpu, axis=axis, cut=cut)),
        ],
        warm_up_s=0.02,
        max_rounds=25,
        budget_s=0.4,
    )
    return {
        **op_row(op),
        "axis": axis,
        "cut": cut,
        "threads": use.cpu_threads,
        "compute_units": sync.session.compute_units,
        "cpu_us": f"{cpu.median_us:.3f}",
        "gpu_us": f"{gpu.median_us:.3f}",
        "split_us": f"{split.median_us:.3f}",
        "sync_us": f"{max(split.median_us - max(cpu.median_us, gpu.median_us), 0.0):.3f}",
        "spread": f"{split.spread:.4f}",
        "repeats": split.repeats,
    }


def turn_us(sync: Sync, threads: int) -> float:
    """What a change of sides adds to layers that run wholly on one side or the other in turn."""
    op = Linear(1, 16, 16)
    use = Resources(sync.session.info.id, "", sync.session.traits, threads)
    rig = LayerRig(op, sync, use, copies=24)
    choices = {n.name: _all_of(op) if i % 2 else Choice("channel", 0) for i, n in enumerate(rig.graph.nodes)}
    plan = assemble(rig.graph, choices, None, use)
    alternating = replace(plan, tasks=tuple(_one_after_another(plan)))

    def run() -> float:
        rig.executor.load(alternating)
        start = time.perf_counter()
        rig.executor.run_loaded()
        return (time.perf_counter() - start) / rig.copies * 1e6

    gpu, cpu, both = interleaved(
        [rig.timer(_all_of(op)), rig.timer(Choice("channel", 0)), run], max_rounds=100, budget_s=0.3
    )
    return max(both.median_us - (gpu.median_us + cpu.median_us) / 2, 0.0)


def _one_after_another(plan: Plan) -> list[Task]:
    """The plan's tasks, each waiting for all that the other side was given before it."""
    given = {"cpu": 0, "gpu": 0}
    tasks = []
    for task in plan.tasks:
        tasks.append(replace(task, wait_for=given["gpu" if task.side == "cpu" else "cpu"]))
        given[task.side] += 1
    return tasks


def _split_shares(record: DeviceRecord) -> tuple[int, int]:
    """Compute units and threads of a split run: half of the cores each where the CPU plays the GPU."""
    if not record.emulated_gpu:
        return record.compute_units[-1], record.cores
    units = max((u for u in record.compute_units if 2 * u <= record.cores), default=record.compute_units[0])
    return units, max(1, record.cores - units)


def _folder(folder: Path, resume: bool) -> Path:
    """The folder, made if need be; ProfileError if it holds something and is not to be resumed."""
    try:
        if not resume and folder.is_dir() and any(folder.iterdir()):
            raise ProfileError(f"{folder} exists; go on with it by --resume, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfileError(f"cannot make the folder {folder}: {error.strerror}") from error
    return folder


def _describe(info: DeviceInfo, sync: str | None, seed: int) -> DeviceRecord:
    """What is known before anything is measured."""
    cores = cpu_cores()
    traits = info.traits(1)
    units = levels(min(info.compute_units, cores)) if info.emulated_gpu else (info.compute_units,)
    return DeviceRecord(
        device_id=info.id,
        device_name=info.name,
        platform=info.platform,
        driver=info.driver,
        device_type=info.type,
        emulated_gpu=info.emulated_gpu,
        vector_width=traits.vector_width,
        vector_registers=traits.vector_registers,
        cpu=traits.cpu,
        compute_units=units,
        threads=levels(cores),
        cpu_model=cpu_model(),
        cores=cores,
        sync=sync or "",
        sync_us=0.0,
        slowdown=0.0,
        turn_us=0.0,
        cpu_kernels=cpu_kernels(info),
        versions=_versions(),
        seed=seed,
    )


def _record(folder: Path, here: DeviceRecord, has_points: bool) -> DeviceRecord:
    """The folder's own record, if it has one and it is of this device; else ``here``."""
    if not (folder / DEVICE).exists():
        if has_points:
            raise ProfileError(f"{folder} has measurements but no {DEVICE}; profile into a new folder")
        return here
    known = DeviceRecord.load(folder)
    for name in ("device_name", "platform", "driver", "cpu_model", "cores", "compute_units", "threads", "cpu_kernels"):
        if getattr(known, name) != getattr(here, name):
            raise ProfileError(
                f"{folder} was measured with {name} {getattr(known, name)!r}, here it is {getattr(here, name)!r}; "
                "profile into a new folder"
            )
    if here.sync and here.sync != known.sync:
        raise ProfileError(f"{folder} was measured with sync {known.sync!r}, not {here.sync!r}; use a new folder")
    return known


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("coexec", "numpy", "pyopencl"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
