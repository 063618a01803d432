"""OpenCL kernels, a .cl file and a rules file each, and the table that names them.

A new variant is its two files and one line in KERNELS; the first that supports an op is used. Tests,
self-tests, profiling and benchmarks run over this table.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from coexec.kernels.conv2d_depthwise import Conv2dDepthwise
from coexec.kernels.conv2d_direct import Conv2dDirect
from coexec.kernels.linear_tile import LinearTile
from coexec.kernels.variant import KernelVariant

KERNELS: dict[str, tuple[KernelVariant, ...]] = {
    "conv2d": (Conv2dDepthwise(), Conv2dDirect()),
    "linear": (LinearTile(),),
}

KERNEL_BY_NAME: dict[str, KernelVariant] = {k.name: k for variants in KERNELS.values() for k in variants}


@cache
def source(name: str) -> str:
    """Whole OpenCL C source of a kernel: shared headers, then its own file."""
    folder = files(__name__)
    return "\n".join((folder / f"{part}.cl").read_text() for part in ("sync", "common", name))
