"""CPU side: kernels on an OpenCL device of the CPU, as routines that return when the kernel is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from coexec.backends.opencl import KernelBinder
from coexec.device import Session, find_device
from coexec.errors import DeviceError
from coexec.layout import Array
from coexec.plan import Task
from coexec.sync import Launch, Memory
from coexec.sync.base import Region, constant
from coexec.sync.queues import launch_once
from coexec.tensors import Tensors


class CpuQueue:
    """A CPU-type device that shares the host's memory (a `coexec.backends.opencl.Target`).

    With one thread it is the calling one that computes, where the driver can do that; else the driver's own threads
    do, and the caller waits inside the driver.
    """

    in_kernel: ClassVar[bool] = False

    def __init__(self, device: str, threads: int) -> None:
        info = find_device(device)
        assert info is not None  # since it is named
        self._on_caller = threads == 1 and info.runs_on_caller
        self.session = Session(info, threads, on_caller=self._on_caller)

    def argument(self, memory: Memory) -> Any:
        """The host's memory itself. That results get there is seen when a kernel is tried."""
        import pyopencl as cl

        if self.session.info.svm_system:
            return cl.SVM(memory.host)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self.session.context, flags, hostbuf=memory.host)

    def constant(self, array: Array) -> Any:
        return constant(self.session, array)

    def control_arguments(self, launch: Launch) -> list[Any]:
        return []

    def try_out(self, launch: Launch, inputs: Sequence[Region], output: Region) -> None:
        with self.session.turn:
            launch_once(launch, self.session)

    def routine(self, launch: Launch) -> Callable[[], None]:
        """What runs the whole launch."""
        import pyopencl as cl

        session, on_caller = self.session, self._on_caller
        queue, kernel, size, one = session.queue, launch.kernel, launch.global_size, (1, 1, 1)

        def run() -> None:
            try:
                cl.enqueue_nd_range_kernel(queue, kernel, size, one)
                if not on_caller:
                    queue.finish()
            except cl.Error as error:
                raise DeviceError(f"{session.info.id} refused a kernel: {error}") from error

        return run


@cache
def cpu_queue(device: str, threads: int) -> CpuQueue:
    """The device with so many threads, opened once."""
    return CpuQueue(device, threads)


class CpuKernelBinder:
    """Binds tasks of the CPU side to kernels."""

    def __init__(self, tensors: Tensors, queue: CpuQueue) -> None:
        self.queue = queue
        self._binder = KernelBinder(tensors, queue)

    def routine(self, task: Task) -> Callable[[], None]:
        """The task as a routine; DeviceError if no kernel does it right."""
        return self.queue.routine(self._binder.launch(task))
