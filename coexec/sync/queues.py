"""Waiting for an OpenCL queue, always with a bound."""

from __future__ import annotations

import time
from typing import Any

from coexec.device import Session
from coexec.errors import DeviceError, SyncTimeout
from coexec.opencl_runtime import adopting_threads
from coexec.sync.base import Launch

HOST_WAIT_S = 2.0
"""The host's longest wait for progress of the GPU side."""
ABORT_WAIT_S = 1.5
"""The longest wait for the queue of a run that failed, so that Ctrl-C ends within two seconds."""
COMPILE_WAIT_S = 120.0
"""The longest wait for a kernel's first launch: PoCL compiles it then, for seconds on a busy machine."""


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
