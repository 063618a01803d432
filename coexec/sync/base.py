"""What a synchronisation strategy is: memory that both sides share, and how one tells the other how far it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from coexec.device import DeviceInfo, Session
from coexec.errors import DeviceError
from coexec.kernels.variant import ALIGNMENT
from coexec.layout import Array
from coexec.opencl_runtime import check_process


@dataclass
class Memory:
    """One allocation: ``host`` (uint8) is what the CPU side uses, ``argument`` what kernels get."""

    host: Array
    argument: Any

    @property
    def address(self) -> int:
        return int(self.host.ctypes.data)


Region = tuple[Memory, Array]
"""A view of an allocation's host memory."""


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
    uploads: list[Region] = field(default_factory=list)
    downloads: list[Region] = field(default_factory=list)


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
        self.in_turn = False

    @classmethod
    @abstractmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        """Why this device cannot have it, by what it says of itself; None if it may."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Memory for tensors, zeroed."""

    def argument(self, memory: Memory) -> Any:
        """What kernels get for memory that ``allocate`` gave."""
        return memory.argument

    def constant(self, array: Array) -> Any:
        """Device memory with the content of ``array``, which must not be changed later; returns the kernel argument."""
        return constant(self.session, array)

    def control_arguments(self, launch: Launch) -> list[Any]:
        """Arguments of COEXEC_ARGS for a launch; none unless ``in_kernel``."""
        return []

    @abstractmethod
    def try_out(self, launch: Launch, inputs: Sequence[Region], output: Region) -> None:
        """Run one work-group of a new kernel between runs; it waits for nothing.

        Here drivers may compile it, so that no run waits for that.
        """

    def require_usable(self) -> None:
        """Raise DeviceError if an earlier run left the queue stuck, or if this is a forked process."""
        check_process()
        if self.lost:
            raise DeviceError(f"{self.session.info.id} got stuck in an earlier run ({self.lost}); load the model again")

    def begin(self, launches: Sequence[Launch], in_turn: bool = False) -> None:
        """Begin a run of these launches, after ``require_usable``.

        ``in_turn``: both sides use the same cores; neither spins while the other works.
        """
        if self._unsettled:  # giving up an earlier run was itself interrupted
            self.abort()
        self._unsettled = True
        self.in_turn = in_turn
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


_stuck: list[tuple[Sync, Any]] = []
"""Queues whose kernels could not be stopped, with the memory that those may still write."""


def constant(session: Session, array: Array) -> Any:
    """A buffer with the content of an array: a CPU-type device reads the array itself, which pyopencl keeps alive."""
    import pyopencl as cl

    array = np.ascontiguousarray(array)
    in_place = session.traits.cpu and array.ctypes.data % ALIGNMENT == 0
    flags = cl.mem_flags.USE_HOST_PTR if in_place else cl.mem_flags.COPY_HOST_PTR
    try:
        return cl.Buffer(session.context, cl.mem_flags.READ_ONLY | flags, hostbuf=array)
    except cl.Error as error:
        raise DeviceError(no_memory(session, array.nbytes, error)) from error


def no_memory(session: Session, nbytes: int, error: Exception) -> str:
    """What to say when the device refuses an allocation."""
    return (
        f"{session.info.id} refused {nbytes / 1e6:.1f} MB of memory (its limit per allocation is "
        f"{session.info.handle.max_mem_alloc_size / 1e6:.0f} MB): {error}"
    )
