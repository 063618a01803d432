"""The ways to use a machine: how its cores and compute units are shared out, and the best plan over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coexec.device import CpuKernels, DeviceInfo, cpu_cores, cpu_kernels
from coexec.errors import InputError
from coexec.kernels.variant import GpuTraits
from coexec.plan import Plan
from coexec.planner import Resources


@dataclass(frozen=True)
class Way:
    """One way to use a machine: compute units, CPU threads, and whether layers are split or all on the GPU side."""

    name: str
    compute_units: int
    cpu_threads: int
    split: bool = True

    @property
    def both_sides(self) -> bool:
        """Whether layers may have a part on each side."""
        return self.split and self.compute_units > 0


@dataclass(frozen=True)
class Machine:
    """What plans are made for: this machine with one of its devices, or the one that a profile was measured on.

    Attributes:
        cores: that the CPU side may use.
        device, device_name: id of the OpenCL device, and its name with its driver; "" for none.
        compute_units: how many the device has.
        emulated_gpu: whether the device runs on the same cores.
        traits: what the launch rules know of so many compute units of the device.
        cpu_kernels: what can run kernels for the CPU side beside the device.
    """

    cores: int
    device: str = ""
    device_name: str = ""
    compute_units: int = 0
    emulated_gpu: bool = False
    traits: Callable[[int], GpuTraits] | None = None
    cpu_kernels: CpuKernels | None = None

    @staticmethod
    def here(info: DeviceInfo | None) -> Machine:
        """This machine with one of its devices, or with none."""
        if info is None:
            return Machine(cpu_cores())
        return Machine(
            cpu_cores(),
            info.id,
            info.name_and_driver,
            info.compute_units,
            info.emulated_gpu,
            info.traits,
            cpu_kernels(info),
        )

    def ways(self, cpu_threads: int | None = None, compute_units: int | None = None) -> list[Way]:
        """The ways that a plan may choose from, within what the user fixed.

        An emulated GPU shares the cores with the CPU side: k of them each way, or all of them to one of the two.
        InputError for more threads or compute units than there are.
        """
        self._check(cpu_threads, compute_units)
        if not self.device:
            return [Way("cpu only", 0, cpu_threads or self.cores)]
        if not self.emulated_gpu:
            return [Way("cpu + gpu", compute_units or self.compute_units, cpu_threads or self.cores)]
        if cpu_threads or compute_units:
            return [self._shared(self.cores - (cpu_threads or 0), cpu_threads, compute_units, self.cores)]
        most = min(self.compute_units, self.cores)
        shared = [Way(f"{k} + {self.cores - k}", k, self.cores - k) for k in range(1, min(most, self.cores - 1) + 1)]
        # What has no kernel is left to one thread: NumPy's threads would spin on in the GPU side's time.
        alone = [] if most < self.cores else [Way("all cores for the GPU side", most, 1, split=False)]
        return [*shared, *alone, Way("all cores for the CPU side", 0, self.cores)]

    def fair_way(
        self, cpu_threads: int | None = None, compute_units: int | None = None, cores: int | None = None
    ) -> Way:
        """Both sides at once on ``cores`` cores (default: all): an emulated GPU gets half of them, rounded down,
        and the CPU side the rest; with one core, each side has one of its own. A real GPU is used whole."""
        self._check(cpu_threads, compute_units)
        cores = min(cores or self.cores, self.cores)
        if not self.emulated_gpu:
            return Way("cpu + gpu", compute_units or self.compute_units, cpu_threads or cores)
        return self._shared(cores - cpu_threads if cpu_threads else cores // 2, cpu_threads, compute_units, cores)

    def resources(self, way: Way, sync: str | None = None) -> Resources:
        """What the planner may use in this way."""
        if not way.compute_units:
            return Resources("", "", None, way.cpu_threads)
        traits = self.traits(way.compute_units) if self.traits else None
        use = Resources(self.device, self.device_name, traits, way.cpu_threads, sync or "", way.split)
        own = self.cpu_kernels
        if own is None or not way.split or own.traits(way.cpu_threads) is None:
            return use
        return replace(
            use, cpu_device=own.device, cpu_device_name=own.device_name, cpu_traits=own.traits(way.cpu_threads)
        )

    def _shared(self, units: int, cpu_threads: int | None, compute_units: int | None, cores: int) -> Way:
        units = compute_units or max(1, min(self.compute_units, units))
        threads = cpu_threads or max(1, cores - units)
        return Way(f"{units} + {threads}", units, threads)

    def _check(self, cpu_threads: Any, compute_units: Any) -> None:
        for name, value, most, has in (
            ("cpu_threads", cpu_threads, self.cores, f"there are {self.cores} cores"),
            (
                "compute_units",
                compute_units,
                self.compute_units,
                f"{self.device} has {self.compute_units}" if self.device else "no OpenCL device is used",
            ),
        ):
            if value is None:
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number from 1, not {value!r}")
            if value > most:
                raise InputError(f"{name}={value}, but {has}")


def best_over(ways: Sequence[Way], plan_for: Callable[[Way], Plan]) -> Plan:
    """The plan with the lowest predicted latency; it notes what each way should take."""
    plans = {way.name: plan_for(way) for way in ways}
    best = min(plans.values(), key=lambda plan: plan.predicted_ms)
    return replace(best, options={name: plan.predicted_ms for name, plan in plans.items()})
