"""Compiled OpenCL programs, from this process's compiler or from an earlier process's.

Intel's CPU runtime compiles a program in 0.3 to 1 s and loads its binary in 2 to 8 ms (2026.22, December 2026). A
binary is only given to a driver if all that its code may depend on is the same: drivers check little, and may run
code that the processor does not have.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coexec.disk_cache import DiskCache, open_cache

FORMAT = 1
LIMIT_BYTES = 256 << 20
DRIVER_VARIABLES = ("CL_CONFIG_", "POCL_", "PYOPENCL_")
"""Beginnings of the names of environment variables that change what compilers make."""

_distrusted: set[str] = set()
"""Devices whose stored programs were wrong once."""


def kernel_cache() -> DiskCache:
    """Where the programs are kept."""
    return open_cache("kernels", LIMIT_BYTES)


def distrust(device: Any) -> None:
    """Build everything from source from now on: a stored program of this device gave wrong numbers."""
    _distrusted.add(_identity(device))


def build(context: Any, source: str, options: Sequence[str]) -> Any:
    """The built program of a context with one device. Raises pyopencl.Error if it does not compile."""
    import pyopencl as cl

    (device,) = context.devices
    identity = _identity(device)
    if identity in _distrusted or keeps_programs_itself(device):
        return _quiet_build(cl.Program(context, source), options)
    found, key = kernel_cache(), program_key(identity, source, options)
    stored = found.read(key)
    if stored is not None:
        try:
            # The options belong to the build of a binary too: a driver may need them to finish it.
            return _quiet_build(cl.Program(context, [device], [bytes(stored)]), options)
        except cl.Error:
            pass  # the driver does not take its own binary: it is built anew, and replaced
    program = _quiet_build(cl.Program(context, source), options)
    try:
        (binary,) = program.get_info(cl.program_info.BINARIES)
    except cl.Error:
        return program  # a driver that gives none
    if binary:
        found.write(key, [binary])
    return program


def keeps_programs_itself(device: Any) -> bool:
    """Whether the driver has a cache of its own on disk, which serves better than its binaries.

    PoCL 3.1 builds from its cache in 24 ms. Asking for a binary makes it compile a second, general form of every
    kernel, 0.8 to 1.2 s each; the form that is launched is not in it; and it crashes on a damaged one.
    """
    from pyopencl.characterize import has_src_build_cache

    return bool(has_src_build_cache(device))


def program_key(identity: str, source: str, options: Sequence[str]) -> bytes:
    """The key of a program: a hash of all that its binary depends on."""
    environment = sorted(entry for entry in os.environ.items() if entry[0].startswith(DRIVER_VARIABLES))
    parts = (FORMAT, identity, environment, source, list(options))
    return hashlib.sha256(repr(parts).encode()).digest()


def _quiet_build(program: Any, options: Sequence[str]) -> Any:
    """Build without pyopencl's own disk cache, and without its warning that the compiler said something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.build(list(options), cache_dir=False)


def _identity(device: Any) -> str:
    """What compilers look at, in words; the same for a device and its sub-devices."""
    import pyopencl as cl

    platform = device.platform
    names = (platform.name, platform.version, device.name, device.vendor, device.version, device.driver_version)
    # Two machines with one home folder may have processors of the same name and different instructions.
    cpu = _cpu_features() if device.type & cl.device_type.CPU else ""
    return repr((*names, device.extensions, cpu))


@cache
def _cpu_features() -> str:
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = set(Path("/proc/cpuinfo").read_text().splitlines())
    except OSError:
        return ""
    return "\n".join(sorted(line for line in lines if line.startswith(wanted)))
