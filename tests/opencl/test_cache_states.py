"""Kernels give the same right numbers whatever state the caches are in: cold, warm, off, damaged, foreign.

Each state is tried in a process of its own, since drivers have failed on a cold compile only, and on the first run
of a cached binary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coexec.device import DeviceInfo

SCRIPT = Path(__file__).with_name("kernels_once.py")


class Caches:
    """Empty caches of coexec's and of the driver's own for one device."""

    def __init__(self, device: DeviceInfo, folder: Path) -> None:
        self.device, self.folder = device, folder
        for name in ("coexec", "pocl"):
            (folder / name).mkdir(mode=0o700)

    @property
    def programs(self) -> list[Path]:
        return sorted((self.folder / "coexec" / "kernels").glob("*"))

    def run(self, setting: str = "") -> dict[str, Any]:
        env = {
            **os.environ,
            "COEXEC_CACHE_DIR": setting or str(self.folder / "coexec"),
            "POCL_CACHE_DIR": str(self.folder / "pocl"),
        }
        done = subprocess.run(
            [sys.executable, str(SCRIPT), self.device.id], env=env, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["results"], "no kernel ran"
        for name, (error, _) in document["results"].items():
            assert error < 1e-5, name
        return document


@pytest.fixture(scope="module")
def cold(opencl_device: DeviceInfo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Caches, dict[str, Any]]:
    """Caches after one process, and what it gave."""
    caches = Caches(opencl_device, tmp_path_factory.mktemp("caches"))
    return caches, caches.run()


def test_cold_and_warm_give_the_same_bits(cold: tuple[Caches, dict[str, Any]]) -> None:
    caches, first = cold
    second = caches.run()
    assert second["results"] == first["results"]
    assert first["compiled"] > 0
    if not first["driver_keeps"]:
        assert second["compiled"] == 0
        assert len(caches.programs) == first["compiled"]
    else:
        assert caches.programs == []


def test_off_gives_the_same_bits(cold: tuple[Caches, dict[str, Any]]) -> None:
    caches, first = cold
    before = caches.programs
    off = caches.run("off")
    assert off["results"] == first["results"]
    assert off["compiled"] >= first["compiled"]
    assert caches.programs == before


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped bit": _flip,
    "cut short": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_programs_are_compiled_anew(cold: tuple[Caches, dict[str, Any]], damage: str) -> None:
    caches, first = cold
    if first["driver_keeps"]:
        pytest.skip("this driver keeps its programs itself")
    whole = {path: path.read_bytes() for path in caches.programs}
    for path, content in whole.items():
        path.write_bytes(DAMAGE[damage](content))
    again = caches.run()
    assert again == first
    assert {path: path.stat().st_size for path in caches.programs} == {p: len(c) for p, c in whole.items()}
    assert caches.run()["compiled"] == 0


def test_programs_under_other_names_are_not_taken(cold: tuple[Caches, dict[str, Any]]) -> None:
    """Whole files of the same driver, exchanged."""
    caches, first = cold
    if first["driver_keeps"]:
        pytest.skip("this driver keeps its programs itself")
    contents = [path.read_bytes() for path in caches.programs]
    for path, content in zip(caches.programs, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    assert caches.run() == first


def test_binaries_that_the_driver_refuses_are_replaced(cold: tuple[Caches, dict[str, Any]]) -> None:
    """What is stored whole, but is no program: as after an upgrade that kept the driver's version."""
    from coexec.disk_cache import DiskCache

    caches, first = cold
    if first["driver_keeps"]:
        pytest.skip("this driver keeps its programs itself")
    cache = DiskCache(caches.folder / "coexec" / "kernels", 1 << 30)
    for path in caches.programs:
        cache.write(bytes.fromhex(path.name), [b"no program of any driver" * 100])
    assert caches.run() == first
    assert caches.run()["compiled"] == 0
