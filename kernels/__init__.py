"""OpenCL kernels, a .cl file and a rules file each, and the table that names them, by kind of op.

A new variant is its two files and one line in KERNELS; the first that supports and suits an op is used. Tests,
self-tests, profiling and benchmarks run over this table.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from coexec.kernels.attention_tile import AttentionTile
from coexec.kernels.conv2d_depthwise import Conv2dDepthwise
from coexec.kernels.conv2d_direct import Conv2dDirect
from coexec.kernels.conv2d_winograd import Conv2dWinograd
from coexec.kernels.linear_tile import LinearTile
from coexec.kernels.pool2d_row import Pool2dRow
from coexec.kernels.row_norm_two_pass import RowNormTwoPass
from coexec.kernels.variant import KernelVariant, LayerVariant

KERNELS: dict[str, tuple[KernelVariant, ...]] = {
    "conv2d": (Conv2dDepthwise(), Conv2dWinograd(), Conv2dDirect()),
    "linear": (LinearTile(),),
    "pool2d": (Pool2dRow(),),
    "row_norm": (RowNormTwoPass(),),
    "attention": (AttentionTile(),),
}

KERNEL_BY_NAME: dict[str, KernelVariant] = {k.name: k for variants in KERNELS.values() for k in variants}

LAYER_KERNELS: dict[str, KernelVariant] = {
    name: kernel for name, kernel in KERNEL_BY_NAME.items() if isinstance(kernel, LayerVariant)
}
"""Those of the ops that are split, which profiles measure and predictors predict."""


@cache
def source(name: str) -> str:
    """Whole OpenCL C source of a kernel: shared headers, then its own file."""
    folder = files(__name__)
    return "\n".join((folder / f"{part}.cl").read_text() for part in ("sync", "common", name))
