"""The files of a profile folder: device.json, measurements.csv and sync.csv. profiles/README.md describes them.

Measurements are appended one line at a time and forced to disk, under a lock: a kill loses at most the line
that was being written, and two processes cannot write to one profile.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from coexec.errors import ProfileError
from coexec.kernels.variant import GpuTraits
from coexec.ops.activation import ACTIVATIONS
from coexec.ops.base import Columns, SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
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


@dataclass(frozen=True)
class Measurement:
    """One line of measurements.csv: a part alone on one side.

    Attributes:
        sample: number of its workload in the sequence that the profile measures.
        side: "cpu" or "gpu".
        columns: the op's integer fields and its activation code, as one row of columns.
        threads: of the CPU side (0 for the GPU side); compute_units the other way round.
        median_us, spread, repeats: as in `coexec.measure.Timing`.
    """

    sample: int
    side: str
    kind: str
    implementation: str
    columns: Columns = field(repr=False)
    threads: int
    compute_units: int
    median_us: float
    spread: float
    repeats: int


@dataclass(frozen=True)
class DeviceRecord:
    """device.json: whose measurements these are, and what a hand-over costs there.

    Attributes:
        device_id, device_name, platform, driver, device_type: as the OpenCL device presents itself.
        emulated_gpu: whether it is the CPU that plays the GPU.
        vector_width, vector_registers, cpu: the device's traits that the launch rules read.
        compute_units, threads: the numbers of compute units and CPU threads that were measured.
        cpu_model, cores: of the CPU side.
        sync: strategy; ``sync_us`` what a hand-over adds to a split layer; ``hand_over_us`` the time from
            one side's signal to the other side's next work, there and back, halved.
        versions: of Python and of the packages that matter.
        seed: of the sequence of workloads.
        sessions: when measuring began (ISO date, UTC), the machine's load then, seconds and points.
    """

    device_id: str
    device_name: str
    platform: str
    driver: str
    device_type: str
    emulated_gpu: bool
    vector_width: int
    vector_registers: int
    cpu: bool
    compute_units: tuple[int, ...]
    threads: tuple[int, ...]
    cpu_model: str
    cores: int
    sync: str
    sync_us: float
    hand_over_us: float
    versions: Mapping[str, str]
    seed: int
    sessions: tuple[Mapping[str, Any], ...] = ()

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
        data = read_json(path)
        check_schema(path, data)
        try:
            values = {f.name: data[f.name] for f in fields(DeviceRecord)}
            for name in ("compute_units", "threads"):
                values[name] = tuple(int(v) for v in values[name])
            values["sessions"] = tuple(dict(s) for s in values["sessions"])
            values["versions"] = dict(values["versions"])
            for name in ("vector_width", "vector_registers", "cores", "seed"):
                values[name] = int(values[name])
            for name in ("sync_us", "hand_over_us"):
                values[name] = float(values[name])
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"{path} is damaged ({type(error).__name__}: {error}); profile again") from error
        if not all(math.isfinite(v) and v >= 0 for v in (values["sync_us"], values["hand_over_us"])):
            raise ProfileError(f"{path} is damaged (sync_us is {values['sync_us']}); profile again")
        return DeviceRecord(**values)


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
        whole = content[: content.rfind(b"\n") + 1]
        header = _line(self._header)
        if whole and not whole.startswith(header):
            raise ProfileError(f"{self.path} has other columns than this version writes; profile into a new folder")
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        self._file.seek(0, os.SEEK_END)
        if not whole:
            self._write(header)

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

    Raises ProfileError that names the line for values that cannot be: no number, NaN, a time <= 0, a
    negative size, an unknown kind, side or activation.
    """
    return [_measurement(folder / MEASUREMENTS, i, row) for i, row in _rows(folder / MEASUREMENTS, HEADER)]


def read_sync_costs(folder: Path) -> list[dict[str, str]]:
    """The lines of sync.csv as text; none if there is no such file."""
    path = folder / SYNC_COSTS
    return [row for _, row in _rows(path, SYNC_HEADER)] if path.exists() else []


def _rows(path: Path, header: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells of each whole line."""
    text = read_text(path)
    lines = text[: text.rfind("\n") + 1].splitlines()
    if not lines or lines[0].split(",") != list(header):
        raise ProfileError(f"{path} has no header, or other columns than this version reads; profile again")
    rows = []
    for number, cells in enumerate(csv.reader(lines[1:]), start=2):
        if len(cells) != len(header):
            raise ProfileError(f"{path} line {number} has {len(cells)} of {len(header)} columns; delete that line")
        rows.append((number, dict(zip(header, cells, strict=True))))
    return rows


def _measurement(path: Path, line: int, row: Mapping[str, str]) -> Measurement:
    problem = ""
    try:
        kind, side = row["kind"], row["side"]
        columns = {name: np.array([int(row[name])], np.int64) for name in OP_COLUMNS[kind]}
        columns["activation"] = np.array([list(ACTIVATIONS).index(row["activation"])], np.int64)
        made = Measurement(
            sample=int(row["sample"]),
            side=side,
            kind=kind,
            implementation=row["implementation"],
            columns=columns,
            threads=int(row["threads"] or 0),
            compute_units=int(row["compute_units"] or 0),
            median_us=float(row["median_us"]),
            spread=float(row["spread"]),
            repeats=int(row["repeats"]),
        )
        workers = made.threads if side == "cpu" else made.compute_units
        if not (math.isfinite(made.median_us) and made.median_us > 0):
            problem = f"median_us is {row['median_us']}"
        elif side not in ("cpu", "gpu") or workers < 1:
            problem = f"side {side!r} with {workers} workers makes no sense"
        elif min(int(c[0]) for c in columns.values()) < 0:
            problem = "a size is negative"
        elif any(columns[name][0] < 1 for name in OP_COLUMNS[kind] if name not in _MAY_BE_ZERO):
            problem = "a size is 0"
    except (KeyError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise ProfileError(f"{path} line {line}: {problem}; delete that line, then train again")
    return made


_MAY_BE_ZERO = ("bias", "residual", "pad_top", "pad_left", "pad_bottom", "pad_right")


def read_text(path: Path) -> str:
    """Content of a profile's file, or ProfileError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ProfileError(f"cannot read {path}: {reason}; is that a profile folder?") from error


def read_json(path: Path) -> dict[str, Any]:
    """Content of a profile's JSON file, or ProfileError."""
    try:
        data = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ProfileError(f"{path} is damaged (no JSON: {error}); make it again") from error
    if not isinstance(data, dict):
        raise ProfileError(f"{path} is damaged (not a JSON object); make it again")
    return data


def check_schema(path: Path, data: Mapping[str, Any]) -> None:
    """ProfileError unless the file is of this version's schema."""
    found = data.get("schema")
    if found == SCHEMA:
        return
    if isinstance(found, int) and found > SCHEMA:
        raise ProfileError(f"{path} has schema {found}, this version reads {SCHEMA}; upgrade coexec")
    raise ProfileError(f"{path} has schema {found!r}, this version reads {SCHEMA}; profile again")


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
