"""Sides with memories of their own, simulated: what each reads has been copied there, and nothing else is lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from random_networks import evaluate, networks, random_feeds

from coexec.backends.opencl import KernelBinder
from coexec.dependencies import add_waits
from coexec.device import DeviceInfo
from coexec.executor import Executor
from coexec.graph import Graph
from coexec.layout import Array
from coexec.plan import Plan, Task
from coexec.sync import Launch, Memory, Sync
from coexec.sync.base import Region


class TwoMemories(Sync):
    """``argument`` of a memory is the device's, of as many bytes. Launches run when they are made, or (``late``)
    when somebody waits for them."""

    name = "two memories"
    in_kernel = False

    def __init__(self, late: bool) -> None:
        session: Any = SimpleNamespace(
            info=SimpleNamespace(id="simulated:0"),
            turn=threading.RLock(),
            takes_turns=lambda threads: False,
            cores=lambda threads: nullcontext(),
        )
        super().__init__(session)
        self.late = late
        self.memories: list[Memory] = []
        self._queue: list[Launch] = []

    @classmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        return None

    def allocate(self, nbytes: int) -> Memory:
        self.memories.append(Memory(np.full(nbytes, 0xFF, np.uint8), np.full(nbytes, 0xFF, np.uint8)))
        return self.memories[-1]

    def try_out(self, launch: Launch, inputs: Sequence[Region], output: Region) -> None:
        raise AssertionError

    def start(self, launches: Sequence[Launch]) -> None:
        assert not self._queue

    def launch(self, launch: Launch) -> None:
        self._queue.append(launch)
        if not self.late:
            self.wait(launch.number)

    def wait(self, number: int) -> None:
        while self._queue and self._queue[0].number <= number:
            launch = self._queue.pop(0)
            for _, view in launch.uploads:
                self.on_device(view)[...] = view
            op, inputs, output = launch.kernel
            on_device = [None if a is None else self.on_device(a) for a in inputs]
            self.on_device(output)[...] = op.reference(on_device)
            for _, view in launch.downloads:
                view[...] = self.on_device(view)

    def done(self, number: int) -> None:
        pass

    def abort(self) -> None:
        self._queue.clear()

    def on_device(self, view: Array) -> Array:
        """The same place in the device's memory; a constant as it is."""
        for memory in self.memories:
            start = int(view.ctypes.data) - memory.address
            if 0 <= start < memory.host.size:
                typed = memory.argument[start:][: (memory.host.size - start) // 4 * 4].view(view.dtype)
                return np.lib.stride_tricks.as_strided(typed, view.shape, view.strides)
        return view


class Binder(KernelBinder):
    """Launches hold what a kernel would compute."""

    def launch(self, task: Task, number: int) -> Launch:
        return Launch(self._tensors.part(task), (), number, task.wait_for)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "as late as possible"])
@given(case=networks())
def test_outputs_are_those_of_one_memory(case: tuple[Graph, list[Task]], late: bool) -> None:
    graph, tasks = case
    sync = TwoMemories(late)
    simulation = Executor(graph, sync, 1)
    simulation._kernels = Binder(simulation.tensors, sync)
    simulation.load(Plan("", "", "", "", 0, 1, "", tuple(add_waits(graph, tasks)), {}, {}, 0.0, "", {}, {}, "", ""))
    feeds = random_feeds(graph)
    expected, got = evaluate(graph, feeds), simulation.run(feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
