"""The files of a profile folder: device.json, measurements.csv and sync.csv. profiles/README.md describes them.

Measurements are appended one line at a time and forced to disk, under a lock: a kill loses at most the line
that was being written, and two processes cannot write to one profile.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from coexec.backends.cpu import CPU_BY_NAME, CpuVariant
from coexec.device import CpuKernels, VectorRegisters, VectorWidth
from coexec.documents import Count, Duration, Shape, Size, Workers, checked, parse, read_bytes
from coexec.errors import ProfileError
from coexec.kernels import LAYER_KERNELS
from coexec.kernels.variant import GpuTraits, KernelVariant
from coexec.ops.activation import ACTIVATIONS
from coexec.ops.base import Axis, Columns, SplitOp
from coexec.ops.conv2d import Conv2d, output_height, output_width
from coexec.ops.linear import Linear
from coexec.ops.split_ops import SPLIT_OPS
from coexec.plan import Side
from coexec.whole_file import replacing

SCHEMA = 1
DEVICE, MEASUREMENTS, SYNC_COSTS = "device.json", "measurements.csv", "sync.csv"

OP_COLUMNS: dict[str, tuple[str, ...]] = {
    cls.kind: tuple(f.name for f in fields(cls) if f.name != "activation") for cls in (Linear, Conv2d)
}
"""Integer columns of each kind of op: the fields of its description."""

_ALL_OP_COLUMNS = tuple(dict.fromkeys(name for names in OP_COLUMNS.values() for name in names))
HEADER = (
    *("sample", "side", "kind", "implementation", "threads", "compute_units"),
    *_ALL_OP_COLUMNS,
    *("activation", "median_us", "spread", "repeats", "unix_s"),
)
SYNC_HEADER = (
    *("kind", *_ALL_OP_COLUMNS, "activation", "axis", "cut", "threads", "compute_units"),
    *("cpu_us", "gpu_us", "split_us", "sync_us", "spread", "repeats", "unix_s"),
)

Kind = Literal["linear", "conv2d"]
Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,63}\\Z")]
"""Of an implementation, which need not be one of this version's."""
Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[float, Meta(ge=1e-3, le=1e12)]
"""Microseconds that something took; the files have three decimals."""
Spread = Annotated[float, Meta(ge=0, le=1e6)]
Flag = Annotated[int, Meta(ge=0, le=1)]
SampleNumber = Annotated[int, Meta(ge=0, le=10**9)]

MAX_FLOPS, MAX_BYTES = 10**15, 2**40
"""A layer beyond these was not measured: it would take hours, or has sizes that are damaged."""


class _Sizes(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """The op's columns of a line."""

    bias: Flag
    residual: Flag


class _LinearSizes(_Sizes, tag="linear"):
    M: Size
    K: Size
    N: Size


class _Conv2dSizes(_Sizes, tag="conv2d"):
    N: Size
    C_in: Size
    H: Size
    W: Size
    C_out: Size
    KH: Size
    KW: Size
    stride_h: Size
    stride_w: Size
    pad_top: Count
    pad_left: Count
    pad_bottom: Count
    pad_right: Count
    dilation_h: Size
    dilation_w: Size
    groups: Size


class _MeasuredCells(msgspec.Struct, forbid_unknown_fields=True):
    """The other columns of a line of measurements.csv."""

    sample: SampleNumber
    side: Side
    implementation: Name
    activation: str
    median_us: Positive
    spread: Spread
    repeats: Size
    unix_s: Duration
    threads: Workers | UnsetType = UNSET
    compute_units: Workers | UnsetType = UNSET


class _SyncCells(msgspec.Struct, forbid_unknown_fields=True):
    """The other columns of a line of sync.csv."""

    activation: str
    axis: Axis
    cut: Size
    threads: Workers
    compute_units: Workers
    cpu_us: Positive
    gpu_us: Positive
    split_us: Positive
    sync_us: Duration
    spread: Spread
    repeats: Size
    unix_s: Duration


Cells = TypeVar("Cells", _MeasuredCells, _SyncCells)


@dataclass(frozen=True)
class Measurement:
    """One line of measurements.csv: a part alone on one side.

    Attributes:
        where: file and line, for messages.
        sample: number of its workload in the sequence that the profile measures.
        side: "cpu" or "gpu".
        columns: the op's integer fields and its activation code, as one row of columns.
        threads: of the CPU side (0 for the GPU side); compute_units the other way round.
        median_us, spread, repeats: as in `coexec.measure.Timing`.
    """

    where: str
    sample: int
    side: Side
    kind: Kind
    implementation: str
    columns: Columns = field(repr=False)
    threads: int
    compute_units: int
    median_us: float
    spread: float
    repeats: int


class SplitTimes(NamedTuple):
    """Of a line of sync.csv, in microseconds: each side's part alone, and both at once."""

    cpu_us: float
    gpu_us: float
    split_us: float


class SessionRecord(TypedDict, total=False):
    """One call of `coexec profile`: when it began (ISO date, UTC), the machine's load then, seconds and points."""

    started: str
    load: Annotated[float, Meta(ge=0, le=1e6)]
    seconds: Duration
    points: Count


@dataclass(frozen=True)
class DeviceRecord:
    """device.json: whose measurements these are, and what a hand-over costs there. The annotations are its schema.

    Attributes:
        device_id, device_name, platform, driver, device_type: as the OpenCL device presents itself.
        emulated_gpu: whether it is the CPU that plays the GPU.
        vector_width, vector_registers, cpu: the device's traits that the launch rules read.
        compute_units, threads: the numbers of compute units and CPU threads that were measured.
        cpu_model, cores: of the CPU side.
        sync: strategy; ``sync_us`` what a hand-over adds to a split layer, ``slowdown`` by which share either side
            is slower while the other runs; ``turn_us`` what a change of sides adds where layers run wholly on one side
            or the other, each on all of its cores.
        cpu_kernels: what ran kernels on the CPU side; None if nothing did.
        versions: of Python and of the packages that matter.
        seed: of the sequence of workloads.
        sessions: one entry per call of `coexec profile`.
    """

    device_id: Text
    device_name: Text
    platform: Text
    driver: str
    device_type: Annotated[str, Meta(pattern="^(cpu|gpu|accelerator)\\Z")]
    emulated_gpu: bool
    vector_width: VectorWidth
    vector_registers: VectorRegisters
    cpu: bool
    compute_units: Annotated[tuple[Workers, ...], Meta(min_length=1)]
    threads: Annotated[tuple[Workers, ...], Meta(min_length=1)]
    cpu_model: str
    cores: Workers
    sync: str
    sync_us: Duration
    slowdown: Annotated[float, Meta(ge=0, le=100)]
    turn_us: Duration
    cpu_kernels: CpuKernels | None
    versions: Mapping[str, str]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    sessions: tuple[SessionRecord, ...] = ()

    def traits(self, compute_units: int) -> GpuTraits:
        """The launch rules' view of the device when so many of its compute units are used."""
        return GpuTraits(compute_units, self.vector_width, self.vector_registers, self.cpu)

    def save(self, folder: Path) -> None:
        """Write device.json in one step."""
        write_json(folder / DEVICE, {"schema": SCHEMA, **asdict(self)})

    @staticmethod
    def load(folder: Path) -> DeviceRecord:
        """Read device.json; ProfileError if it is missing, damaged or of another schema."""
        path = folder / DEVICE
        record = read_json(path, DeviceRecord, "profile again")
        emulated = record.device_type == "cpu"
        problem = ""
        if (record.emulated_gpu, record.cpu) != (emulated, emulated):
            problem = f"a device of type {record.device_type} with emulated_gpu {record.emulated_gpu}, cpu {record.cpu}"
        elif record.cpu_kernels is not None and not set(record.cpu_kernels.threads) <= set(range(1, record.cores + 1)):
            problem = f"cores is {record.cores}, but kernels ran on {max(record.cpu_kernels.threads)} threads"
        elif record.cores != max(record.threads):
            problem = f"cores is {record.cores}, but up to {max(record.threads)} threads were measured"
        elif emulated and max(record.compute_units) > record.cores:
            problem = f"cores is {record.cores}, but up to {max(record.compute_units)} compute units were measured"
        if problem:
            raise ProfileError(f"{path} is damaged ({problem}); profile again")
        return record


class Journal:
    """A CSV file that is appended to line by line, held under an exclusive lock while open.

    ``resume`` goes on with an existing file, after dropping half a line that a kill left at its end;
    without it an existing file is a ProfileError.
    """

    def __init__(self, path: Path, header: Sequence[str], resume: bool) -> None:
        self.path = path
        self._header = tuple(header)
        self._file = self._open(resume)
        try:
            self._lock()
            self._repair()
        except BaseException:
            self._file.close()
            raise

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line and force it to disk; columns that ``row`` lacks stay empty."""
        unknown = set(row) - set(self._header)
        if unknown:
            raise ValueError(f"{self.path.name} has no column {sorted(unknown)[0]!r}")
        self._write(_line([row.get(name, "") for name in self._header]))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, resume: bool) -> IO[bytes]:
        # "a+" neither truncates nor fails when another process creates the file at the same moment: the lock decides.
        try:
            return self.path.open("a+b" if resume else "x+b")
        except FileExistsError as error:
            raise ProfileError(f"{self.path} exists; go on with it by --resume, or choose another folder") from error
        except OSError as error:
            raise ProfileError(f"cannot write {self.path}: {error.strerror}") from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ProfileError(
                f"another process is measuring into {self.path.parent}; wait for it or choose another folder"
            ) from error

    def _repair(self) -> None:
        """Cut off half a line at the end, write the header into an empty file, refuse a foreign one."""
        self._file.seek(0)
        content = self._file.read()
        header = _line(self._header)
        if header.startswith(content):  # new, or killed while its first line was written
            self._file.truncate(0)
            self._write(header)
            return
        whole = _whole_lines(content, len(self._header))
        if not whole.startswith(header):
            raise ProfileError(f"{self.path} has other columns than this version writes; profile into a new folder")
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        self._file.seek(0, os.SEEK_END)
        if not whole.endswith(b"\n"):
            self._write(b"\n")

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ProfileError(f"cannot write {self.path}: {error.strerror}") from error


def op_row(op: SplitOp) -> dict[str, Any]:
    """The op's part of a line: its kind, fields and activation."""
    assert isinstance(op, Linear | Conv2d)
    values = {name: int(column[0]) for name, column in op.columns().items()}
    return {"kind": op.kind, **values, "activation": op.activation.kind}


def read_measurements(folder: Path) -> list[Measurement]:
    """All whole lines of measurements.csv; half a line at the end is left out.

    Raises ProfileError that names the first line that cannot be a measurement, and changes nothing: what is to
    become of it is for people to decide, and all other lines stay good.
    """
    return [_measurement(where, row) for where, row in _rows(folder / MEASUREMENTS, HEADER)]


def read_sync_costs(folder: Path) -> list[SplitTimes]:
    """The splits in sync.csv; none if there is no such file."""
    path = folder / SYNC_COSTS
    if not path.exists():
        return []
    cells = (_cells(where, row, _SyncCells)[2] for where, row in _rows(path, SYNC_HEADER))
    return [SplitTimes(c.cpu_us, c.gpu_us, c.split_us) for c in cells]


def bad_line(where: str, problem: object) -> ProfileError:
    """The refusal of a line that cannot be a measurement."""
    return ProfileError(f"{where}: {problem}; delete that line")


def _rows(path: Path, header: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Each whole line: where it is, and its cells that are not empty."""
    content = _whole_lines(read_bytes(path, f"{path} (is that a profile folder?)", ProfileError), len(header))
    # What is no text becomes a character that no column may have. The files know no quotes.
    lines = [line.rstrip("\r").split(",") for line in content.decode(errors="replace").split("\n")]
    if lines[0] != list(header):
        raise ProfileError(f"{path} has no header, or other columns than this version reads; profile again")
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        where = f"{path} line {number}"
        if cells == [""] and number == len(lines):
            break  # the end of the last line
        if len(cells) != len(header):
            raise bad_line(where, f"it has {len(cells)} of {len(header)} columns")
        rows.append((where, {name: cell for name, cell in zip(header, cells, strict=True) if cell}))
    return rows


def _whole_lines(content: bytes, columns: int) -> bytes:
    """The content without half a line that a kill left at its end.

    A last line with all its columns is whole even without a line end, which an editor may have taken away. (Should
    a kill have cut the time of day in the last column short: nothing is computed from it.)
    """
    end = content.rfind(b"\n") + 1
    cells = content[end:].split(b",")
    return content if len(cells) == columns and cells[-1][-1:].isdigit() else content[:end]


def _cells(where: str, row: Mapping[str, str], shape: type[Cells]) -> tuple[Kind, Columns, Cells]:
    """A line's kind of op, its op as columns, and its other cells; ProfileError if any makes no sense."""
    op = {name: cell for name, cell in row.items() if name in ("kind", *_ALL_OP_COLUMNS)}
    others = {name: cell for name, cell in row.items() if name not in op}
    try:
        sizes = msgspec.convert(op, _LinearSizes | _Conv2dSizes, strict=False)
        cells = msgspec.convert(others, shape, strict=False)
    except msgspec.ValidationError as error:
        raise bad_line(where, error) from error
    kind: Kind = "linear" if isinstance(sizes, _LinearSizes) else "conv2d"
    values = msgspec.structs.asdict(sizes)
    known = cells.activation in ACTIVATIONS
    problem = _misfit(kind, values) if known else f"there is no activation {cells.activation!r}"
    if problem:
        raise bad_line(where, problem)
    columns = {name: np.array([values[name]], np.int64) for name in OP_COLUMNS[kind]}
    columns["activation"] = np.array([list(ACTIVATIONS).index(cells.activation)], np.int64)
    return kind, columns, cells


def _misfit(kind: Kind, values: Mapping[str, int]) -> str:
    """Why these sizes make no layer; "" if they make one."""
    # As Python's ints: the product of damaged sizes must not wrap around.
    c = {name: np.array([value], object) for name, value in values.items()}
    if kind == "conv2d":
        if values["C_in"] % values["groups"] or values["C_out"] % values["groups"]:
            return f"{values['groups']} groups do not divide {values['C_in']} and {values['C_out']} channels"
        if min(output_height(c)[0], output_width(c)[0]) < 1:
            return "the kernel is larger than the padded input"
    matmul = SPLIT_OPS[kind].matmul(c)
    if matmul.flops[0] > MAX_FLOPS or matmul.traffic_bytes[0] > MAX_BYTES:
        return "the layer is too large to have been measured"
    return ""


def _measurement(where: str, row: Mapping[str, str]) -> Measurement:
    kind, columns, cells = _cells(where, row, _MeasuredCells)
    if (cells.threads is not UNSET, cells.compute_units is not UNSET) != (cells.side == "cpu", cells.side == "gpu"):
        raise bad_line(where, "a line has threads on side cpu and compute_units on side gpu")
    if not fits_implementation(cells.side, kind, cells.implementation):
        raise bad_line(where, f"{cells.implementation} computes no {kind} on side {cells.side}")
    return Measurement(
        where=where,
        sample=cells.sample,
        side=cells.side,
        kind=kind,
        implementation=cells.implementation,
        columns=columns,
        threads=cells.threads or 0,
        compute_units=cells.compute_units or 0,
        median_us=cells.median_us,
        spread=cells.spread,
        repeats=cells.repeats,
    )


def known_implementations(side: Side) -> Mapping[str, CpuVariant | KernelVariant]:
    """This version's implementations of a side: kernels, and on the CPU side NumPy's routines."""
    return {**LAYER_KERNELS, **CPU_BY_NAME} if side == "cpu" else LAYER_KERNELS


def fits_implementation(side: Side, kind: Kind, name: str) -> bool:
    """Whether an implementation may compute ops of this kind; of another version's nothing is known."""
    known = known_implementations(side).get(name)
    if known is None:
        return name not in known_implementations("cpu")
    return known.kind == kind


def read_json(path: Path, shape: type[Shape], remedy: str) -> Shape:
    """A profile's JSON file as an instance of ``shape``, or ProfileError."""
    content = read_bytes(path, f"{path} (is that a profile folder?)", ProfileError)
    return checked(parse(content, str(path), ProfileError, remedy), shape, SCHEMA, str(path), ProfileError, remedy)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file in one step: it is replaced whole or stays as it was."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, or raise ProfileError."""
    with replacing(path, ProfileError) as file:
        file.write(text.encode())


def _line(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
