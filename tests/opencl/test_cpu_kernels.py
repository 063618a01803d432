"""Kernels on the CPU side: right on every device that can run them there, and left out where they are not."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from random_networks import evaluate, graphs, random_feeds

from coexec import device, kernels
from coexec.api import build
from coexec.backends import cpu_kernels as backend
from coexec.device import DeviceInfo, Session, cpu_cores, find_device, find_devices, turns
from coexec.errors import PlanError
from coexec.executor import Executor
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Layout
from coexec.ops.linear import Linear
from coexec.plan import Plan, runs_kernel
from coexec.planner import Resources, assemble, share_choices
from coexec.sync import opened
from coexec.ways import Machine, Way

pytestmark = pytest.mark.opencl

CPUS = [d for d in find_devices() if d.usable and d.type == "cpu"]
if not CPUS:
    pytest.skip("no usable OpenCL device of type CPU here", allow_module_level=True)
QUEUES = [(d, threads) for d in CPUS for threads in sorted({1, min(2, d.compute_units, cpu_cores())})]
all_queues = pytest.mark.parametrize(("info", "threads"), QUEUES, ids=lambda value: getattr(value, "id", value))
LAYER = Linear(20, 30, 64)


def cpu_only(info: DeviceInfo, threads: int) -> Resources:
    """The CPU side alone, which has a device for its kernels."""
    return Resources("", "", None, threads, "", True, info.id, info.name_and_driver, info.traits(threads))


def plan_for(graph: Graph, use: Resources, share: float = 0.0) -> Plan:
    return assemble(graph, share_choices(graph, "channel", share), None, use)


def one_layer(layers: int = 1) -> Graph:
    """LAYER, and more of the kind after it."""
    f4, rng = np.dtype(np.float32), np.random.default_rng(0)
    widths = [LAYER.K, *[LAYER.N] * layers]
    tensors = {f"t{i}": Tensor(f"t{i}", (LAYER.M, n), f4, Layout.plain(2)) for i, n in enumerate(widths)}
    constants = {f"w{i}": rng.standard_normal(widths[i : i + 2], np.float32) / 8 for i in range(layers)}
    nodes = [
        Node(f"n{i}", Linear(LAYER.M, widths[i], widths[i + 1]), (f"t{i}", f"w{i}", "", ""), (f"t{i + 1}",))
        for i in range(layers)
    ]
    return Graph("chain", tuple(nodes), tensors, constants, ("t0",), (f"t{layers}",))


def right_for(graph: Graph, feeds: dict[str, Array]) -> Array:
    value = feeds["t0"].astype(np.float64)
    for node in graph.nodes:
        value = value @ graph.constants[node.inputs[1]]
    return value


@all_queues
@given(graph=graphs(5))
@settings(max_examples=8)
def test_random_networks(info: DeviceInfo, threads: int, graph: Graph) -> None:
    """Every op that has a kernel by it, in the host's own memory."""
    plan = plan_for(graph, cpu_only(info, threads))
    nodes = {node.name: node for node in graph.nodes}
    assert {t.node for t in plan.tasks if runs_kernel(t)} == set(graph.device_ops) & {t.node for t in plan.tasks}
    executor, feeds = Executor(graph, None, threads), random_feeds(graph)
    executor.load(plan)
    expected = evaluate(graph, feeds)
    for _ in range(2):
        for name, value in executor.run(feeds).items():
            assert value.shape == expected[name].shape, nodes
            np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-4)


@all_queues
def test_a_wrong_kernel_is_an_error(info: DeviceInfo, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried there too, although the same kernel may be right on the GPU side."""
    monkeypatch.setattr(device, "source", lambda name: kernels.source(name).replace("a[i][k]", "a[i][0]"))
    monkeypatch.setattr(
        "coexec.executor.cpu_queue", lambda device, threads: backend.CpuQueue(device, threads)
    )  # not one whose programs were built before
    graph = one_layer()
    with pytest.warns(UserWarning, match="linear_tile gives wrong numbers"), pytest.raises(device.DeviceError):
        Executor(graph, None, threads).load(plan_for(graph, cpu_only(info, threads)))


def test_a_driver_may_leave_its_workers_out() -> None:
    """With one thread, it is the calling one that computes, where the driver can do that."""
    info = next((d for d in CPUS if d.runs_on_caller), None)
    if info is None:
        pytest.skip("no driver here runs kernels on the thread that enqueues them")
    queue = backend.CpuQueue(info.id, 1)
    graph = one_layer()
    executor = Executor(graph, None, 1)
    executor.load(plan_for(graph, cpu_only(info, 1)))
    feeds = random_feeds(graph)
    executor.tensors.view("t0")[...] = feeds["t0"]
    executor.run_loaded()
    executor.tensors.view("t1")[...] = np.nan
    (step,) = executor._steps
    assert step.routine is not None
    step.routine()  # without waiting for anything
    np.testing.assert_allclose(executor.tensors.view("t1"), right_for(graph, feeds), rtol=1e-4, atol=1e-4)
    assert queue.session.compute_units == 1


def test_models_that_share_the_device_take_turns() -> None:
    """Each with another GPU side, from threads of their own: kernels' scratch memory is the device's."""
    links = {d.id: opened(d, 1) for d in find_devices() if d.usable}
    graph = one_layer(40)
    feeds = random_feeds(graph)
    expected = right_for(graph, feeds)
    models = []
    for link in links.values():
        use = Machine.here(link.session.info).resources(Way("", 1, 1))
        executor = Executor(graph, link, 1)
        executor.load(plan_for(graph, use, 0.5))
        models.append(executor)
    wrong: list[float] = []

    def use_it(executor: Executor) -> None:
        for _ in range(20):
            error = float(np.abs(executor.run(feeds)["t40"] - expected).max())
            if not error < 1e-3:
                wrong.append(error)

    users = [threading.Thread(target=use_it, args=(executor,)) for executor in models]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong


def test_devices_are_held_in_one_order() -> None:
    """Whoever asks for two of them, in whatever order, gets no deadlock."""
    sessions = [Session(d, 1) for d in CPUS]
    done = []

    def hold(order: list[Session]) -> None:
        for _ in range(300):
            with turns(*order, None):
                pass
        done.append(order)

    users = [threading.Thread(target=hold, args=(order,), daemon=True) for order in (sessions, sessions[::-1])]
    for user in users:
        user.start()
    for user in users:
        user.join(timeout=60)
    assert len(done) == 2


def test_a_plan_whose_cpu_device_is_another_is_refused() -> None:
    info = CPUS[0]
    graph = one_layer()
    link = opened(info, 1)
    use = replace(cpu_only(info, 1), device=info.id, device_name=info.name_and_driver, traits=link.session.traits)
    plan = plan_for(graph, use, 0.5)
    assert plan.cpu_device == info.id
    build(graph, plan)
    for change, message in (
        ({"cpu_device": "nowhere:3"}, "on a device that is not here"),
        ({"cpu_device_name": "another"}, "were chosen for 'another'"),
    ):
        with pytest.raises(PlanError, match=message) as caught:
            build(graph, replace(plan, **change))  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_a_partitioned_model_uses_them_without_a_word() -> None:
    """What runs the CPU side's kernels is found by itself, and named in the plan."""
    gpu = find_device(None)
    assert gpu is not None
    machine = Machine.here(gpu)
    if machine.cpu_kernels is None or cpu_cores() < 2:
        pytest.skip("nothing here can run kernels on the CPU side beside the GPU side")
    use = machine.resources(Way("", 1, 1))
    plan = plan_for(one_layer(3), use, 0.5)
    assert plan.cpu_device == machine.cpu_kernels.device
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(one_layer(3), plan)
        feeds = random_feeds(model.graph)
        (output,) = model.run(None, feeds)
    np.testing.assert_allclose(output, right_for(model.graph, feeds), rtol=1e-3, atol=1e-3)
