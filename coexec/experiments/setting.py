"""What validation and benchmarks share: the part of the machine that they use, and how they report it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import numpy as np

from coexec.api import CPU_ONLY, choose_device
from coexec.costs import CostSource
from coexec.device import DeviceInfo, cpu_cores, cpu_model
from coexec.errors import InputError
from coexec.kernels.variant import GpuTraits
from coexec.measure import LayerRig
from coexec.measured_plan import best_cut
from coexec.ops.base import SplitOp
from coexec.planner import Choice, Resources, choose_cuts
from coexec.sync import Sync, check_strategy, opened
from coexec.ways import Machine, Way

EXPERIMENT_PACKAGES = ("coexec", "numpy", "pyopencl", "lightgbm", "onnx")


@dataclass(frozen=True)
class Setting:
    """An open device and the shares of the machine that both sides have in an experiment."""

    info: DeviceInfo
    way: Way
    use: Resources
    sync: Sync

    @property
    def traits(self) -> GpuTraits:
        return self.sync.session.traits

    @property
    def cpu_threads(self) -> int:
        return self.way.cpu_threads


def open_setting(
    device: str | None = None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    cores: int | None = None,
) -> Setting:
    """Opens the device for an experiment on ``cores`` cores, shared as ``Machine.fair_way`` does.

    Raises DeviceError without a usable device.
    """
    if device == CPU_ONLY:
        raise InputError("this compares two sides, so it needs an OpenCL device; leave out device='cpu'")
    info = choose_device(device, strict=True)
    assert info is not None  # strict
    if sync is not None:
        check_strategy(sync, info)
    machine = Machine.here(info)
    way = machine.fair_way(cpu_threads, compute_units, cores)
    link = opened(info, way.compute_units, sync)
    return Setting(info, way, machine.resources(way, sync), link)


def choose_cut(rig: LayerRig, setting: Setting, costs: CostSource | None, seconds: float) -> Choice:
    """The cut of a rig's layer: by ``costs``, or (None) the best of some that are measured for so long."""
    if costs is None:
        return best_cut(rig.op, setting.sync, setting.use, seconds)
    node = rig.graph.nodes[0]
    return choose_cuts(replace(rig.graph, nodes=(node,)), costs, setting.use)[node.name]


def environment(setting: Setting, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Where and when figures were measured: versions, processor, device, driver, date. JSON values."""
    info = setting.info
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in (*EXPERIMENT_PACKAGES, *packages)},
        "cpu_model": cpu_model(),
        "cores": cpu_cores(),
        "device": info.id,
        "device_name": info.name,
        "platform": info.platform,
        "driver": info.driver,
        "emulated_gpu": info.emulated_gpu,
        "compute_units": setting.way.compute_units,
        "cpu_threads": setting.cpu_threads,
        "sync": setting.sync.name,
    }


def version(package: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def only_cpu(by_kernel: bool = True) -> Choice:
    """The CPU side computes the whole layer, ``by_kernel`` where it has a device for that."""
    return Choice("channel", 0, cpu_kernel=by_kernel)


def only_gpu(op: SplitOp) -> Choice:
    """The GPU side computes the whole layer."""
    return Choice("channel", op.units("channel"))


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive values; 1 of none."""
    logs = np.log(list(values))
    return float(np.exp(logs.mean())) if logs.size else 1.0


def ideal_us(cpu_us: float, gpu_us: float) -> float:
    """Time of a layer whose work is divided perfectly and whose hand-over is free."""
    return 1 / (1 / cpu_us + 1 / gpu_us)
