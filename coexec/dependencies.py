"""What each task has to wait for, from the boxes of the tensors that it reads and others write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coexec.graph import Graph, Node
from coexec.layout import Shape
from coexec.ops.base import Box, SplitOp
from coexec.plan import Side, Task

NamedBox = tuple[str, Box]


def boxes(graph: Graph, node: Node, task: Task) -> tuple[list[NamedBox], list[NamedBox]]:
    """Logical boxes (tensor name, box) that a task reads, and those that it writes.

    A tensor that goes into several ports (x and residual) is listed once per port.
    """
    op = node.op
    shapes = {name: graph.tensors[name].shape for name in (*node.inputs, *node.outputs) if name in graph.tensors}
    if not isinstance(op, SplitOp) or task.axis == "none":
        whole = {name: (slice(None),) * len(shape) for name, shape in shapes.items()}
        return (
            [(name, whole[name]) for name in node.inputs if name in whole],
            [(name, whole[name]) for name in node.outputs if name in whole],
        )
    part = op.part(task.axis, task.start, task.stop)
    reads = [
        (name, op.logical_box(box, port, shapes[name]))
        for port, (name, box) in enumerate(zip(node.inputs, part.inputs, strict=False))
        if name in shapes
    ]
    output = node.outputs[0]
    return reads, [(output, op.logical_box(part.output, -1, shapes[output]))]


def add_waits(graph: Graph, tasks: Sequence[Task]) -> list[Task]:
    """The tasks with the smallest ``wait_for`` that is right; tasks of one side run in their order."""
    nodes = {node.name: node for node in graph.nodes}
    counts: dict[Side, int] = {"cpu": 0, "gpu": 0}
    written: dict[str, list[tuple[Side, int, Box]]] = {}
    result = []
    for task in tasks:
        reads, writes = boxes(graph, nodes[task.node], task)
        counts[task.side] += 1
        wait_for = 0
        for name, box in reads:
            for side, number, other in written.get(name, ()):
                if side != task.side and number > wait_for and overlap(box, other, graph.tensors[name].shape):
                    wait_for = number
        for name, box in writes:
            written.setdefault(name, []).append((task.side, counts[task.side], box))
        result.append(replace(task, wait_for=wait_for))
    return result


def overlap(a: Box, b: Box, shape: Shape) -> bool:
    """Whether two boxes of an array of ``shape`` have an element in common."""
    for x, y, size in zip(a, b, shape, strict=True):
        x0, x1, _ = x.indices(size)
        y0, y1, _ = y.indices(size)
        if max(x0, y0) >= min(x1, y1):
            return False
    return True
