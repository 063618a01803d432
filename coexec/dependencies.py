"""What each task has to wait for, from the regions of memory that it reads and others write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coexec.graph import Graph, Node
from coexec.layout import Shape
from coexec.ops.base import SplitOp, part_of
from coexec.ops.views import Box
from coexec.placement import Link
from coexec.plan import Side, Task


@dataclass(frozen=True)
class Region:
    """A logical box of a tensor, and the same (or more) of the tensor in whose memory it lies."""

    name: str
    box: Box
    root: str
    root_box: Box


def regions(graph: Graph, node: Node, task: Task) -> tuple[list[Region], list[Region]]:
    """What a task reads, and what it writes.

    A tensor that goes into several ports (x and residual) is listed once per port.
    """
    op = node.op
    shapes = {name: graph.tensors[name].shape for name in (*node.inputs, *node.outputs) if name in graph.tensors}
    joined = _joined(graph, node)
    if joined is not None:
        reads = [(name, (slice(None),) * len(box)) for name, box in joined if name in shapes]
        writes = [(node.outputs[0], box) for _, box in joined]
    elif not isinstance(op, SplitOp) or task.axis == "none":
        whole = {name: (slice(None),) * len(shape) for name, shape in shapes.items()}
        reads = [(name, whole[name]) for name in node.inputs if name in whole]
        writes = [(name, whole[name]) for name in node.outputs if name in whole]
    else:
        part = part_of(op, task.axis, task.start, task.stop)
        reads = [
            (name, op.logical_box(box, port, shapes[name]))
            for port, (name, box) in enumerate(zip(node.inputs, part.inputs, strict=False))
            if name in shapes
        ]
        output = node.outputs[0]
        writes = [(output, op.logical_box(part.output, -1, shapes[output]))]
    return [_region(graph, *r) for r in reads], [_region(graph, *w) for w in writes]


def _joined(graph: Graph, node: Node) -> list[tuple[str, Box]] | None:
    """For a node that joins its inputs: those that were not made where they belong, and their boxes of the output."""
    views = node.op.input_views([graph.spec(name) for name in node.inputs])
    if not views:
        return None
    output, found = node.outputs[0], []
    for name, view in zip(node.inputs, views, strict=True):
        spec = graph.spec(name)
        if spec is not None and view is not None and graph.placement.links.get(name) != Link(output, view):
            whole = (slice(None),) * len(spec.shape)
            found.append((name, view.box(whole, graph.tensors[output].shape, spec.shape)))
    return found


def _region(graph: Graph, name: str, box: Box) -> Region:
    return Region(name, box, *graph.placement.in_root(graph, name, box))


def add_waits(graph: Graph, tasks: Sequence[Task]) -> list[Task]:
    """The tasks with the smallest ``wait_for`` that is right; tasks of one side run in their order.

    A task waits for who writes what it reads, and, where its output takes the memory of a tensor that is no longer
    needed, for who used that.
    """
    nodes = {node.name: node for node in graph.nodes}
    counts: dict[Side, int] = {"cpu": 0, "gpu": 0}
    written: dict[str, list[tuple[Side, int, Box]]] = {}
    used: dict[tuple[str, Side], int] = {}
    result = []
    for task in tasks:
        reads, writes = regions(graph, nodes[task.node], task)
        counts[task.side] += 1
        other_side: Side = "gpu" if task.side == "cpu" else "cpu"
        wait_for = 0
        for region in reads:
            shape = graph.tensors[region.root].shape
            for side, number, other in written.get(region.root, ()):
                if side != task.side and number > wait_for and overlap(region.root_box, other, shape):
                    wait_for = number
        for region in writes:
            written.setdefault(region.root, []).append((task.side, counts[task.side], region.root_box))
            for neighbour in graph.memory.neighbours.get(region.root, ()):
                wait_for = max(wait_for, used.get((neighbour, other_side), 0))
        for region in (*reads, *writes):
            used[region.root, task.side] = counts[task.side]
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
