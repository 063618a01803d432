"""A device whose latencies are formulas, written as a profile folder like a measured one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from coexec.backends.cpu import variant_for
from coexec.device import CpuKernels
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.ops.base import SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.profiling.profile_files import HEADER, MEASUREMENTS, DeviceRecord, Journal, op_row
from coexec.profiling.workloads import Workload, workloads

DEVICE = DeviceRecord(
    device_id="synthetic:0",
    device_name="Formula",
    platform="Synthetic (OpenCL 3.0)",
    driver="1",
    device_type="cpu",
    emulated_gpu=True,
    vector_width=16,
    vector_registers=32,
    cpu=True,
    compute_units=(1, 2),
    threads=(1, 2),
    cpu_model="Formula",
    cores=2,
    sync="svm_flags",
    sync_us=12.5,
    slowdown=0.05,
    turn_us=3.0,
    cpu_kernels=CpuKernels("synthetic:1", "Formula (2)", threads=(1,), vector_width=8, vector_registers=16),
    versions={},
    seed=0,
)


def size(op: SplitOp) -> tuple[int, int, int]:
    """Rows, output channels and products per output of an op."""
    if isinstance(op, Linear):
        return op.M, op.N, op.K
    assert isinstance(op, Conv2d)
    return op.N * op.OH * op.OW, op.C_out, op.KH * op.KW * op.C_in // op.groups


def cpu_us(op: SplitOp, threads: int) -> float:
    """A rate that falls for short reductions and for weights beyond a cache, threads that scale imperfectly."""
    rows, channels, depth = size(op)
    rate = 6e4 * threads**0.9 * depth / (depth + 40)
    rate *= 0.75 if 4 * channels * depth > 1 << 20 else 1
    return 2 + 2 * rows * channels * depth / rate + rows * channels / 2e3


def gpu_us(op: SplitOp, traits: GpuTraits) -> float:
    """Work-groups in waves, each as long as its padded tile; jagged in the sizes as real devices are."""
    launches = launch(op.kind, op.columns(), traits)
    groups, waves = int(launches.work_groups[0]), int(launches.waves[0])
    tile_us = int(launches.tiling.tile_flops[0]) / groups / 8e4
    _, _, depth = size(op)
    return 4 + waves * (tile_us * (1 + 20 / depth) + 0.02)


def cpu_kernel_us(op: SplitOp, threads: int) -> float:
    """As the GPU side, but for the launch."""
    return 2 + gpu_us(op, cpu_traits(threads))


def cpu_traits(threads: int) -> GpuTraits:
    """Of what runs the CPU side's kernels."""
    assert DEVICE.cpu_kernels is not None
    traits = DEVICE.cpu_kernels.traits(threads)
    assert traits is not None
    return traits


def rows_of(workload: Workload) -> list[dict[str, Any]]:
    """Lines of measurements.csv for one workload; with one thread the CPU side has kernels too."""
    traits = DEVICE.traits(workload.compute_units)
    common = {"sample": workload.sample, "spread": 0.0, "repeats": 5, "unix_s": 0}
    kernel = launch(workload.gpu.kind, workload.gpu.columns(), traits).names()[0]
    gpu = {"side": "gpu", "implementation": kernel, "compute_units": workload.compute_units}
    cpu = {"side": "cpu", "implementation": variant_for(workload.cpu).name, "threads": workload.threads}
    rows = [
        {**common, **op_row(workload.gpu), **gpu, "median_us": gpu_us(workload.gpu, traits)},
        {**common, **op_row(workload.cpu), **cpu, "median_us": cpu_us(workload.cpu, workload.threads)},
    ]
    if workload.threads == 1:
        own = launch(workload.cpu.kind, workload.cpu.columns(), cpu_traits(1)).names()[0]
        rows.append({**rows[1], "implementation": own, "median_us": cpu_kernel_us(workload.cpu, 1)})
    return rows


def sample(count: int, seed: int = 0) -> list[Workload]:
    """The first ``count`` workloads of a sequence."""
    return list(itertools.islice(workloads(DEVICE.traits(1), (1, 2), (1, 2), seed=seed), count))


def write_profile(folder: Path, count: int, noise: float = 0.0) -> Path:
    """A profile folder; ``noise`` is the relative error of a time."""
    folder.mkdir()
    DEVICE.save(folder)
    rng = np.random.default_rng(0)
    with Journal(folder / MEASUREMENTS, HEADER, resume=False) as journal:
        for workload in sample(count):
            for row in rows_of(workload):
                journal.append({**row, "median_us": row["median_us"] * np.exp(noise * rng.standard_normal())})
    return folder
