"""A thread that waits inside the OpenCL driver, so that the thread that asked need not."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any


class Helper:
    """Waits for events with a bound, which the driver's own wait has not.

    Intel's CPU runtime lets a thread that waits inside it do a worker's share of the kernel; without one, a device
    of all cores leaves a core idle. The thread is started at the first wait.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Any, threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait(self, event: Any, limit_s: float) -> None:
        """Return when the event is complete or failed, after ``limit_s`` seconds at the latest."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="coexec-wait", daemon=True)
            self._thread.start()
        done = threading.Event()
        self._requests.put((event, done))
        done.wait(limit_s)

    def _serve(self) -> None:
        import pyopencl as cl

        while True:
            event, done = self._requests.get()
            with contextlib.suppress(cl.Error):  # whoever asked reads the event's status
                event.wait()
            done.set()
