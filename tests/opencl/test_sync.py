"""Hand-overs between both sides: proof before use, delays, time limits, faults in the middle of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coexec.device import DeviceInfo, Session, cpu_cores
from coexec.errors import DeviceError, InputError, SyncTimeout
from coexec.executor import Executor
from coexec.experiments.conformance import Link, run_poisoned
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Layout
from coexec.ops.base import Axis, SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.plan import Plan
from coexec.planner import Resources, assemble, share_choices
from coexec.sync import SYNC, Sync, check_strategy, flags, open_sync, proven_strategies
from coexec.sync.events import Events
from coexec.sync.flags import DEVICE_WAIT_MS, HANDSHAKE_ROUNDS, FlagSync, exchange
from coexec.sync.queues import ABORT_WAIT_S, HOST_WAIT_S, drain
from coexec.sync.svm_flags import SvmFlags

LENGTH = 6
AXES: dict[str, Axis] = {"linear": "channel", "conv2d": "row"}
"""How each chain is cut: channels need all of the layer before, rows need the halo of the other side."""


def chain(kind: str) -> Graph:
    """Layers one after the other, each with the input of the one before as residual."""
    op: SplitOp
    if kind == "linear":
        op, shape, weight = Linear(24, 64, 64, bias=True, residual=True), (24, 64), (64, 64)
    else:
        op = Conv2d(1, 32, 12, 12, 32, 3, 3, 1, 1, 1, 1, 1, 1, bias=True, residual=True)
        shape, weight = (1, 32, 12, 12), (32, 32, 3, 3)
    rng = np.random.default_rng(2)
    scale = np.float32((weight[0] if kind == "linear" else 32 * 9) ** -0.5)
    constants: dict[str, Array] = {}
    nodes = []
    for i in range(LENGTH):
        constants[f"w{i}"] = rng.standard_normal(weight, np.float32) * scale
        constants[f"b{i}"] = rng.standard_normal(weight[-1] if kind == "linear" else 32, np.float32)
        nodes.append(Node(f"layer{i}", op, (f"t{i}", f"w{i}", f"b{i}", f"t{max(0, i - 1)}"), (f"t{i + 1}",)))
    layout = Layout.channels_last(len(shape))
    tensors = {f"t{i}": Tensor(f"t{i}", shape, np.dtype(np.float32), layout) for i in range(LENGTH + 1)}
    return Graph(f"{kind} chain", tuple(nodes), tensors, constants, ("t0",), (f"t{LENGTH}",))


def expected(graph: Graph, x: Array) -> Array:
    """The chain in float64, layer by layer."""
    values: dict[str, Array] = {**graph.constants, "t0": x}
    for node in graph.nodes:
        assert isinstance(node.op, SplitOp)
        inputs = [values[name] for name in node.inputs]
        result = np.empty(graph.tensors[node.outputs[0]].shape)
        arrays, view = node.op.canonical(inputs, result)
        view[...] = node.op.reference(arrays)
        values[node.outputs[0]] = result
    return values[graph.outputs[0]]


class Chain:
    """A chain bound to a device of its own session, half of each layer on either side."""

    def __init__(self, sync: Sync, kind: str = "linear", share: float = 0.5) -> None:
        self.sync = sync
        self.graph = chain(kind)
        self.executor = Executor(self.graph, sync, 1)
        use = Resources("", "", sync.session.traits, 1, sync.name)
        self.plan: Plan = assemble(self.graph, share_choices(self.graph, AXES[kind], share), None, use)
        self.executor.load(self.plan)
        rng = np.random.default_rng(4)
        self.x = rng.standard_normal(self.graph.tensors["t0"].shape, np.float32)
        self.y = expected(self.graph, self.x)

    def run(self) -> Array:
        return self.executor.run({"t0": self.x})[self.graph.outputs[0]]

    def check(self) -> None:
        """A run on poisoned memory is right."""
        result = run_poisoned(self.executor, self.plan, {"t0": self.x})[self.graph.outputs[0]]
        error = np.abs(result - self.y).max() / np.abs(self.y).max()
        assert error < 1e-5, error

    @contextmanager
    def before_cpu_tasks(self, action: Callable[[int], None]) -> Iterator[None]:
        """Call ``action(number)`` on the host before each CPU task."""
        executor = self.executor
        executor.load(self.plan)
        bound = executor._bound[self.plan.tasks]
        calls: list[int] = []

        def wrap(number: int, routine: Callable[[], None]) -> Callable[[], None]:
            def wrapped() -> None:
                calls.append(number)
                action(number)
                routine()

            return wrapped

        steps = [
            step if step.routine is None else replace(step, routine=wrap(step.number, step.routine))
            for step in bound[0]
        ]
        executor._bound[self.plan.tasks] = (steps, bound[1])  # a run loads the plan again
        executor.load(self.plan)
        try:
            yield
            assert calls or all(step.routine is None for step in steps), "the action was never called"
        finally:
            executor._bound[self.plan.tasks] = bound
            executor.load(self.plan)


@pytest.fixture
def sync(opencl_link: Link) -> Sync:
    """A strategy on a session that no other test shares."""
    return open_sync(Session(opencl_link.info, 1), opencl_link.sync)


@pytest.fixture(params=AXES)
def any_chain(request: pytest.FixtureRequest, sync: Sync) -> Chain:
    return Chain(sync, request.param)


@pytest.fixture
def linear_chain(sync: Sync) -> Chain:
    return Chain(sync)


def elapsed(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


# Proof before use ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYNC)
def test_a_strategy_opens_or_says_why_not(opencl_device: DeviceInfo, name: str) -> None:
    proven, refused = proven_strategies(opencl_device)
    assert (name in proven) != (name in refused)
    if name in proven:
        check_strategy(name, opencl_device)
        assert open_sync(Session(opencl_device, 1), name).name == name
        return
    with pytest.raises(DeviceError) as caught:
        open_sync(Session(opencl_device, 1), name)
    assert name in str(caught.value) and refused[name] in str(caught.value)


def test_unknown_strategy(opencl_device: DeviceInfo) -> None:
    with pytest.raises(InputError, match="there is no sync strategy 'telepathy'; there are svm_flags"):
        open_sync(Session(opencl_device, 1), "telepathy")


def test_handshake_measures_the_limit_of_a_wait(sync: Sync) -> None:
    if not isinstance(sync, FlagSync):
        pytest.skip("no handshake")
    assert 1e4 <= sync._ints[flags.LIMIT] <= 2e9


def test_failed_handshake_is_told_and_opens_every_gate(
    opencl_device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SvmFlags.obstacle(opencl_device) is not None:
        pytest.skip(str(SvmFlags.obstacle(opencl_device)))
    session = Session(opencl_device, 1)
    monkeypatch.setattr(flags, "exchange", lambda *_: "no answer in round 7")
    started = time.perf_counter()
    with pytest.raises(DeviceError, match="svm_flags: the handshake failed: no answer in round 7"):
        open_sync(session, "svm_flags")
    assert time.perf_counter() - started < 5
    monkeypatch.undo()
    Chain(open_sync(session, "svm_flags")).check()


@pytest.mark.parametrize(
    ("answered", "problem"), [(0, "no answer in round 1"), (HANDSHAKE_ROUNDS, "wrong payload in round 1")]
)
def test_host_half_of_the_handshake(answered: int, problem: str) -> None:
    """A kernel that never runs, and one that has run without having seen what the host wrote."""
    ints = memoryview(np.zeros(flags.CONTROL_INTS, np.int32))
    ints[flags.GPU] = answered
    started = time.perf_counter()
    assert exchange(ints, np.zeros(8, np.int32), np.zeros(8, np.int32)) == problem
    assert time.perf_counter() - started < 1


# Order ---------------------------------------------------------------------------------------------------


def test_right_at_every_share(sync: Sync) -> None:
    for kind in AXES:
        for share in (0.0, 0.3, 1.0):
            Chain(sync, kind, share).check()


def test_random_delays_on_the_host_change_no_bit(any_chain: Chain) -> None:
    any_chain.check()
    first, rng = any_chain.run().tobytes(), np.random.default_rng(6)

    def delay(_: int) -> None:
        until = time.perf_counter() + (0 if rng.random() < 0.5 else rng.exponential(2e-4))
        while time.perf_counter() < until:
            pass

    with any_chain.before_cpu_tasks(delay):
        for _ in range(300):
            assert any_chain.run().tobytes() == first


def test_a_late_cpu_task_is_waited_for(any_chain: Chain) -> None:
    """Slower than a layer, faster than the device's limit."""
    with any_chain.before_cpu_tasks(lambda number: time.sleep(0.01)):
        any_chain.check()


def test_sides_that_share_all_cores_take_turns(opencl_link: Link) -> None:
    """More compute units and threads than cores: nothing is enqueued ahead, since a waiting kernel would spin."""
    units = opencl_link.info.compute_units
    if not opencl_link.info.emulated_gpu or units < cpu_cores():
        pytest.skip("the device has cores of its own")
    sync = open_sync(Session(opencl_link.info, units), opencl_link.sync)
    for kind in AXES:
        for share in (0.5, 1.0):
            own = Chain(sync, kind, share)
            assert sync.session.takes_turns(own.executor.cpu_threads)
            own.check()
            with own.before_cpu_tasks(lambda number: time.sleep(3 * DEVICE_WAIT_MS / 1e3 if number == 2 else 0)):
                own.check()
    assert sync.in_turn


def test_models_of_two_threads_take_turns(sync: Sync) -> None:
    chains = [Chain(sync, kind) for kind in AXES]
    wrong: list[str] = []

    def work(own: Chain) -> None:
        for _ in range(30):
            error = np.abs(own.run() - own.y).max() / np.abs(own.y).max()
            if not error < 1e-5:
                wrong.append(f"{own.graph.name}: {error}")

    threads = [threading.Thread(target=work, args=(own,)) for own in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_numbers_may_start_again(linear_chain: Chain) -> None:
    """After about 10^9 tasks the sequence numbers go back to 0 between two runs."""
    sync = linear_chain.sync
    if not isinstance(sync, FlagSync):
        pytest.skip("no sequence numbers")
    sync._base = (1 << 30) - 3
    for _ in range(3):
        linear_chain.check()
    assert sync._base < 100


# Time limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [1, LENGTH])
def test_a_cpu_task_beyond_the_devices_limit_costs_a_relaunch(
    any_chain: Chain, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = any_chain.sync
    relaunches: list[int] = []
    if isinstance(sync, FlagSync):
        original = sync._relaunch
        monkeypatch.setattr(sync, "_relaunch", lambda: (relaunches.append(1), original()))
    asleep = 5 * DEVICE_WAIT_MS / 1e3 + 0.1
    with any_chain.before_cpu_tasks(lambda number: time.sleep(asleep if number == late else 0)):
        any_chain.check()
    if isinstance(sync, FlagSync) and late < LENGTH:
        assert relaunches, "the kernel waited longer than its limit, or did not wait"
    any_chain.check()


def test_a_wait_that_is_never_met_times_out(linear_chain: Chain) -> None:
    """The kernel gives up and is launched again and again, until the host gives up."""
    if not linear_chain.sync.in_kernel:
        pytest.skip("kernels do not wait themselves")
    launch = linear_chain.executor._launches[2]
    launch.kernel.set_arg(launch.kernel.num_args - 2, np.int32(1 << 20))
    assert_times_out(linear_chain)


def test_a_kernel_that_never_signals_times_out(linear_chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    sync, launch = linear_chain.sync, linear_chain.executor._launches[-1]
    if sync.in_kernel:
        # It reports a progress of none. It is the last one: a later kernel's signal would stand for its own.
        launch.kernel.set_arg(launch.kernel.num_args - 1, np.int32(0))
    else:
        assert isinstance(sync, Events)
        original = sync.launch

        def lose(given: Any) -> None:
            original(given)
            if given is launch:
                sync._events[given.number] = cl.UserEvent(sync.session.context)

        monkeypatch.setattr(sync, "launch", lose)
    assert_times_out(linear_chain)


def assert_times_out(own: Chain) -> None:
    started = time.perf_counter()
    with pytest.raises(SyncTimeout) as caught:
        own.run()
    took = time.perf_counter() - started
    assert HOST_WAIT_S * 0.9 < took < HOST_WAIT_S + 0.7
    assert own.sync.session.info.id in str(caught.value) and "\n" not in str(caught.value)
    Chain(own.sync).check()  # the queue is usable


# Faults in the middle of a run ---------------------------------------------------------------------------


class Broken(Exception):
    pass


@pytest.mark.parametrize("failing", range(1, LENGTH + 1))
def test_a_cpu_task_that_raises_ends_the_run(any_chain: Chain, failing: int) -> None:
    def fail(number: int) -> None:
        if number == failing:
            raise Broken

    def run() -> None:
        with any_chain.before_cpu_tasks(fail), pytest.raises(Broken):
            any_chain.run()

    assert elapsed(run) < 2
    any_chain.check()


def test_ctrl_c_while_the_host_works(any_chain: Chain) -> None:
    """The signal comes while kernels of later layers spin."""

    def interrupt(number: int) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    def run() -> None:
        with any_chain.before_cpu_tasks(interrupt), pytest.raises(KeyboardInterrupt):
            any_chain.run()

    assert elapsed(run) < 2
    any_chain.check()


def test_ctrl_c_while_the_host_waits(linear_chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the host waits for a GPU side that does not get on."""
    import pyopencl as cl

    sync, launch = linear_chain.sync, linear_chain.executor._launches[2]
    if sync.in_kernel:
        position, number = launch.kernel.num_args - 2, np.int32(launch.wait_for)
        launch.kernel.set_arg(position, np.int32(1 << 20))
    else:
        assert isinstance(sync, Events)
        original, lost = sync.launch, cl.UserEvent(sync.session.context)

        def lose(given: Any) -> None:
            original(given)
            if given is launch:
                sync._events[given.number] = lost

        monkeypatch.setattr(sync, "launch", lose)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()

    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            linear_chain.run()

    try:
        assert elapsed(run) < 2
    finally:
        timer.join()
    if sync.in_kernel:
        launch.kernel.set_arg(position, number)
        linear_chain.check()
    else:
        monkeypatch.undo()
        Chain(sync).check()


def test_no_kernel_spins_after_a_failed_run(any_chain: Chain) -> None:
    """The host tells waiting kernels that it gave up; they need not come to the end of their patience."""
    sync = any_chain.sync
    if isinstance(sync, FlagSync):
        sync._ints[flags.LIMIT] = 2_000_000_000  # many seconds

    def fail(number: int) -> None:
        raise Broken

    def run() -> None:
        with any_chain.before_cpu_tasks(fail), pytest.raises(Broken):
            any_chain.run()

    assert elapsed(run) < ABORT_WAIT_S
    assert elapsed(lambda: drain(sync.session)) < 0.5
    any_chain.check()


def test_ctrl_c_while_giving_up_is_made_good_by_the_next_run(
    linear_chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C, in the middle of ending the run: the next run ends it first, then is right."""
    sync = linear_chain.sync
    original = sync.abort

    def interrupted() -> None:
        monkeypatch.setattr(sync, "abort", original)
        raise KeyboardInterrupt

    def fail(number: int) -> None:
        if number == 2:
            raise Broken

    monkeypatch.setattr(sync, "abort", interrupted)
    with linear_chain.before_cpu_tasks(fail), pytest.raises(KeyboardInterrupt):
        linear_chain.run()
    linear_chain.check()


def test_a_stuck_queue_refuses_every_model_until_it_is_opened_again(
    linear_chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is the queue, not the model that met it: others that share it must not run either."""
    sync = linear_chain.sync
    other = Chain(sync)

    def stuck() -> None:
        raise DeviceError("it does not end")

    def fail(number: int) -> None:
        raise Broken

    monkeypatch.setattr(sync, "abort", stuck)
    with linear_chain.before_cpu_tasks(fail), pytest.raises(Broken):
        linear_chain.run()
    for chain in (linear_chain, other):
        with pytest.raises(DeviceError, match="load the model again"):
            chain.run()


def test_a_forked_process_is_told_so(opencl_device: DeviceInfo) -> None:
    """Drivers do not survive a fork: neither an open model nor a new one may wait for a device that is not there."""
    code = f"""
import os, numpy, coexec
from coexec.device import find_device
from coexec.planner import assemble, share_choices
from coexec.ways import Machine, Way
proto = coexec.zoo.build("squeezenet", image_size=64)
x = numpy.ones((1, 3, 64, 64), numpy.float32)
model = coexec.partition(proto, device={opencl_device.id!r}, cpu_threads=1, compute_units=1)
graph, machine = model.graph, Machine.here(find_device({opencl_device.id!r}))
model.plan = assemble(graph, share_choices(graph, "row", 0.5), None, machine.resources(Way("", 1, 1)))
model(x)
if os.fork() == 0:
    for use in (lambda: model(x), lambda: coexec.partition(proto, device={opencl_device.id!r})):
        try:
            use()
        except coexec.DeviceError as error:
            print("told:", "spawn" in str(error), flush=True)
    print("alone:", coexec.partition(proto, device="cpu")(x).shape, flush=True)
    os._exit(0)
os.wait()
print("parent:", model(x).shape)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[:4] == ["told: True", "told: True", "alone: (1, 1000)", "parent: (1, 1000)"], done
