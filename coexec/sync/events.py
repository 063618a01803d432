"""The strategy for any OpenCL 1.2 device: separate memories, copies of what crosses sides, events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coexec.device import DeviceInfo, Session
from coexec.errors import DeviceError
from coexec.layout import Array
from coexec.sync.base import Launch, Memory, Region, Sync, no_memory
from coexec.sync.queues import ABORT_WAIT_S, drain, launch_once, poll_event


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
            raise DeviceError(no_memory(self.session, nbytes, error)) from error

    def try_out(self, launch: Launch, inputs: Sequence[Region], output: Region) -> None:
        with self.session.turn:
            queue, copies = self.session.queue, []
            for region in (*inputs, output):
                copies += copy_region(queue, *region, to_device=True)
            launch_once(launch, self.session)
            copies += copy_region(queue, *output, to_device=False)
            queue.flush()
            for event in copies:
                poll_event(event, self.session)

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
