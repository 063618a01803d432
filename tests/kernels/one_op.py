"""One op in an executor, whose tensors have room between and around their rows that nobody may touch.

The op's output is full of NaN: what lies outside what is computed must keep its bits. The room of its inputs is
full of NaN as well: who reads it, shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from random_ops import roles

from coexec.executor import Executor
from coexec.experiments.conformance import Link
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Layout, Shape
from coexec.ops.base import Box, DeviceOp
from coexec.plan import Plan, Task
from coexec.sync import Sync, opened
from coexec.sync.events import copy_region
from coexec.sync.queues import poll_event

EPS = 2.0**-24
"""Unit roundoff of fp32."""
NAN_BYTE = 0xFF
"""Four of them are a NaN."""


class OneOp:
    """``layout`` gives each tensor's, by its role and shape."""

    def __init__(
        self, op: DeviceOp, constants: Mapping[str, Array], sync: Sync | None, layout: Callable[[str, Shape], Layout]
    ) -> None:
        self.op, self.sync, self.constants = op, sync, constants
        shapes = op.array_shapes
        names = tuple(role if role in shapes else "" for role in roles(op))
        tensors = {
            role: Tensor(role, shape, np.dtype(np.float32), layout(role, shape))
            for role, shape in shapes.items()
            if role not in constants
        }
        inputs = tuple(role for role in tensors if role != "y")
        graph = Graph("one", (Node("layer", op, names, ("y",)),), tensors, constants, inputs, ("y",))
        self.executor = Executor(graph, sync, 1)
        rng = np.random.default_rng(5)
        self.inputs = {name: rng.standard_normal(shapes[name], np.float32) for name in inputs}

    def run(self, tasks: Sequence[Task]) -> None:
        """Poison, feed, run, and bring the whole of y back."""
        self.executor.load(Plan("one", "", "", "", 0, 1, "", tuple(tasks), {}, {}, 0.0, "", {}, {}, "", ""))
        for name in (*self.inputs, "y"):
            self.executor.tensors.memory(name).host[...] = NAN_BYTE
            if name in self.inputs:
                self.executor.tensors.view(name)[...] = self.inputs[name]
            self._copy(name, to_device=True)
        self.executor.run_loaded()
        if any(task.side == "gpu" for task in tasks) and all(task.side == "gpu" for task in tasks):
            self._copy("y", to_device=False)

    def canonical(self) -> tuple[list[Array | None], Array]:
        """What was fed, and the output as it is in memory."""
        arrays = {**self.constants, **self.inputs}
        return self.op.canonical([arrays.get(role) for role in roles(self.op)], self.executor.tensors.view("y"))

    def check(self, box: Box, expected: Array, bound: Array) -> None:
        """A box of the canonical output is right within the bound, and no byte of any tensor beside it has changed."""
        output = self.canonical()[1]
        got = output[box].astype(np.float64)
        error = np.abs(got - expected[box])
        assert np.all(error <= bound[box]), (
            f"off by {np.nanmax(error / np.maximum(bound[box], 1e-30)):.3g} times the bound, "
            f"{np.isnan(got).sum()} NaN of {got.size}"
        )
        output[box] = np.frombuffer(bytes([NAN_BYTE] * 4), np.float32)[0]
        assert (self.executor.tensors.memory("y").host == NAN_BYTE).all(), "wrote beside its part"
        for name, value in self.inputs.items():
            np.testing.assert_array_equal(self.executor.tensors.view(name), value)

    def _copy(self, name: str, to_device: bool) -> None:
        if self.sync is not None and not self.sync.in_kernel:
            memory, queue = self.executor.tensors.memory(name), self.sync.session.queue
            (event,) = copy_region(queue, memory, memory.host, to_device)
            queue.flush()
            poll_event(event, self.sync.session)


def roomy(shape: Shape) -> Layout:
    """Channels innermost, five spare elements per pixel or row, and spare rows before and after.

    Images of odd height have spare pixels between their rows as well, so that their pixels are not equally far apart.
    """
    if len(shape) == 2:
        return Layout((0, 1), pitch=shape[1] + 5, border=((1, 2), (0, 0)))
    between = (0, 2) if shape[2] % 2 else (0, 0)
    return Layout((0, 2, 3, 1), pitch=shape[1] + 5, border=((0, 0), (0, 0), (2, 1), between))


def open_link(link: Link) -> Sync:
    return opened(link.info, 1, link.sync)
