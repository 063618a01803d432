"""How good are the planner's choices? Each is compared with the best of a measured grid of cuts.

Every layer: the choice and a grid of cuts along both axes are timed in turn; the grid picks the oracle. The
choice (twice), the oracle and both sides alone are then timed again, in turn, and only these second times are
reported: the minimum of a noisy grid flatters. Both times of the choice give the noise of the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coexec.api import cost_source, load_graph
from coexec.costs import CostSource
from coexec.errors import InputError
from coexec.experiments.network_timing import compare_plans
from coexec.experiments.setting import (
    Setting,
    choose_cut,
    environment,
    geometric_mean,
    ideal_us,
    only_cpu,
    only_gpu,
    open_setting,
)
from coexec.experiments.suites import NamedLayer
from coexec.measure import LayerRig, interleaved
from coexec.ops.base import Axis, SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.planner import Choice, aligned_cuts
from coexec.progress import Progress

GRID_CUTS = 17
"""Cuts per axis, unless a step is given."""
PACKED_BYTES = 3 << 30
"""Weights that the rig of one layer may hold packed, over all cuts."""


@dataclass(frozen=True)
class Chooser:
    """What is validated: cuts by a cost source, or (``costs`` None) by measuring a few."""

    setting: Setting
    costs: CostSource | None
    seconds: float

    @property
    def name(self) -> str:
        return self.costs.name if self.costs else "measurement"

    def choose(self, rig: LayerRig) -> Choice:
        """The choice for the layer of a rig."""
        return choose_cut(rig, self.setting, self.costs, self.seconds)

    def alone(self, op: Linear | Conv2d) -> tuple[float, float] | None:
        """Predicted microseconds of the whole layer on the CPU and on the GPU; None where nothing is predicted."""
        if self.costs is None:
            return None
        columns = {**op.columns(), "activation": np.array([op.activation.code])}
        cpu = [self.costs.cpu_us(op.kind, columns, self.setting.cpu_threads)]
        traits = self.setting.use.cpu_traits
        if traits is not None and self.costs.knows_cpu_kernels(self.setting.cpu_threads):
            cpu.append(self.costs.cpu_kernel_us(op.kind, columns, traits))
        gpu = self.costs.gpu_us(op.kind, columns, self.setting.traits)
        return float(min(cpu)[0]), float(gpu[0])


@dataclass(frozen=True)
class LayerResult:
    """One layer's row and what the summary needs of it."""

    row: dict[str, Any]
    choice: Choice
    oracle: Choice
    predicted: tuple[float, float] | None
    noise: float


def validate_layers(
    layers: Sequence[NamedLayer],
    *,
    device: str | None = None,
    profile: str | None = None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    step: int | None = None,
    seconds_per_layer: float = 4.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare the planner's choice for each layer with the best of a grid of cuts.

    Args:
        layers: what `coexec.experiments.suites.load_layers` returns.
        profile: as for ``coexec.partition``: its cost source is what is validated.
        step: units between the cuts of the grid, both axes; None takes the alignment, at most 17 cuts an axis.
        seconds_per_layer: about how long each layer may take; large ones take longer.
        progress: called with (done, total, text).

    Returns:
        The document of `coexec validate --json`.

    Raises:
        DeviceError: there is no usable device. ProfileError, InputError: the arguments are wrong.
    """
    _check(step, seconds_per_layer)
    setting = open_setting(device, cpu_threads, compute_units, sync)
    chooser = _chooser(setting, profile, seconds_per_layer)
    results = _validate(layers, chooser, step, seconds_per_layer, progress, extra=0)
    return _document(setting, chooser, results)


def validate_model(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    device: str | None = None,
    profile: str | None = None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    step: int | None = None,
    seconds_per_layer: float = 4.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare the plan of a network with what grids of its distinct layers and other plans of the whole find.

    Args:
        model: as for ``coexec.partition``; the others as for :func:`validate_layers`.

    Returns:
        The document of `coexec validate --json`; ``end_to_end`` holds milliseconds of the plan, of both sides
        alone, of the plan of every layer's oracle, and of the best plan found by any means.
    """
    _check(step, seconds_per_layer)
    graph = load_graph(model, input_shapes)
    distinct = graph.distinct_layers()
    if not distinct:
        raise InputError(f"{graph.name} has no layer that can be split, so there is nothing to validate")
    setting = open_setting(device, cpu_threads, compute_units, sync)
    chooser = _chooser(setting, profile, seconds_per_layer)
    layers = [NamedLayer(names[0], op) for op, names in distinct.items()]  # type: ignore[arg-type]
    results = _validate(layers, chooser, step, seconds_per_layer, progress, extra=1)
    if progress:
        progress(len(layers), len(layers) + 1, "whole network")
    chosen: dict[str, Choice] = {}
    oracles: dict[str, Choice] = {}
    for names, result in zip(distinct.values(), results, strict=True):
        result.row["count"] = len(names)
        chosen.update(dict.fromkeys(names, result.choice))
        oracles.update(dict.fromkeys(names, result.oracle))
    document = _document(setting, chooser, results)
    end_to_end, noise = compare_plans(graph, setting, chosen, oracles, seconds_per_layer)
    document["end_to_end"] = end_to_end
    document["noise"] = max(document["noise"], noise)
    return document


def grid(op: SplitOp, setting: Setting, step: int | None, most: int) -> list[Choice]:
    """Both exclusive choices, and along each axis up to ``most`` cuts in between; the CPU's part by all it has."""
    kernels = (False,) if setting.use.cpu_traits is None else (False, True)
    cuts = [Choice(axis, cut) for axis in op.axes for cut in aligned_cuts(op, axis, setting.use, step, most)]
    return [only_gpu(op), *(replace(c, cpu_kernel=k) for k in kernels for c in (only_cpu(), *cuts))]


def _check(step: int | None, seconds: float) -> None:
    if step is not None and step < 1:
        raise InputError(f"step must be at least 1, not {step}")
    if not seconds > 0:
        raise InputError(f"seconds_per_layer must be positive, not {seconds}")


def _chooser(setting: Setting, profile: str | None, seconds: float) -> Chooser:
    costs = None if profile == "measure" else cost_source(setting.info, profile)
    return Chooser(setting, costs, seconds)


def _validate(
    layers: Sequence[NamedLayer],
    chooser: Chooser,
    step: int | None,
    seconds: float,
    progress: Progress | None,
    extra: int,
) -> list[LayerResult]:
    results = []
    for done, layer in enumerate(layers):
        if progress:
            progress(done, len(layers) + extra, layer.name)
        results.append(validate_layer(layer, chooser, step, seconds))
    if progress and not extra:
        progress(len(layers), len(layers), "done")
    return results


def validate_layer(layer: NamedLayer, chooser: Chooser, step: int | None, seconds: float) -> LayerResult:
    """Measure one layer: its choice against its grid, in two passes."""
    op, setting = layer.op, chooser.setting
    rig = LayerRig(op, setting.sync, setting.use)
    weight_bytes = 4 * int(np.prod(op.array_shapes["weight"], dtype=np.int64))
    choice = chooser.choose(rig)
    affordable = max(3, PACKED_BYTES // (3 * rig.copies * weight_bytes))
    most = affordable if step is not None else min(GRID_CUTS, affordable)
    tried = _distinct(op, [choice, *grid(op, setting, step, most)])
    first = interleaved(
        [rig.timer(c) for c in tried], min_rounds=3, max_rounds=15, budget_s=seconds / 2, warm_up_s=0.02
    )
    oracle = tried[min(range(len(tried)), key=lambda i: first[i].median_us)]
    again = _distinct(op, [choice, oracle, only_cpu(), only_cpu(by_kernel=False), only_gpu(op)])
    second = interleaved([rig.timer(c) for c in [choice, *again]], min_rounds=5, max_rounds=60, budget_s=seconds / 2)
    us = {_key(op, c): t.median_us for c, t in zip(again, second[1:], strict=True)}
    twice = (second[0].median_us, us[_key(op, choice)])
    us[_key(op, choice)] = sum(twice) / 2
    measured, gpu_us = us[_key(op, choice)], us[_key(op, only_gpu(op))]
    cpu_us = min(us[_key(op, only_cpu(by_kernel))] for by_kernel in (True, False))
    noise = abs(twice[0] - twice[1]) / measured
    row: dict[str, Any] = {
        "name": layer.name,
        "op": op.kind,
        "axis": choice.axis,
        "cut": choice.cut,
        "units": op.units(choice.axis),
        "cpu_kernel": choice.cpu_kernel,
        "predicted_us": choice.costs.predicted_us,
        "measured_us": measured,
        "oracle_us": us[_key(op, oracle)],
        "oracle_axis": oracle.axis,
        "oracle_cut": oracle.cut,
        "oracle_cpu_kernel": oracle.cpu_kernel,
        "cpu_us": cpu_us,
        "gpu_us": gpu_us,
        "efficiency": ideal_us(cpu_us, gpu_us) / measured,
        "candidates": len(tried),
        "noise": noise,
    }
    return LayerResult(row, choice, oracle, chooser.alone(op), noise)


def _key(op: SplitOp, choice: Choice) -> tuple[Axis, int, bool]:
    """What tells choices apart: at either end the axis makes no difference, and without a CPU part its code."""
    if choice.cut == op.units(choice.axis):
        return "none", 1, True
    return ("none" if choice.cut == 0 else choice.axis), choice.cut, choice.cpu_kernel


def _distinct(op: SplitOp, choices: Sequence[Choice]) -> list[Choice]:
    return list({_key(op, c): c for c in reversed(choices)}.values())[::-1]


def _document(setting: Setting, chooser: Chooser, results: Sequence[LayerResult]) -> dict[str, Any]:
    rows = [r.row for r in results]
    better = [min(row["cpu_us"], row["gpu_us"]) for row in rows]
    return {
        "device": f"{setting.info.id}: {setting.info.name_and_driver}",
        "environment": environment(setting),
        "costs_from": chooser.name,
        "noise": float(np.percentile([r.noise for r in results], 90)) if results else 0.0,
        "layers": rows,
        "oracle_ratio": geometric_mean(row["oracle_us"] / row["measured_us"] for row in rows),
        "speedup": geometric_mean(b / row["measured_us"] for b, row in zip(better, rows, strict=True)),
        "oracle_speedup": geometric_mean(b / row["oracle_us"] for b, row in zip(better, rows, strict=True)),
        "efficiency": geometric_mean(row["efficiency"] for row in rows),
        "mape": {"cpu": _mape(results, 0, "cpu_us"), "gpu": _mape(results, 1, "gpu_us")},
    }


def _mape(results: Sequence[LayerResult], side: int, field: str) -> float | None:
    """Mean absolute error of the predictions of one side alone, relative to what was measured."""
    errors = [abs(r.predicted[side] - r.row[field]) / r.row[field] for r in results if r.predicted is not None]
    return float(np.mean(errors)) if errors else None
