"""The whole pipeline on one screen: model -> graph -> plan -> bound executor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from coexec.costs import CostSource, Estimate
from coexec.device import DeviceInfo, Session, cpu_cores, find_device
from coexec.errors import DeviceError, InputError, PlanError
from coexec.executor import Executor
from coexec.graph import Graph
from coexec.model import Model
from coexec.plan import Plan, check_plan
from coexec.planner import Resources, make_plan
from coexec.sync import Sync, open_sync

CPU_ONLY = "cpu"


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
        effort: seconds that ``profile="measure"`` may take (default 10).

    Returns:
        A :class:`coexec.model.Model`: ``model(x)``, ``model.run(None, {"input": x})``, ``model.plan``.

    Raises:
        CoexecError: with one line that says what is wrong with model, device or arguments.
    """
    _check_arguments(example_inputs, precision, adapt, cpu_threads, compute_units, effort)
    graph = load_graph(model, input_shapes)
    info = choose_device(device, strict)
    if compute_units is not None and compute_units > (info.compute_units if info else 0):
        raise InputError(
            f"compute_units={compute_units}, but "
            + (f"{info.id} has {info.compute_units}" if info else "no OpenCL device is used")
        )
    plan = best_plan(graph, info, profile, cpu_threads, compute_units, sync, effort)
    return build(graph, plan)


def load(
    model: Any, plan: str | os.PathLike[str] | Plan, *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> Model:
    """A network running by a saved plan; needs neither profile nor predictor.

    Raises PlanError if the plan is damaged, of another model, or of a device that is not here.
    """
    graph = load_graph(model, input_shapes)
    return build(graph, plan if isinstance(plan, Plan) else Plan.load(plan))


def load_graph(model: Any, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The checked, folded and fused graph of a model (path or ``onnx.ModelProto``)."""
    from coexec.frontends.onnx import load_onnx

    if not isinstance(model, str | os.PathLike) and type(model).__name__ != "ModelProto":
        raise InputError(f"a model is an ONNX file or onnx.ModelProto, not {type(model).__name__}; export it to ONNX")
    return load_onnx(model, input_shapes)


def build(graph: Graph, plan: Plan) -> Model:
    """Bind a plan to this machine."""
    check_plan(plan, graph)
    if plan.cpu_threads > cpu_cores():
        raise PlanError(
            f"the plan uses {plan.cpu_threads} CPU threads, this process may use {cpu_cores()} cores; make it again"
        )
    if plan.device == "":
        return Model(graph, plan, Executor(graph, None, plan.cpu_threads))
    try:
        info = find_device(plan.device)
    except DeviceError as error:
        raise PlanError(f"the plan is for a device that is not here: {error}") from error
    assert info is not None
    if device_name(info) != plan.device_name:
        raise PlanError(
            f"the plan was made for {plan.device_name!r}, {plan.device} is {device_name(info)!r} here; make it again"
        )
    if plan.compute_units > info.compute_units:
        raise PlanError(
            f"the plan uses {plan.compute_units} compute units, {info.id} has {info.compute_units}; make it again"
        )
    sync = opened(info, plan.compute_units, plan.sync or None)
    return Model(graph, plan, Executor(graph, sync, plan.cpu_threads))


@dataclass(frozen=True)
class Option:
    """One way to use the machine: how many compute units and CPU threads, and whether layers are split."""

    name: str
    compute_units: int
    cpu_threads: int
    split: bool = True


def options(info: DeviceInfo | None, cpu_threads: int | None, compute_units: int | None) -> list[Option]:
    """The ways that a plan may choose from, within what the user fixed.

    A CPU-type device shares the cores with the CPU side: k of them each way, or all of them to either side
    in turn.
    """
    cores = cpu_cores()
    if info is None:
        return [Option("cpu only", 0, cpu_threads or cores)]
    return ways_to_share(info.emulated_gpu, info.compute_units, cores, cpu_threads, compute_units)


def ways_to_share(
    emulated_gpu: bool, device_units: int, cores: int, cpu_threads: int | None, compute_units: int | None
) -> list[Option]:
    """The ways to use a device of ``device_units`` compute units beside ``cores`` cores."""
    if not emulated_gpu:
        return [Option("cpu + gpu", compute_units or device_units, cpu_threads or cores)]
    if cpu_threads or compute_units:
        units = compute_units or max(1, min(device_units, cores - (cpu_threads or 0)))
        threads = cpu_threads or max(1, cores - units)
        return [Option(f"{units} + {threads}", units, threads)]
    most = min(device_units, cores)
    ways = [Option(f"{k} + {cores - k}", k, cores - k) for k in range(1, most) if cores > k]
    return [*ways, Option("all cores in turn", most, cores, split=False)]


def best_plan(
    graph: Graph,
    info: DeviceInfo | None,
    profile: str | None = None,
    cpu_threads: int | None = None,
    compute_units: int | None = None,
    sync: str | None = None,
    effort: float | None = None,
) -> Plan:
    """The plan with the lowest predicted latency over all ways to use the machine."""
    ways = options(info, cpu_threads, compute_units)
    if profile == "measure" and info is not None:
        from coexec.measured_plan import measured_plan

        return measured_plan(graph, info, ways, sync, effort or 10.0)
    costs = cost_source(info, profile)
    plans = {way.name: make_plan(graph, costs, resources(info, way, sync)) for way in ways}
    best = min(plans.values(), key=lambda plan: plan.predicted_ms)
    return replace(best, options={name: plan.predicted_ms for name, plan in plans.items()})


def resources(info: DeviceInfo | None, way: Option, sync: str | None) -> Resources:
    """What the planner may use in this way."""
    if info is None:
        return Resources("", "", None, way.cpu_threads)
    traits = info.traits(way.compute_units)
    return Resources(info.id, device_name(info), traits, way.cpu_threads, sync or "", way.split)


def cost_source(info: DeviceInfo | None, profile: str | None) -> CostSource:
    """Predictors of the named or fitting profile; the coarse estimate, with a warning, where none fits."""
    if info is None and profile in (None, "measure"):
        return Estimate()  # one side only: there is nothing to balance
    from coexec.predictors import load_predictors, match

    if profile is not None:
        return load_predictors(profile)
    assert info is not None
    found = match(info, cpu_cores())
    if found is None:
        warnings.warn(
            f"no profile fits {info.id}: cuts come from a coarse estimate; "
            f'`coexec profile --device {info.id}` measures one, profile="measure" times this model only',
            stacklevel=4,
        )
        return Estimate()
    name, note = found
    if note:
        warnings.warn(f"profile {name} fits only nearly: {note}", stacklevel=4)
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


def opened(info: DeviceInfo, compute_units: int, sync: str | None) -> Sync:
    """An open session with its sync strategy, shared by all models that use the device in the same way."""
    link = _opened(info, compute_units, sync)
    if link.lost:  # it got stuck: later models get a queue of their own
        _opened.cache_clear()
        link = _opened(info, compute_units, sync)
    return link


@cache
def _opened(info: DeviceInfo, compute_units: int, sync: str | None) -> Sync:
    return open_sync(Session(info, compute_units), sync)


def device_name(info: DeviceInfo) -> str:
    """Device and driver, as plans and profiles name them."""
    return f"{info.name} ({info.driver})"


def _check_arguments(
    example_inputs: Any,
    precision: str,
    adapt: bool,
    cpu_threads: int | None,
    compute_units: int | None,
    effort: float | None,
) -> None:
    if example_inputs is not None:
        raise InputError("example_inputs is for PyTorch modules, which this version does not read; export to ONNX")
    if precision != "fp32":
        raise InputError(f"precision {precision!r} is not supported in this version; use 'fp32'")
    if adapt:
        raise InputError("adapt=True is not supported in this version; leave it out")
    for name, value in (("cpu_threads", cpu_threads), ("compute_units", compute_units)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if cpu_threads is not None and cpu_threads > cpu_cores():
        raise InputError(f"cpu_threads={cpu_threads}, but this process may use {cpu_cores()} cores")
    if effort is not None and effort <= 0:
        raise InputError(f"effort must be a positive number of seconds, not {effort}")
