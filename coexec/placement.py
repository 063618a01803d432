"""Where tensors lie: those that are another view of a tensor share its memory, and the nodes between have no work.

A reshape, transposition or split reads its input's memory in another way; the inputs of a concatenation are
written where its output wants them. What no strides can express, or what a kernel could not read, is copied by
the node as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coexec.layout import Array
from coexec.ops.base import DeviceOp
from coexec.ops.views import Box, Strides, View

if TYPE_CHECKING:
    from coexec.graph import Graph, Node


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: in whose memory, and how."""

    root: str
    strides: Strides


@dataclass(frozen=True)
class Link:
    """A tensor lies in ``parent`` as ``view`` of it."""

    parent: str
    view: View


@dataclass(frozen=True)
class Placement:
    """Places of all tensors.

    Attributes:
        places: by tensor; one that lies in no other is its own root.
        free: names of the nodes that have nothing to do.
        links: of the tensors that lie in others.
    """

    places: Mapping[str, Place]
    free: frozenset[str]
    links: Mapping[str, Link]

    def in_root(self, graph: Graph, name: str, box: Box) -> tuple[str, Box]:
        """The root of a tensor and a box of it that holds ``box`` of the tensor."""
        while name in self.links:
            link = self.links[name]
            box = link.view.box(box, graph.tensors[link.parent].shape, graph.tensors[name].shape)
            name = link.parent
        return name, box


def place_tensors(graph: Graph) -> Placement:
    """Share memory wherever all that read and write it can work on it so."""
    links = _Links(graph)
    free = {node.name for node in graph.nodes if links.add(node)}
    return Placement(links.places(graph.tensors), frozenset(free), links.links)


class _Links:
    """The links found so far; a new one is kept if every tensor still has a place that suits its users."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.links: dict[str, Link] = {}
        self._users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys((*node.inputs, *node.outputs)):
                self._users.setdefault(name, []).append(node)

    def add(self, node: Node) -> bool:
        """Link the outputs of a node to its input, or the other way round; whether it has nothing left to do."""
        if any(0 in self.graph.tensors[n].shape for n in node.outputs if n):
            return False
        specs = [self.graph.spec(name) for name in node.inputs]
        inside = [
            self._join(name, view, node.outputs[0])
            for name, view in zip(node.inputs, node.op.input_views(specs), strict=False)
        ]
        if inside:
            return all(inside)
        views = node.op.output_views(specs)
        if not views or node.inputs[0] not in self.graph.tensors:
            return False
        pieces = {y: Link(node.inputs[0], view) for y, view in zip(node.outputs, views, strict=False) if y}
        if self._keep_if_good({**self.links, **pieces}):
            return True
        back = views[0].inverse()
        return len(views) == 1 and back is not None and self._turn(node.inputs[0], Link(node.outputs[0], back))

    def _join(self, name: str, view: View | None, output: str) -> bool:
        """Let an input be made where the output wants it; whether it is, or there is none."""
        return view is None or (name in self.graph.tensors and self._turn(name, Link(output, view)))

    def places(self, names: Mapping[str, object]) -> dict[str, Place]:
        """Places of tensors; those that cannot have one are left out."""
        found: dict[str, Place] = {}
        for name in names:
            place = self._place(name, self.links)
            if place is not None:
                found[name] = place
        return found

    def _turn(self, name: str, link: Link) -> bool:
        """Link ``name`` to a new parent; what it lay in now lies in it."""
        turned = dict(self.links)
        child, new = name, link
        while child in turned:
            old = turned[child]
            back = old.view.inverse()
            if back is None:
                return False
            turned[child] = new
            child, new = old.parent, Link(child, back)
        turned[child] = new
        return self._root(link.parent, turned) is not None and self._keep_if_good(turned)

    def _keep_if_good(self, links: dict[str, Link]) -> bool:
        changed = {name for name in links if links[name] != self.links.get(name)}
        roots = {self._root(name, links) for name in changed}
        touched = [name for name in self.graph.tensors if self._root(name, links) in roots]
        if any(self._place(name, links) is None for name in touched):
            return False
        nodes = {node.name: node for name in touched for node in self._users.get(name, ())}
        if not all(self._works(node, links) for node in nodes.values()):
            return False
        self.links = links
        return True

    def _root(self, name: str, links: Mapping[str, Link]) -> str | None:
        """The tensor whose memory it is; None where links run in a circle."""
        seen = set()
        while name in links:
            if name in seen:
                return None
            seen.add(name)
            name = links[name].parent
        return name

    def _place(self, name: str, links: Mapping[str, Link]) -> Place | None:
        tensor = self.graph.tensors[name]
        if name not in links:
            flat = Strides(0, (1,)).array((tensor.layout.size(tensor.shape),))
            view = tensor.layout.view(flat, tensor.shape)
            return Place(name, Strides(0, tuple(s // view.itemsize for s in view.strides)))
        link = links[name]
        parent = self._place(link.parent, links)
        if parent is None:
            return None
        strides = link.view.strides(parent.strides, self.graph.tensors[link.parent].shape, tensor.shape)
        return None if strides is None else Place(parent.root, strides)

    def _works(self, node: Node, links: Mapping[str, Link]) -> bool:
        """Whether a node that kernels can compute would still be one, or one like it of another dtype could run."""
        op = self.graph.kernel_op(node) or (node.op if isinstance(node.op, DeviceOp) else None)
        places = {name: self._place(name, links) for name in _tensors(self.graph, node)}
        return op is None or works_on(self.graph, node, op, places)


def works_on(graph: Graph, node: Node, op: DeviceOp, places: Mapping[str, Place | None]) -> bool:
    """Whether the op's canonical arrays are views of its tensors, with their innermost axis dense."""
    arrays: list[Array | None] = []
    for name in (*node.inputs, node.outputs[0]):
        place = places.get(name)
        if place is not None:
            arrays.append(place.strides.array(graph.tensors[name].shape))
        else:
            arrays.append(graph.constants.get(name))
    output = arrays.pop()
    assert output is not None
    try:
        inputs, output = op.canonical(arrays, output)
    except (AttributeError, ValueError):  # NumPy: the view would have to be a copy
        return False
    strict = [a for port, a in enumerate(inputs) if port not in op.constants and port not in op.any_strides]
    return all(a is None or a.shape[-1] <= 1 or a.strides[-1] == a.itemsize for a in (*strict, output))


def _tensors(graph: Graph, node: Node) -> Iterator[str]:
    return (name for name in (*node.inputs, *node.outputs) if name in graph.tensors)
