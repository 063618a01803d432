"""Latency predictors of a profiled device, as the planner's cost source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from coexec.backends.cpu import CPU_BY_NAME, CPU_VARIANTS, choose
from coexec.costs import Floats, unsplit_kernel_us, unsplit_op_us
from coexec.errors import ProfileError
from coexec.graph import Graph, Node
from coexec.kernels import LAYER_KERNELS
from coexec.kernels.variant import GpuTraits
from coexec.launch import launch
from coexec.ops.base import Columns, DeviceOp, Ints
from coexec.plan import Side
from coexec.predictors.features import (
    Features,
    feature_names,
    form_of,
    kernel_features,
    matrix,
    routine_features,
    work_matrix,
)
from coexec.predictors.latency import LatencyModel
from coexec.predictors.model_files import MIN_POINTS, ModelReport, load_models
from coexec.predictors.model_text import check_model_text
from coexec.profiling.profile_files import DEVICE, DeviceRecord
from coexec.ways import Machine


class Predictors:
    """A cost source (`coexec.costs.CostSource`) that was trained on a device's measurements.

    Attributes:
        name: "profile NAME".
        device: the record of the device and of its hand-over cost.
        reports: what became of each implementation's measurements.
    """

    def __init__(self, name: str, device: DeviceRecord, models: list[tuple[ModelReport, str | None]]) -> None:
        self.name = f"profile {name}"
        self.device = device
        self.reports = [report for report, _ in models]
        self._models = {
            (report.processor, report.implementation): LatencyModel(
                np.array(report.work_us), _booster(name, report, text)
            )
            for report, text in models
            if text is not None
        }

    @staticmethod
    def load(profile: str | os.PathLike[str]) -> Predictors:
        """Predictors of a shipped profile (by its name) or of a profile folder (by its path).

        Raises ProfileError if there is no such profile, if it is not trained, damaged, or of another
        version's schema or features.
        """
        folder = profile_folder(profile)
        return Predictors(folder.name, DeviceRecord.load(folder), load_models(folder))

    def machine(self) -> Machine:
        """The profiled machine, which need not be this one."""
        device = self.device
        name = f"{device.device_name} ({device.driver})"
        most = max(device.compute_units)
        return Machine(
            device.cores, device.device_id, name, most, device.emulated_gpu, device.traits, device.cpu_kernels
        )

    def gpu_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        """Microseconds of each part alone on the GPU side; ProfileError for a kernel without a model."""
        return self._kernel_us("gpu", kind, columns, traits)

    def cpu_kernel_us(self, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        """Microseconds of each part alone by a kernel on the CPU side; ProfileError for one without a model."""
        return self._kernel_us("cpu", kind, columns, traits)

    def knows_cpu_kernels(self, threads: int) -> bool:
        """Whether kernels were measured on the CPU side with so many threads."""
        return self.device.cpu_kernels is not None and threads in self.device.cpu_kernels.threads

    def _kernel_us(self, side: Side, kind: str, columns: Columns, traits: GpuTraits) -> Floats:
        launches = launch(kind, columns, traits)
        names = [variant.name for variant in launches.variants]
        features = kernel_features(kind, columns, launches)
        return self._predict(side, kind, names, launches.variant, features)

    def cpu_us(self, kind: str, columns: Columns, threads: int) -> Floats:
        """Microseconds of each part alone on the CPU side; ProfileError for a routine without a model."""
        names = [variant.name for variant in CPU_VARIANTS[kind]]
        features = routine_features(kind, columns, threads)
        return self._predict("cpu", kind, names, choose(kind, columns), features)

    def sync_us(self) -> float:
        """What a hand-over adds to a split layer, as measured."""
        return self.device.sync_us

    def slowdown(self) -> float:
        """By which share either side is slower while the other runs, as measured."""
        return self.device.slowdown

    def turn_us(self) -> float:
        """What a change of sides takes where both use the same cores in turn, as measured."""
        return self.device.turn_us

    def op_us(self, graph: Graph, node: Node) -> float:
        """A node that is not split: a coarse estimate, since profiles do not measure those yet."""
        return unsplit_op_us(graph, node)

    def kernel_us(self, op: DeviceOp, traits: GpuTraits) -> float:
        """An op that is not split, on the GPU side: a coarse estimate likewise."""
        return unsplit_kernel_us(op, traits)

    def _predict(self, side: Side, kind: str, names: list[str], chosen: Ints, features: Features) -> Floats:
        form = form_of(names[0])
        rows = matrix(features, feature_names(form, kind))
        work = work_matrix(form, features)
        out = np.empty(len(rows))
        for index in np.unique(chosen):
            mine = chosen == index
            model = self._models.get((side, names[int(index)]))
            if model is None:
                raise ProfileError(self._refusal(side, names[int(index)]))
            out[mine] = model.predict(rows[mine], work[mine])
        if not np.isfinite(out).all():
            raise ProfileError(f"{self.name} predicts times that are no numbers; train it again")
        return out

    def _refusal(self, side: Side, implementation: str) -> str:
        points = {(r.processor, r.implementation): r.points for r in self.reports}
        others = ", ".join(f"{n} {points.get((s, n), 0)}" for s, n in self._missing() if n != implementation)
        return (
            f"{self.name} cannot predict {implementation} on the {side} side: {points.get((side, implementation), 0)} "
            f"points, {MIN_POINTS} needed{others and f' (also short: {others})'}; measure more by "
            "`coexec profile --resume`, then `coexec train`"
        )

    def _missing(self) -> list[tuple[Side, str]]:
        """Implementations without a model."""
        known: list[tuple[Side, str]] = [("cpu", n) for n in CPU_BY_NAME]
        known += [("gpu", n) for n in LAYER_KERNELS]
        known += [("cpu", n) for n in LAYER_KERNELS if self.device.cpu_kernels is not None]
        return [key for key in known if key not in self._models]


def load_predictors(profile: str | os.PathLike[str]) -> Predictors:
    """Same as `Predictors.load`."""
    return Predictors.load(profile)


def shipped_profiles() -> Mapping[str, Path]:
    """Folders of the profiles that the package carries, by name."""
    root = Path(str(files("coexec.profiles")))
    return {p.parent.name: p.parent for p in sorted(root.glob(f"*/{DEVICE}"))}


def profile_folder(profile: str | os.PathLike[str]) -> Path:
    """Folder of a shipped profile's name, or the path itself; ProfileError if it is neither."""
    shipped = shipped_profiles()
    if isinstance(profile, str) and profile in shipped:
        return shipped[profile]
    path = Path(profile)
    try:
        if path.is_dir():
            return path
    except OSError as error:
        raise ProfileError(f"cannot read the profile {os.fspath(profile)!r}: {error.strerror}") from error
    known = ", ".join(shipped) or "none"
    raise ProfileError(f"no profile {os.fspath(profile)!r}: neither a folder nor a shipped profile ({known})")


def _booster(name: str, report: ModelReport, text: str) -> Any:
    """The model of one implementation; ProfileError if the text is none of this version."""
    import lightgbm

    try:
        check_model_text(text, feature_names(form_of(report.implementation), report.op))
        return lightgbm.Booster(model_str=text)
    except (ValueError, lightgbm.basic.LightGBMError) as error:
        raise ProfileError(f"profile {name}: {report.model_file} is damaged ({error}); train it again") from error
