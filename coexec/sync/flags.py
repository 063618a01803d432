"""Flags in memory that both sides see at once: kernels are enqueued ahead and wait for the CPU side themselves.

Every launch of the network is enqueued ahead on the in-order queue; kernels wait for the CPU side, and tell it
that they are done, through flags (kernels/sync.cl has the protocol). Where both sides use the same cores, a launch
is enqueued when its turn has come instead, and the host sleeps while it waits. Where such memory comes from is up to
the strategy.
"""

from __future__ import annotations

import platform as host_platform
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coexec.device import Session
from coexec.errors import DeviceError, PlanError, SyncTimeout
from coexec.layout import Array
from coexec.sync.base import Launch, Region, Sync
from coexec.sync.helper import Helper
from coexec.sync.queues import ABORT_WAIT_S, COMPILE_WAIT_S, HOST_WAIT_S, drain, launch_once, poll_event

DEVICE_WAIT_MS = 50.0
"""A kernel's longest wait for the CPU side: far below the drivers' watchdogs (100 ms and more)."""

# Index of each int in the control block; kernels/sync.cl says what they mean.
CPU, GPU, STATUS, BASE, LIMIT = 0, 32, 64, 96, 97
CONTROL_INTS = 128
RUNNING, TIMED_OUT, GIVEN_UP = 0, 1, 2
MAX_LAUNCHES = 1 << 16

HANDSHAKE_RUNS = 4
HANDSHAKE_ROUNDS = 16
"""Of each run; a round is a launch, which takes a kernel object of its own, and those are dear to make."""
HANDSHAKE_GROUPS = 4
HANDSHAKE_WORDS = 64
"""Ints that each work-group passes on."""
HANDSHAKE_ATTEMPTS = 3
"""A busy machine may hold either side up beyond the limits of one attempt; a driver that cannot do it fails all."""


class FlagSync(Sync):
    """The protocol, over whatever memory ``allocate`` gives; proves itself when it is opened."""

    in_kernel = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        import pyopencl as cl

        self._control = self.allocate(CONTROL_INTS * 4)
        self._ints = self._control.host.view(np.int32).data  # plain ints, several times faster than NumPy's
        self._base = 0
        self._tasks = 0
        self._launches: Sequence[Launch] = ()
        self._enqueued = 0
        self._last: Any = None
        self._helper = Helper()
        self._arrivals = cl.Buffer(session.context, cl.mem_flags.READ_WRITE, 4 * MAX_LAUNCHES)
        self._clear_arrivals()
        self._ints[LIMIT] = self._spins_per_wait()
        self._handshake()

    def control_arguments(self, launch: Launch) -> list[Any]:
        if launch.number >= MAX_LAUNCHES:
            raise PlanError(f"a plan may have {MAX_LAUNCHES} launches, this one has more; put layers on the CPU side")
        return [self._control.argument, self._arrivals, np.int32(launch.wait_for), np.int32(launch.number)]

    def try_out(self, launch: Launch, inputs: Sequence[Region], output: Region) -> None:
        with self.session.turn:
            self._ints[BASE] = self._ints[GPU] = self._base
            self._ints[CPU] = self._base + launch.wait_for
            self._ints[STATUS] = RUNNING
            launch_once(launch, self.session)

    def start(self, launches: Sequence[Launch]) -> None:
        self._launches = launches
        self._base += self._tasks
        if self._base > 1 << 30:
            self._base = 0  # between runs nothing waits, so numbers may start again
        self._tasks = len(launches)
        ints = self._ints
        ints[CPU] = ints[GPU] = ints[BASE] = self._base
        ints[STATUS] = RUNNING
        self._enqueued = 0
        if not self.in_turn:
            self._enqueue(launches)

    def launch(self, launch: Launch) -> None:
        if self.in_turn:  # else it was enqueued by start, and its kernel waits for the flag
            self._enqueue([launch])

    def wait(self, number: int) -> None:
        ints, target = self._ints, self._base + number
        if ints[GPU] < target:
            self._poll(target)
        host_fence()

    def done(self, number: int) -> None:
        host_fence()
        self._tasks = max(self._tasks, number)
        self._ints[CPU] = self._base + number

    def abort(self) -> None:
        self._ints[STATUS] = GIVEN_UP
        drain(self.session, ABORT_WAIT_S)
        self._clear_arrivals()

    def _enqueue(self, launches: Sequence[Launch]) -> None:
        import pyopencl as cl

        try:
            for launch in launches:
                self._last = cl.enqueue_nd_range_kernel(
                    self.session.queue, launch.kernel, launch.global_size, (1, 1, 1)
                )
            self.session.queue.flush()
        except cl.Error as error:
            raise DeviceError(f"{self.session.info.id} refused a kernel: {error}") from error
        self._enqueued = launches[-1].number if launches else 0

    def _poll(self, target: int) -> None:
        ints = self._ints
        seen, since = ints[GPU], time.perf_counter()
        while True:
            if self.in_turn:
                self._helper.wait(self._last, HOST_WAIT_S / 10)
            for _ in range(1000):
                if ints[GPU] >= target:
                    return
            if ints[STATUS] == TIMED_OUT:
                self._relaunch()
            now = time.perf_counter()
            if ints[GPU] != seen:
                seen, since = ints[GPU], now
            elif now - since > HOST_WAIT_S:
                raise SyncTimeout(
                    f"{self.session.info.id} made no progress for {HOST_WAIT_S:.0f} s (launch "
                    f"{seen - self._base + 1} of {len(self._launches)}); the run was given up"
                )

    def _relaunch(self) -> None:
        """A kernel's wait ran out although the CPU side is alive: launch again what is not done."""
        drain(self.session)
        self._clear_arrivals()
        self._ints[STATUS] = RUNNING
        self._enqueue(self._launches[self._ints[GPU] - self._base : self._enqueued])

    def _clear_arrivals(self) -> None:
        import pyopencl as cl

        cl.enqueue_fill_buffer(self.session.queue, self._arrivals, np.int32(0), 0, self._arrivals.size)
        drain(self.session)

    def _spins_per_wait(self) -> int:
        """The spins that make DEVICE_WAIT_MS."""
        import pyopencl as cl

        session, spins = self.session, 1 << 17
        kernel = cl.Kernel(session.build("handshake", {"COEXEC_SYNC": 1}), "count_spins")
        kernel.set_arg(0, self._control.argument)
        kernel.set_arg(1, np.int32(spins))
        duration_s = min(_timed(session, kernel) for _ in range(3))
        return int(min(max(spins * DEVICE_WAIT_MS / 1e3 / max(duration_s, 1e-6), 1e4), 2e9))

    def _handshake(self) -> None:
        """A bounded two-way proof on a run of trivial launches, enqueued ahead as a network's are.

        Capabilities alone prove nothing: a driver may run kernels inside the enqueue call, or only show the
        host's writes when a kernel ends. Raises SyncTimeout.
        """
        import pyopencl as cl

        nbytes = 4 * HANDSHAKE_GROUPS * HANDSHAKE_WORDS
        sent, answer = self.allocate(nbytes), self.allocate(nbytes)
        program = self.session.build("handshake", {"COEXEC_SYNC": 1})
        launches = []
        for number in range(1, HANDSHAKE_ROUNDS + 1):
            launch = Launch(cl.Kernel(program, "handshake"), (HANDSHAKE_GROUPS, 1, 1), number, wait_for=number)
            control = self.control_arguments(launch)
            for index, argument in enumerate((sent.argument, answer.argument, np.int32(HANDSHAKE_WORDS), *control)):
                launch.kernel.set_arg(index, argument)
            launches.append(launch)
        self._ints[STATUS] = GIVEN_UP  # for the first launch, in which the driver may compile: it falls through
        launch_once(launches[0], self.session)
        for _ in range(HANDSHAKE_RUNS):
            self._prove(launches, sent.host.view(np.int32), answer.host.view(np.int32))

    def _prove(self, launches: Sequence[Launch], sent: Array, answer: Array) -> None:
        for _ in range(HANDSHAKE_ATTEMPTS):
            self.start(launches)
            problem = exchange(self._ints, sent, answer)
            if problem is None:
                drain(self.session)
                return
            self.abort()
        raise SyncTimeout(f"the handshake failed: {problem}")


def exchange(ints: memoryview, sent: Array, answer: Array) -> str | None:
    """The host's half of the handshake; what went wrong, or None."""
    base = ints[BASE]
    words = np.arange(sent.size) * 7919
    for r in range(1, HANDSHAKE_ROUNDS + 1):
        sent[:] = (words + (base + r) * 40503) % (1 << 20)  # other numbers in every round of every run
        host_fence()
        ints[CPU] = base + r
        deadline = time.perf_counter() + 4 * DEVICE_WAIT_MS / 1e3
        while ints[GPU] < base + r:
            if ints[STATUS] or time.perf_counter() > deadline:
                return f"no answer in round {r}"
        host_fence()
        if not np.array_equal(answer, sent * 5 + r):
            return f"wrong payload in round {r}"
    return None


def _timed(session: Session, kernel: Any) -> float:
    import pyopencl as cl

    start = time.perf_counter()
    event = cl.enqueue_nd_range_kernel(session.queue, kernel, (1,), (1,))
    session.queue.flush()
    poll_event(event, session, COMPILE_WAIT_S)
    return time.perf_counter() - start


def _lock_fence() -> None:
    # NumPy and Python offer no fence. Two lock round trips: what comes before stays before the release of the
    # first, what comes after stays after the acquire of the second, and aarch64 keeps those two in order.
    for lock in _fence_locks:
        with lock:
            pass


_fence_locks = (threading.Lock(), threading.Lock())

host_fence: Callable[[], None] = (lambda: None) if host_platform.machine() in ("x86_64", "AMD64") else _lock_fence
"""Orders the host's accesses to data and flags. x86 keeps loads and stores in order by itself."""
