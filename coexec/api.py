"""The whole pipeline on one screen: model -> graph -> plan -> bound executor."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from coexec.costs import CostSource, Estimate
from coexec.device import DeviceInfo, cpu_cores, find_device
from coexec.errors import DeviceError, InputError, PlanError
from coexec.executor import Executor
from coexec.graph import Graph
from coexec.graph_cache import read_graph, request
from coexec.model import Model
from coexec.opencl_runtime import platforms
from coexec.plan import Plan, check_plan
from coexec.planner import make_plan
from coexec.progress import Progress, quiet
from coexec.sync import check_strategy, opened
from coexec.ways import Machine, Way, best_over

CPU_ONLY = "cpu"
MEASURE = "measure"
"""What ``profile`` is where layers are timed on the spot."""
DEFAULT_EFFORT_S = 10.0


def partition(
    model: Any,
    example_inputs: Any = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    device: str | None = None,
    profile: str | None = None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    precision: str = "fp32",
    strict: bool = False,
    adapt: bool = False,
    effort: float | None = None,
) -> Model:
    """A network running on CPU and OpenCL GPU at once, each layer cut where both sides finish soonest.

    Args:
        model: path of an ONNX file, or an ``onnx.ModelProto``.
        input_shapes: sizes for inputs that the model leaves open: {"input": (1, 3, 224, 224)}.
        device: OpenCL device id as `coexec devices` shows it; None takes the best, "cpu" uses none.
        profile: name or folder of a measured profile; "measure" times candidate cuts on the spot; None
            takes the shipped profile that fits the device, else a coarse built-in estimate, and says so.
        cpu_threads: threads of the CPU side; None leaves the choice to the planner.
        compute_units: compute units of the device to use; None leaves the choice to the planner.
        sync: synchronisation strategy; None takes the first that proves itself on the device.
        strict: raise DeviceError instead of running on the CPU only when there is no usable device.
        effort: seconds that ``profile="measure"`` may take, about (default 10).

    Returns:
        A :class:`coexec.model.Model`: ``model(x)``, ``model.run(None, {"input": x})``, ``model.plan``.

    Raises:
        CoexecError: with one line that says what is wrong with model, device or arguments.
    """
    _check_unsupported(example_inputs, precision, adapt, strict)
    graph = load_graph(model, input_shapes)
    info = choose_device(device, strict)
    ways = Machine.here(info).ways(cpu_threads, compute_units)
    return build(graph, best_plan(graph, info, ways, profile, sync, effort))


def load(
    model: Any, plan: str | os.PathLike[str] | Plan, *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> Model:
    """A network running by a saved plan; needs neither profile nor predictor.

    Inputs that the model leaves open have the shapes that the plan was made for, unless ``input_shapes`` says else.

    Raises PlanError if the plan is damaged, of another model, or of a device that is not here.
    """
    if not isinstance(plan, Plan | str | os.PathLike):
        raise InputError(f"a plan is a file or a coexec Plan, not {type(plan).__name__}")
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    if plan.device:
        # Drivers take a tenth of a second to start: meanwhile the model is read here.
        threading.Thread(target=_start_drivers, name="coexec-drivers").start()
    return build(load_graph(model, input_shapes, plan.input_shapes), plan)


def _start_drivers() -> None:
    with suppress(DeviceError):  # ``build`` tells it
        platforms()


def load_graph(
    model: Any,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    fallback_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The checked, folded and fused graph of a model (path or ``onnx.ModelProto``).

    ``fallback_shapes`` are for inputs that the model leaves open and ``input_shapes`` does not name.
    """
    if not isinstance(model, str | os.PathLike) and type(model).__name__ != "ModelProto":
        what = f"a {type(model).__name__}; export it to ONNX"
        if callable(model) and str(getattr(getattr(model, "func", model), "__module__", "")).startswith("coexec.zoo"):
            what = "a function; call it: coexec.zoo.<name>()"
        raise InputError(f"a model is an ONNX file or onnx.ModelProto, not {what}")
    asked = None if type(model).__name__ == "ModelProto" else request(Path(model), input_shapes, fallback_shapes)
    graph = read_graph(asked) if asked else None
    if graph is None:
        from coexec.frontends.onnx import load_onnx

        graph = load_onnx(model, input_shapes, fallback_shapes, asked)
    return graph


def build(graph: Graph, plan: Plan) -> Model:
    """Bind a plan to this machine."""
    check_plan(plan, graph)
    if plan.cpu_threads > cpu_cores():
        raise PlanError(
            f"the plan uses {plan.cpu_threads} CPU threads, this process may use {cpu_cores()} cores; make it again"
        )
    _check_cpu_device(plan)
    if plan.device == "":
        return Model(graph, plan, Executor(graph, None, plan.cpu_threads))
    try:
        info = find_device(plan.device)
    except DeviceError as error:
        raise PlanError(f"the plan is for a device that is not here: {error}") from error
    assert info is not None
    if info.name_and_driver != plan.device_name:
        raise PlanError(
            f"the plan was made for {plan.device_name!r}, {plan.device} is {info.name_and_driver!r} here; make it again"
        )
    if plan.compute_units > info.compute_units:
        raise PlanError(
            f"the plan uses {plan.compute_units} compute units, {info.id} has {info.compute_units}; make it again"
        )
    sync = opened(info, plan.compute_units, plan.sync or None)
    return Model(graph, plan, Executor(graph, sync, plan.cpu_threads))


def _check_cpu_device(plan: Plan) -> None:
    """PlanError unless the device that runs the CPU side's kernels is here."""
    if not plan.cpu_device:
        return
    try:
        info = find_device(plan.cpu_device)
    except DeviceError as error:
        raise PlanError(f"the plan runs the CPU side's kernels on a device that is not here: {error}") from error
    assert info is not None
    if info.name_and_driver != plan.cpu_device_name:
        raise PlanError(
            f"the plan's kernels for the CPU side were chosen for {plan.cpu_device_name!r}, {plan.cpu_device} is "
            f"{info.name_and_driver!r} here; make it again"
        )


def best_plan(
    graph: Graph,
    info: DeviceInfo | None,
    ways: Sequence[Way] | None = None,
    profile: str | None = None,
    sync: str | None = None,
    effort: float | None = None,
    progress: Progress = quiet,
) -> Plan:
    """The plan with the lowest predicted latency over ``ways`` (default: all) to use this machine.

    The other arguments are those of :func:`partition`, checked here.
    """
    check_planning(info, profile, sync, effort)
    machine = Machine.here(info)
    ways = ways or machine.ways()
    if profile == MEASURE and info is not None:
        from coexec.measured_plan import measured_plan

        return measured_plan(graph, info, ways, sync, effort or DEFAULT_EFFORT_S, progress)
    costs = cost_source(info, profile)
    return best_over(ways, lambda way: make_plan(graph, costs, machine.resources(way, sync)))


def check_planning(info: DeviceInfo | None, profile: Any, sync: Any, effort: Any) -> None:
    """Refuse values that no plan can be made with, and combinations of which one part would be ignored."""
    if profile is not None and not isinstance(profile, str | os.PathLike):
        raise InputError(f"a profile is a name or a folder, not {type(profile).__name__}")
    if sync is not None:
        check_strategy(sync, info)
    if effort is None:
        return
    if not isinstance(effort, int | float | np.number) or isinstance(effort, bool) or not 0 < effort < math.inf:
        raise InputError(f"effort must be a positive number of seconds, not {effort!r}")
    if profile != MEASURE:
        raise InputError("effort limits profile='measure'; leave it out, or choose that")


def cost_source(info: DeviceInfo | None, profile: str | None) -> CostSource:
    """Predictors of the named or fitting profile; the coarse estimate, with a warning, where none fits."""
    if info is None and profile in (None, MEASURE):
        return Estimate()  # one side only: there is nothing to balance
    from coexec.predictors import load_predictors, match, misfit

    if profile is not None:
        predictors = load_predictors(profile)
        note = misfit(predictors.device, info, cpu_cores()) if info else ""
        if note:
            warnings.warn(f"{predictors.name} may mislead: {note}", stacklevel=4)
        return predictors
    assert info is not None
    found = match(info, cpu_cores())
    if found is None:
        warnings.warn(
            f"no profile fits {info.id}: cuts come from a coarse estimate; `coexec profile --device {info.id} -o DIR` "
            f'and `coexec train DIR` make one, profile="measure" (--profile measure) times this model only',
            stacklevel=4,
        )
        return Estimate()
    name, note = found
    if note:
        warnings.warn(
            f"profile {name} fits only nearly: {note}; `coexec profile --device {info.id} -o DIR` and "
            "`coexec train DIR` make one that fits",
            stacklevel=4,
        )
    return load_predictors(name)


def choose_device(device: str | None, strict: bool = False) -> DeviceInfo | None:
    """The device to use; None for CPU only, which is said unless it was asked for."""
    if device == CPU_ONLY:
        return None
    info = find_device(device)
    if info is None:
        message = "no usable OpenCL device: everything runs on the CPU; `coexec devices` says what was found"
        if strict:
            raise DeviceError(message)
        warnings.warn(message, stacklevel=3)
    return info


def _check_unsupported(example_inputs: Any, precision: Any, adapt: Any, strict: Any) -> None:
    if example_inputs is not None:
        raise InputError("example_inputs is for PyTorch modules, which this version does not read; export to ONNX")
    if precision != "fp32":
        raise InputError(f"precision {precision!r} is not supported in this version; use 'fp32'")
    for name, value in (("adapt", adapt), ("strict", strict)):
        if not isinstance(value, bool):
            raise InputError(f"{name} is True or False, not {value!r}")
    if adapt:
        raise InputError("adapt=True is not supported in this version; leave it out")
