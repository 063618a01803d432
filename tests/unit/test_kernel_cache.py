"""What the cache of compiled programs asks of a driver, on one that is made up: no OpenCL needed."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from coexec import disk_cache, kernel_cache


class Refused(Exception):
    """The driver's error."""


class Device:
    """A device, or (of the same names) a sub-device of it."""

    type = 2

    def __init__(self, name: str = "made up", driver: str = "1") -> None:
        self.name, self.driver_version = name, driver
        self.vendor, self.version, self.extensions = "nobody", "OpenCL 3.0", ""
        self.platform = types.SimpleNamespace(name="paper", version="OpenCL 3.0 paper 1")


class Context:
    def __init__(self, device: Device) -> None:
        self.devices = [device]


class Program:
    """From a source or from a binary, which is the word "binary" and the source."""

    compiled: ClassVar[list[str]] = []
    gives_binaries = True
    takes_binaries = True

    def __init__(self, context: Context, *made_of: Any) -> None:
        self.made_of = made_of

    def build(self, options: list[str], cache_dir: bool) -> Program:
        assert cache_dir is False
        if len(self.made_of) == 1:
            self.code = f"{self.made_of[0]} {' '.join(options)}"
            self.compiled.append(self.code)
            return self
        (binary,) = self.made_of[1]
        if not binary.startswith(b"binary ") or not self.takes_binaries:
            raise Refused("INVALID_BINARY")
        self.code = binary.decode().removeprefix("binary ")
        return self

    def get_info(self, what: str) -> list[bytes]:
        if not self.gives_binaries:
            raise Refused("INVALID_OPERATION")
        return [f"binary {self.code}".encode()]


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.SimpleNamespace]:
    """The made up driver in pyopencl's place, and an empty cache."""
    monkeypatch.setenv("COEXEC_CACHE_DIR", str(tmp_path))
    fake = types.SimpleNamespace(
        Error=Refused,
        Program=Program,
        device_type=types.SimpleNamespace(CPU=2),
        program_info=types.SimpleNamespace(BINARIES="binaries"),
    )
    monkeypatch.setitem(sys.modules, "pyopencl", fake)  # type: ignore[arg-type]
    knows = types.SimpleNamespace(has_src_build_cache=lambda device: device.name == "keeper" or None)
    monkeypatch.setitem(sys.modules, "pyopencl.characterize", knows)  # type: ignore[arg-type]
    monkeypatch.setattr(Program, "compiled", [])
    yield fake
    disk_cache._opened.cache_clear()
    kernel_cache._distrusted.clear()


def build(source: str = "source", options: tuple[str, ...] = ("-D1",), device: Device | None = None) -> str:
    code: str = kernel_cache.build(Context(device or Device()), source, options).code
    return code


def test_a_program_is_compiled_once() -> None:
    assert build() == build() == "source -D1"
    assert Program.compiled == ["source -D1"]


def test_sources_and_options_are_kept_apart() -> None:
    wanted = [("a", ("-D1",)), ("a", ("-D2",)), ("b", ("-D1",)), ("a", ()), ("a", ("-D1", "-D2")), ("a", ("-D1 -D2",))]
    for _ in range(2):
        assert [build(source, options) for source, options in wanted] == [f"{s} {' '.join(o)}" for s, o in wanted]
    assert len(Program.compiled) == len(wanted)


@pytest.mark.parametrize("what", ["name", "driver_version", "vendor", "version", "extensions"])
def test_another_device_or_driver_compiles_again(what: str) -> None:
    other = Device()
    setattr(other, what, "another")
    build()
    build(device=other)
    assert len(Program.compiled) == 2


def test_another_platform_processor_or_setting_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    upgraded = Device()
    upgraded.platform.version = "OpenCL 3.0 paper 2"
    build(device=upgraded)
    monkeypatch.setattr(kernel_cache, "_cpu_features", lambda: "flags: avx2")
    build()
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", "corei7")
    build()
    assert len(Program.compiled) == 4
    monkeypatch.setenv("UNRELATED", "1")
    build()
    assert len(Program.compiled) == 4


def test_what_the_driver_refuses_is_compiled_anew_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(Program, "takes_binaries", False)
    assert build() == "source -D1"
    monkeypatch.undo()


def test_a_driver_without_binaries_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "gives_binaries", False)
    assert build() == build() == "source -D1"
    assert len(Program.compiled) == 2


def test_a_driver_with_a_cache_of_its_own_gets_the_source(tmp_path: Path) -> None:
    keeper = Device("keeper")
    build(device=keeper)
    build(device=keeper)
    assert len(Program.compiled) == 2
    assert not list(tmp_path.rglob("kernels/*"))


def test_after_a_wrong_result_nothing_stored_is_used() -> None:
    build()
    kernel_cache.distrust(Device())
    build()
    build(device=Device("another"))
    assert len(Program.compiled) == 3


def test_a_cache_that_is_off_or_unusable_only_costs_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COEXEC_CACHE_DIR", "off")
    assert build() == build() == "source -D1"
    (tmp_path / "file").write_text("precious")
    monkeypatch.setenv("COEXEC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="starts stay slow"):
        assert build() == "source -D1"
    assert len(Program.compiled) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
