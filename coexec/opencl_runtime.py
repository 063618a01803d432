"""Makes OpenCL drivers visible before pyopencl's loader looks for them, once per process.

The loader in pyopencl's wheels reads a folder of .icd files at its first call. Drivers installed from
PyPI (the extra ``cpu-device``) bring .icd files that name a path of the machine they were built on, so
a folder is written for the loader: the system's own files, and one per driver found in this environment.
A user's OCL_ICD_VENDORS is left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from coexec.errors import DeviceError

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
PIP_DRIVERS = {"intel-opencl-rt": "libintelocl.so"}
"""PyPI distribution -> the driver library in it."""

_lock = threading.Lock()
_opened_in: set[int] = set()
"""The process that has opened OpenCL."""
_workers: set[int] = set()
_pinned: dict[int, frozenset[int]] = {}


def check_process() -> None:
    """Raise DeviceError in a process that was forked from one which had opened OpenCL: drivers don't survive that."""
    if _opened_in and _opened_in != {os.getpid()}:
        raise DeviceError(
            "this process was forked after OpenCL had been opened; start it by spawning, for example "
            "multiprocessing.get_context('spawn'), or fork before the first use of coexec"
        )


def platforms() -> list[Any]:
    """OpenCL platforms; an empty list when there are none. Safe to call from several threads."""
    check_process()
    _opened_in.add(os.getpid())
    with _lock, adopting_threads():
        return list(_platforms())


@contextmanager
def adopting_threads() -> Iterator[None]:
    """Threads that appear inside are taken to be an OpenCL driver's workers.

    Drivers start them when they like: at the first look at the platforms, while building, while running.
    """
    before = _thread_ids()
    try:
        yield
    finally:
        new = _thread_ids() - before
        if new:
            _workers.update(new - {thread.native_id for thread in threading.enumerate()})


def worker_threads() -> set[int]:
    """Ids of the OpenCL drivers' worker threads in this process that are still alive."""
    return _workers & _thread_ids()


def pin_workers(cores: set[int]) -> None:
    """Let the drivers' workers run on these cores only."""
    wanted = frozenset(cores)
    for thread in worker_threads():
        if _pinned.get(thread) != wanted:
            set_affinity(thread, cores)
            _pinned[thread] = wanted


def set_affinity(thread: int, cores: set[int]) -> None:
    """Let a thread (0: the calling one) run on these cores only, where that is allowed."""
    with suppress(OSError):  # the thread ended, or a container forbids it: only speed depends on it
        os.sched_setaffinity(thread, cores)


def _thread_ids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208 - five times faster than pathlib


@cache
def _platforms() -> tuple[Any, ...]:
    vendors = None if "OCL_ICD_VENDORS" in os.environ else _vendors_folder()
    # pyopencl generates a function for every kernel object and keeps it in a database that all processes share: one
    # that writes there holds all others up, for many seconds if there are several.
    own = {"PYOPENCL_NO_CACHE": "1"} if "PYOPENCL_NO_CACHE" not in os.environ else {}
    try:
        if vendors is not None:
            own["OCL_ICD_VENDORS"] = str(vendors)
        os.environ.update(own)
        import pyopencl

        try:
            return tuple(pyopencl.get_platforms())
        except pyopencl.LogicError:
            return ()
    except ImportError:
        return ()
    finally:
        for name in own:
            del os.environ[name]
        if vendors is not None:
            shutil.rmtree(vendors, ignore_errors=True)


def pip_drivers() -> dict[str, Path]:
    """Driver libraries that this Python environment carries: distribution -> absolute path."""
    found = {}
    for distribution, library in PIP_DRIVERS.items():
        try:
            listed = metadata.distribution(distribution).files or []
        except metadata.PackageNotFoundError:
            continue
        paths = [Path(str(f.locate())).resolve() for f in listed if f.name == library]
        if paths and paths[0].is_file():
            found[distribution] = paths[0]
    return found


def _vendors_folder() -> Path | None:
    """A private folder for the loader, or None when the system's own is all there is."""
    drivers = pip_drivers()
    if not drivers:
        return None
    folder = Path(tempfile.mkdtemp(prefix="coexec-icd-"))
    if SYSTEM_VENDORS.is_dir():
        for icd in SYSTEM_VENDORS.glob("*.icd"):
            shutil.copyfile(icd, folder / icd.name)
    for distribution, library in drivers.items():
        (folder / f"{distribution}.icd").write_text(f"{library}\n")
    return folder
