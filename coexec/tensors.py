"""A graph's tensors in memory: allocated once, views of one another where the graph's placement says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coexec.graph import Graph
from coexec.kernels.variant import Placed
from coexec.layout import Array
from coexec.ops.base import DeviceOp, SplitOp, part_of
from coexec.plan import Task
from coexec.sync import Memory

Allocate = Callable[[int], Memory]


class Tensors:
    """Memory of every tensor, and the views that tasks work on.

    Intermediate tensors share memory, unless ``keep_all`` wants every tensor of a run to be there after it.
    """

    def __init__(self, graph: Graph, allocate: Allocate, keep_all: bool = False) -> None:
        self.graph = graph
        self._nodes = {node.name: node for node in graph.nodes}
        self._memories: dict[str, Memory] = {}
        self._views: dict[str, Array] = {}
        shared = {} if keep_all else graph.memory.offsets
        block = allocate(graph.memory.nbytes) if shared else None
        for name, place in graph.placement.places.items():
            if name == place.root:
                own = block if name in shared else allocate(graph.tensors[name].nbytes)
                assert own is not None
                self._memories[name] = own
        for name, place in graph.placement.places.items():
            tensor, start = graph.tensors[name], shared.get(place.root, 0)
            self._memories[name] = memory = self._memories[place.root]
            typed = memory.host[start : start + graph.tensors[place.root].nbytes].view(tensor.dtype)
            strides = [s * tensor.dtype.itemsize for s in place.strides.steps]
            self._views[name] = np.lib.stride_tricks.as_strided(typed[place.strides.offset :], tensor.shape, strides)

    def view(self, name: str) -> Array:
        """The tensor's own memory, in logical order."""
        return self._views[name]

    def memory(self, name: str) -> Memory:
        """The allocation that holds the tensor, on the host and on the device."""
        return self._memories[name]

    def value(self, name: str) -> Array | None:
        """The tensor's memory or the constant; None for an absent input."""
        if not name:
            return None
        return self._views[name] if name in self._views else self.graph.constants[name]

    def result(self, name: str) -> Array:
        """A copy of an output, which may be a constant."""
        return np.array(self.value(name), order="C")

    def part(self, task: Task) -> tuple[DeviceOp, list[Array | None], Array]:
        """The op that a task computes, and its canonical arrays: inputs and output."""
        node = self._nodes[task.node]
        op = self.graph.device_ops[task.node]
        inputs, output = op.canonical([self.value(name) for name in node.inputs], self._views[node.outputs[0]])
        if not isinstance(op, SplitOp):
            return op, inputs, output
        part = part_of(op, task.axis, task.start, task.stop)
        arrays = [
            array if box is None or array is None else array[box]
            for array, box in zip(inputs, part.inputs, strict=True)
        ]
        return part.op, arrays, output[part.output]

    def placed(self, name: str, array: Array, argument: Any) -> Placed:
        """A view of a tensor as kernels get it; ``argument`` is what they get for the tensor's memory."""
        size = array.itemsize
        offset = (int(array.ctypes.data) - self._memories[name].address) // size
        return Placed(argument, offset, tuple(s // size for s in array.strides), array.shape)


def host_memory(nbytes: int) -> Memory:
    """Memory for the CPU side alone."""
    buffer = np.zeros(max(nbytes, 64) + 64, np.uint8)
    return Memory(buffer[-buffer.ctypes.data % 64 :], None)
