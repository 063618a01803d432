"""A short profile of each device that is here: measured, resumed, trained on nothing it did not measure."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import pytest

from coexec.device import DeviceInfo, cpu_cores, find_devices
from coexec.errors import DeviceError, ProfileError
from coexec.kernels import LAYER_KERNELS
from coexec.profiling.measuring import Progress, profile
from coexec.profiling.profile_files import (
    DEVICE,
    MEASUREMENTS,
    SYNC_COSTS,
    DeviceRecord,
    known_implementations,
    read_measurements,
)

pytestmark = [pytest.mark.opencl, pytest.mark.filterwarnings("ignore:this machine is busy")]

DEVICES = [d for d in find_devices() if d.usable]
needs_device = pytest.mark.skipif(not DEVICES, reason="no usable OpenCL device here")


@needs_device
@pytest.mark.parametrize("info", DEVICES, ids=lambda d: d.id)
def test_a_short_profile_can_be_resumed(info: DeviceInfo, tmp_path: Path) -> None:
    folder, seen = tmp_path / "p", list[Progress]()

    def until_some_points(progress: Progress) -> None:
        """Ctrl-C, as soon as there is something to keep, however slow the machine is."""
        seen.append(progress)
        if progress.points >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(info.id, folder, budget_s=30, progress=until_some_points)
    rows = read_measurements(folder)
    assert seen[-1].points == len(rows) >= 4 and seen[-1].budget_s == 30
    record = DeviceRecord.load(folder)
    assert (record.device_name, record.driver, record.emulated_gpu) == (info.name, info.driver, info.emulated_gpu)
    assert record.sync and record.sync_us >= 0

    before = (folder / MEASUREMENTS).read_bytes()
    with pytest.raises(ProfileError, match="exists"):
        profile(info.id, folder, budget_s=2)
    assert (folder / MEASUREMENTS).read_bytes() == before
    with (folder / MEASUREMENTS).open("ab") as journal:
        journal.write(b"9,gpu,lin")

    with pytest.raises(KeyboardInterrupt):
        profile(info.id, folder, budget_s=30, resume=True, progress=until_some_points)
    after = read_measurements(folder)
    assert len(after) >= len(rows) + 4
    done = profile(None, folder, budget_s=0.1, resume=True)  # the device is that of the folder
    assert done.points == len(after) + done.added and set(done.short_of_points) >= {"cpu numpy_depthwise"}
    after = read_measurements(folder)
    assert (folder / MEASUREMENTS).read_bytes().startswith(before)
    lines = Counter((m.sample, m.side, m.implementation) for m in after)
    assert set(lines.values()) == {1}, "a workload was measured twice"
    assert len(DeviceRecord.load(folder).sessions) == 3

    for m in after:
        assert m.implementation in known_implementations(m.side)
        if m.side == "cpu" and m.implementation in LAYER_KERNELS:
            assert record.cpu_kernels is not None and m.threads in record.cpu_kernels.threads
        assert (m.threads in record.threads) if m.side == "cpu" else (m.compute_units in record.compute_units)
    with (folder / SYNC_COSTS).open() as file:
        for row in csv.DictReader(file):
            alone = max(float(row["cpu_us"]), float(row["gpu_us"]))
            extra = float(row["split_us"]) - alone
            assert float(row["sync_us"]) == pytest.approx(max(extra, 0), abs=0.01)


@needs_device
def test_another_devices_profile_is_not_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    profile(DEVICES[0].id, folder, budget_s=1)
    path = folder / DEVICE
    text = path.read_text()
    path.write_text(text.replace('"driver": "', '"driver": "other '))
    before = (folder / MEASUREMENTS).read_bytes()
    with pytest.raises(ProfileError, match="was measured with driver 'other"):
        profile(DEVICES[0].id, folder, budget_s=1, resume=True)
    assert (folder / MEASUREMENTS).read_bytes() == before


@needs_device
def test_a_busy_machine_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (cpu_cores() + 0.5, 0.0, 0.0))
    with pytest.warns(UserWarning, match="busy"):
        profile(DEVICES[0].id, tmp_path / "p", budget_s=0.1)
    assert DeviceRecord.load(tmp_path / "p").sessions[0]["load"] == cpu_cores() + 0.5


def test_unknown_devices_and_budgets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no OpenCL device 'nowhere:7'"):
        profile("nowhere:7", tmp_path / "p")
    with pytest.raises(ProfileError, match="budget"):
        profile(None, tmp_path / "p", budget_s=0)
    assert not (tmp_path / "p").exists()
