"""How both sides share memory and tell one another how far they are.

Memory kind and signalling are one object, a :class:`Sync`; a new one is a class and a line in SYNC.

``svm_flags``   fine-grained SVM with atomics. Every launch of the network is enqueued ahead on the in-order
                queue; kernels wait for the CPU side, and tell it that they are done, through flags in shared
                memory (kernels/sync.cl has the protocol).
``host_flags``  the same through host-located buffers (cl_nv_create_buffer on NVIDIA).
``events``      any OpenCL 1.2 device: a launch is enqueued when its inputs exist, regions that cross sides
                are copied, completion is read from events.
"""

from __future__ import annotations

import platform as host_platform
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from coexec.device import DeviceInfo, Session
from coexec.errors import DeviceError, PlanError, SyncTimeout
from coexec.layout import Array
from coexec.opencl_runtime import adopting_threads

DEVICE_WAIT_MS = 50.0
"""A kernel's longest wait for the CPU side: far below the drivers' watchdogs (100 ms and more)."""
HOST_WAIT_S = 2.0
"""The host's longest wait for progress of the GPU side."""
ABORT_WAIT_S = 1.5
"""The longest wait for the queue of a run that failed, so that Ctrl-C ends within two seconds."""
COMPILE_WAIT_S = 120.0
"""The longest wait for a kernel's first launch: PoCL compiles it then, for seconds on a busy machine."""

# Index of each int in the control block; kernels/sync.cl says what they mean.
CPU, GPU, STATUS, BASE, LIMIT = 0, 32, 64, 96, 97
CONTROL_INTS = 128
RUNNING, TIMED_OUT, GIVEN_UP = 0, 1, 2
MAX_LAUNCHES = 1 << 16


@dataclass
class Memory:
    """One allocation: ``host`` (uint8) is what the CPU side uses, ``argument`` what kernels get."""

    host: Array
    argument: Any

    @property
    def address(self) -> int:
        return int(self.host.ctypes.data)


@dataclass
class Launch:
    """One enqueued kernel of the GPU side, the ``number``-th of a run (from 1).

    Attributes:
        wait_for: number of the CPU task that must be done before (0: none).
        uploads, downloads: views into host memory to copy before and after where sides don't share it.
    """

    kernel: Any
    global_size: tuple[int, ...]
    number: int
    wait_for: int
    uploads: list[tuple[Memory, Array]] = field(default_factory=list)
    downloads: list[tuple[Memory, Array]] = field(default_factory=list)


class Sync(ABC):
    """Shared memory and hand-overs of one session. Not thread-safe: runs take turns."""

    name: ClassVar[str]
    in_kernel: ClassVar[bool]
    """Whether kernels wait and signal themselves (-DCOEXEC_SYNC=1)."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lost = ""
        """Why the queue can no longer be used; "" while it can."""
        self._unsettled = False

    @classmethod
    @abstractmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        """Why this device cannot have it, by what it says of itself; None if it may."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Memory for tensors, zeroed."""

    def constant(self, array: Array) -> Any:
        """Device memory with the content of ``array``; returns the kernel argument."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        try:
            return cl.Buffer(self.session.context, flags, hostbuf=np.ascontiguousarray(array))
        except cl.Error as error:
            raise DeviceError(_no_memory(self.session, array.nbytes, error)) from error

    def control_arguments(self, launch: Launch) -> list[Any]:
        """Arguments of COEXEC_ARGS for a launch; none unless ``in_kernel``."""
        return []

    @abstractmethod
    def warm(self, launch: Launch) -> None:
        """Launch one work-group of a new kernel between runs, so that no run waits for its compilation.

        Its outputs may be written; a run writes them again.
        """

    def require_usable(self) -> None:
        """Raise DeviceError if an earlier run left the queue stuck."""
        if self.lost:
            raise DeviceError(f"{self.session.info.id} got stuck in an earlier run ({self.lost}); load the model again")

    def begin(self, launches: Sequence[Launch]) -> None:
        """Begin a run of these launches, after ``require_usable``."""
        if self._unsettled:  # giving up an earlier run was itself interrupted
            self.abort()
        self._unsettled = True
        self.start(launches)

    def end(self) -> None:
        """The run has come to its end: nothing is left in the queue."""
        self._unsettled = False

    def give_up(self, user: Any) -> None:
        """End a run that failed. If its kernels can't be stopped, what they use (``user``) is kept for good."""
        try:
            self.abort()
            self._unsettled = False
        except DeviceError as error:
            self.lost = str(error)
            _stuck.append((self, user))

    @abstractmethod
    def start(self, launches: Sequence[Launch]) -> None:
        """Begin a run of these launches on an idle queue."""

    @abstractmethod
    def launch(self, launch: Launch) -> None:
        """The run has come to this launch: all CPU tasks that it waits for are done."""

    @abstractmethod
    def wait(self, number: int) -> None:
        """Return when launch ``number`` is done and its outputs are visible; SyncTimeout, DeviceError."""

    @abstractmethod
    def done(self, number: int) -> None:
        """The CPU side has finished its task ``number`` (from 1, increasing)."""

    @abstractmethod
    def abort(self) -> None:
        """End a run that failed: no kernel goes on spinning. DeviceError if the queue can't be drained."""


class SvmFlags(Sync):
    """Flags and tensors in fine-grained SVM."""

    name = "svm_flags"
    in_kernel = True

    @classmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        if info.svm_capabilities & 0xA != 0xA:
            return f"no fine-grained SVM with atomics (capabilities {info.svm_capabilities:#x}, 0xa needed)"
        return None

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        import pyopencl as cl

        self._control = self.allocate(CONTROL_INTS * 4)
        self._ints = self._control.host.view(np.int32).data  # plain ints, several times faster than NumPy's
        self._base = 0
        self._tasks = 0
        self._launches: Sequence[Launch] = ()
        self._arrivals = cl.Buffer(session.context, cl.mem_flags.READ_WRITE, 4 * MAX_LAUNCHES)
        self._clear_arrivals()
        self._ints[LIMIT] = handshake(self)

    def allocate(self, nbytes: int) -> Memory:
        import pyopencl as cl

        flags = cl.svm_mem_flags
        size = max(nbytes, 64)
        try:
            array = cl.svm_empty(
                self.session.context,
                flags.READ_WRITE | flags.SVM_FINE_GRAIN_BUFFER | flags.SVM_ATOMICS,
                (size,),
                np.uint8,
                alignment=128,
            )
        except cl.Error as error:
            raise DeviceError(_no_memory(self.session, nbytes, error)) from error
        array[...] = 0
        return Memory(array, cl.SVM(array))

    def control_arguments(self, launch: Launch) -> list[Any]:
        if launch.number >= MAX_LAUNCHES:
            raise PlanError(f"a plan may have {MAX_LAUNCHES} launches, this one has more; put layers on the CPU side")
        return [self._control.argument, self._arrivals, np.int32(launch.wait_for), np.int32(launch.number)]

    def warm(self, launch: Launch) -> None:
        with self.session.turn:
            self._ints[STATUS] = GIVEN_UP  # the kernel falls through at once
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
        self._enqueue(launches)

    def launch(self, launch: Launch) -> None:
        pass  # enqueued by start; its kernel waits for the flag

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
                cl.enqueue_nd_range_kernel(self.session.queue, launch.kernel, launch.global_size, (1, 1, 1))
            self.session.queue.flush()
        except cl.Error as error:
            raise DeviceError(f"{self.session.info.id} refused a kernel: {error}") from error

    def _poll(self, target: int) -> None:
        ints = self._ints
        seen, since = ints[GPU], time.perf_counter()
        while True:
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
        self._enqueue(self._launches[self._ints[GPU] - self._base :])

    def _clear_arrivals(self) -> None:
        import pyopencl as cl

        cl.enqueue_fill_buffer(self.session.queue, self._arrivals, np.int32(0), 0, self._arrivals.size)
        drain(self.session)


class HostFlags(Sync):
    """Flags and tensors in host-located buffers."""

    name = "host_flags"
    in_kernel = True

    @classmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        if "cl_nv_create_buffer" not in info.handle.extensions:
            return "no host-located buffers (extension cl_nv_create_buffer)"
        return "host-located buffers have not been proven on such a GPU yet"

    def allocate(self, nbytes: int) -> Memory:
        raise DeviceError("host_flags is not available; choose another sync strategy")

    warm = start = launch = wait = done = abort = allocate  # type: ignore[assignment]


class Events(Sync):
    """Separate memories, copies of what crosses sides, completion by events."""

    name = "events"
    in_kernel = False

    @classmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        return None

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._events: dict[int, Any] = {}
        self._copies: list[Any] = []
        """Events of the run's copies: pyopencl waits in their release, so they are kept until they are done."""

    def allocate(self, nbytes: int) -> Memory:
        import pyopencl as cl

        host = np.zeros(max(nbytes, 64) + 128, np.uint8)
        host = host[-host.ctypes.data % 128 :][: max(nbytes, 64)]
        try:
            return Memory(host, cl.Buffer(self.session.context, cl.mem_flags.READ_WRITE, host.nbytes))
        except cl.Error as error:
            raise DeviceError(_no_memory(self.session, nbytes, error)) from error

    def warm(self, launch: Launch) -> None:
        with self.session.turn:
            launch_once(launch, self.session)

    def start(self, launches: Sequence[Launch]) -> None:
        self._events.clear()
        self._copies.clear()

    def launch(self, launch: Launch) -> None:
        import pyopencl as cl

        queue = self.session.queue
        try:
            for memory, view in launch.uploads:
                self._copies += copy_region(queue, memory, view, to_device=True)
            event = cl.enqueue_nd_range_kernel(queue, launch.kernel, launch.global_size, (1, 1, 1))
            for memory, view in launch.downloads:
                copies = copy_region(queue, memory, view, to_device=False)
                self._copies += copies
                event = copies[-1] if copies else event
            queue.flush()
        except cl.Error as error:
            raise DeviceError(f"{self.session.info.id} refused a kernel: {error}") from error
        self._events[launch.number] = event

    def wait(self, number: int) -> None:
        poll_event(self._events[number], self.session)

    def done(self, number: int) -> None:
        pass

    def abort(self) -> None:
        drain(self.session, ABORT_WAIT_S)


_stuck: list[tuple[Sync, Any]] = []
"""Queues whose kernels could not be stopped, with the memory that those may still write."""

SYNC: dict[str, type[Sync]] = {cls.name: cls for cls in (SvmFlags, HostFlags, Events)}


def open_sync(session: Session, name: str | None = None) -> Sync:
    """The named strategy on this session, or the first that the device offers and that proves itself.

    Raises DeviceError with the reason if the named one (or every one) is not available.
    """
    if name is not None and name not in SYNC:
        raise DeviceError(f"unknown sync strategy {name!r}; there are {', '.join(SYNC)}")
    reasons = []
    for candidate in [SYNC[name]] if name else SYNC.values():
        reason = candidate.obstacle(session.info)
        if reason is None:
            try:
                return candidate(session)
            except DeviceError as error:  # it cannot be built, allocated or proven here
                reason = str(error)
        reasons.append(f"{candidate.name}: {reason}")
    raise DeviceError(f"{session.info.id} offers no such synchronisation ({'; '.join(reasons)})")


def available_sync(info: DeviceInfo) -> list[str]:
    """Strategies that prove themselves on the device; opens it for a moment."""
    names = []
    for name in SYNC:
        try:
            open_sync(Session(info), name)
            names.append(name)
        except DeviceError:
            continue
    return names


HANDSHAKE_ROUNDS = 64
HANDSHAKE_WORDS = 256
HANDSHAKE_ATTEMPTS = 3
"""A busy machine may hold either side up beyond the limits of one attempt; a driver that cannot do it fails all."""


def handshake(sync: SvmFlags) -> int:
    """Bounded two-way handshake with a payload; the spins that make DEVICE_WAIT_MS.

    Capabilities alone prove nothing: a driver may run kernels inside the enqueue call, or only show the
    host's writes when a kernel ends. Raises SyncTimeout.
    """
    import pyopencl as cl

    session = sync.session
    program = session.build("handshake", {"COEXEC_SYNC": 1})
    ints = sync._ints
    ints[CPU] = ints[GPU] = ints[STATUS] = 0
    spins = 1 << 20
    timer = cl.Kernel(program, "count_spins")
    timer.set_args(sync._control.argument, np.int32(spins))
    duration_s = min(_timed(session, timer) for _ in range(3))
    limit = int(min(max(spins * DEVICE_WAIT_MS / 1e3 / max(duration_s, 1e-6), 1e4), 2e9))

    payload = sync.allocate(HANDSHAKE_WORDS * 4)
    kernel = cl.Kernel(program, "handshake")

    def start(rounds: int) -> Any:
        ints[CPU] = ints[GPU] = ints[STATUS] = 0
        kernel.set_args(
            sync._control.argument,
            payload.argument,
            np.int32(HANDSHAKE_WORDS),
            np.int32(rounds),
            np.int32(limit),
        )
        event = cl.enqueue_nd_range_kernel(session.queue, kernel, (1,), (1,))
        session.queue.flush()
        return event

    poll_event(start(0), session, COMPILE_WAIT_S)  # no round yet: a driver may compile it now
    for _ in range(HANDSHAKE_ATTEMPTS):
        event = start(HANDSHAKE_ROUNDS)
        problem = _answer(ints, payload.host.view(np.int32))
        if problem:
            ints[CPU] = HANDSHAKE_ROUNDS  # open every gate, so that the kernel ends
        poll_event(event, session)
        if not problem:
            return limit
    raise SyncTimeout(f"the handshake failed: {problem}")


def _answer(ints: memoryview, words: Array) -> str | None:
    """The host's half of the handshake; what went wrong, or None."""
    rng = np.random.default_rng(0)
    for r in range(1, HANDSHAKE_ROUNDS + 1):
        sent = rng.integers(0, 1 << 20, words.size, np.int32)
        words[:] = sent
        host_fence()
        ints[CPU] = r
        deadline = time.perf_counter() + 4 * DEVICE_WAIT_MS / 1e3
        while ints[GPU] < r:
            if ints[STATUS] or time.perf_counter() > deadline:
                return f"no answer in round {r}"
        host_fence()
        if not np.array_equal(words, sent * 5 + r):
            return f"wrong payload in round {r}"
    return None


def _timed(session: Session, kernel: Any) -> float:
    import pyopencl as cl

    start = time.perf_counter()
    event = cl.enqueue_nd_range_kernel(session.queue, kernel, (1,), (1,))
    session.queue.flush()
    poll_event(event, session, COMPILE_WAIT_S)
    return time.perf_counter() - start


def launch_once(launch: Launch, session: Session) -> None:
    """Launch one work-group of a kernel and wait as long as compiling it may take."""
    import pyopencl as cl

    with adopting_threads():  # a driver may start further workers now
        try:
            event = cl.enqueue_nd_range_kernel(session.queue, launch.kernel, (1, 1, 1), (1, 1, 1))
            session.queue.flush()
        except cl.Error as error:
            raise DeviceError(f"{session.info.id} refused a kernel: {error}") from error
        poll_event(event, session, COMPILE_WAIT_S)


def poll_event(event: Any, session: Session, limit_s: float = HOST_WAIT_S) -> None:
    """Wait for an event by reading its status, for ``limit_s`` seconds at most.

    Never by clWaitForEvents: Intel's CPU runtime lets the waiting thread join the work, on another core.
    """
    import pyopencl as cl

    complete = cl.command_execution_status.COMPLETE
    deadline = time.perf_counter() + limit_s
    while (status := event.command_execution_status) != complete:
        if status < 0:
            raise DeviceError(f"{session.info.id}: a command failed with OpenCL error {status}")
        if time.perf_counter() > deadline:
            raise SyncTimeout(f"{session.info.id} did not finish within {limit_s:.0f} s; open it again")


def drain(session: Session, limit_s: float = HOST_WAIT_S) -> None:
    """Wait, with a bound, until the queue is empty."""
    import pyopencl as cl

    event = cl.enqueue_marker(session.queue)
    session.queue.flush()
    poll_event(event, session, limit_s)


def copy_region(queue: Any, memory: Memory, view: Array, to_device: bool) -> list[Any]:
    """Copy a strided view of ``memory.host`` to the same place of its device buffer, or back.

    Returns the events of the copies (none if the view is empty); the memory must live until they are done.
    """
    import pyopencl as cl

    events = []
    offset = int(view.ctypes.data) - memory.address
    for start, shape, strides in _blocks(offset, view):
        width, rows, slices = shape[2], shape[1], shape[0]
        block = memory.host[start : start + (slices - 1) * strides[0] + (rows - 1) * strides[1] + width]
        if slices == 1 and rows == 1:
            if to_device:
                event = cl.enqueue_copy(queue, memory.argument, block, dst_offset=start, is_blocking=False)
            else:
                event = cl.enqueue_copy(queue, block, memory.argument, src_offset=start, is_blocking=False)
            events.append(event)
            continue
        layout = {
            "buffer_origin": (start, 0, 0),
            "host_origin": (start, 0, 0),
            "region": (width, rows, slices),
            "buffer_pitches": (strides[1], strides[0]),
            "host_pitches": (strides[1], strides[0]),
            "is_blocking": False,
        }
        if to_device:
            event = cl.enqueue_copy(queue, memory.argument, memory.host, **layout)
        else:
            event = cl.enqueue_copy(queue, memory.host, memory.argument, **layout)
        events.append(event)
    return events


def _blocks(offset: int, view: Array) -> list[tuple[int, tuple[int, int, int], tuple[int, int]]]:
    """The view as blocks of slices x rows x contiguous bytes: (offset, shape, (slice and row stride))."""
    if view.size == 0:
        return []
    dims = sorted(
        ((stride, size) for stride, size in zip(view.strides, view.shape, strict=True) if size > 1), reverse=True
    )
    merged: list[tuple[int, int]] = []  # (stride, size), outermost first, adjacent ones joined
    for stride, size in [*dims, (1, view.itemsize)]:
        if merged and merged[-1][0] == stride * size:
            merged[-1] = (stride, size * merged[-1][1])
        else:
            merged.append((stride, size))
    width = merged.pop()[1]
    rows = merged.pop() if merged else (width, 1)
    slices = merged.pop() if merged else (rows[0] * rows[1], 1)
    starts = [offset]
    for stride, size in merged:
        starts = [s + i * stride for s in starts for i in range(size)]
    return [(s, (slices[1], rows[1], width), (slices[0], rows[0])) for s in starts]


def _no_memory(session: Session, nbytes: int, error: Exception) -> str:
    return (
        f"{session.info.id} refused {nbytes / 1e6:.1f} MB of memory (its limit per allocation is "
        f"{session.info.handle.max_mem_alloc_size / 1e6:.0f} MB): {error}"
    )


def _strong_fence() -> None:
    # Two lock round trips: release of the first and acquire of the second are not reordered, which
    # orders what comes before against what comes after on weakly ordered processors.
    for lock in _fence_locks:
        with lock:
            pass


_fence_locks = (threading.Lock(), threading.Lock())

host_fence: Callable[[], None] = (lambda: None) if host_platform.machine() in ("x86_64", "AMD64") else _strong_fence
"""Orders the host's accesses to data and flags. x86 keeps loads and stores in order by itself."""
