"""A network on its way from a model to a Graph: an editable node list with its edges indexed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from coexec.graph import Node
from coexec.layout import Array
from coexec.ops.base import ArraySpec


@dataclass(frozen=True)
class Rewrite:
    """What a rule proposes: take ``removed`` out and put ``node`` where the last of them was.

    ``constants`` are new arrays by name; ``node`` makes the outputs that the removed ones leave behind.
    """

    removed: tuple[Node, ...]
    node: Node
    constants: dict[str, Array] = field(default_factory=dict)


Rule = Callable[[Node, "Program"], "Rewrite | None"]
"""Looks at one node and what is around it; never changes the program."""


class Program:
    """Nodes in execution order. ``specs`` describe inputs and node outputs, ``constants`` the rest."""

    def __init__(
        self,
        nodes: Iterable[Node],
        specs: dict[str, ArraySpec],
        constants: dict[str, Array],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> None:
        self.specs, self.constants = dict(specs), dict(constants)
        self.inputs, self.outputs = inputs, outputs
        self._slots: list[Node | None] = list(nodes)
        self._place: dict[str, int] = {}
        self._maker: dict[str, Node] = {}
        self._readers: dict[str, list[Node]] = {}
        for place, node in enumerate(self.nodes()):
            self._link(node, place)

    def nodes(self) -> Iterator[Node]:
        """The nodes in order."""
        return (node for node in self._slots if node is not None)

    def maker(self, name: str) -> Node | None:
        """The node that makes a tensor; None for inputs and constants."""
        return self._maker.get(name)

    def place(self, node: Node) -> int:
        """Position in the execution order."""
        return self._place[node.name]

    def is_private(self, name: str) -> bool:
        """Whether the tensor is read exactly once and is no graph output, so that it may vanish."""
        return len(self._readers.get(name, ())) == 1 and name not in self.outputs

    def private_maker(self, name: str) -> Node | None:
        """The node that makes ``name`` as its only output, if the tensor may vanish."""
        node = self._maker.get(name)
        return node if node is not None and self.is_private(name) and node.outputs == (name,) else None

    def fresh(self, base: str) -> str:
        """A name like ``base`` that no tensor and no constant has."""
        name, count = base, 1
        while name in self.specs or name in self.constants:
            count += 1
            name = f"{base}_{count}"
        return name

    def fuse(self, rules: Iterable[Rule]) -> None:
        """Apply each rule in turn, everywhere and repeatedly, until it finds nothing more."""
        for rule in rules:
            place = 0
            while place < len(self._slots):
                node = self._slots[place]
                rewrite = rule(node, self) if node is not None else None
                if rewrite is None:
                    place += 1
                else:  # the new node lies at or after this place: look at it again there
                    self._apply(rewrite)

    def _apply(self, rewrite: Rewrite) -> None:
        last = max(self._place[node.name] for node in rewrite.removed)
        for node in rewrite.removed:
            self._unlink(node)
        self.constants.update(rewrite.constants)
        self._slots[last] = rewrite.node
        self._link(rewrite.node, last)
        for name in {name for node in rewrite.removed for name in node.inputs}:
            if not self._readers[name]:
                self.constants.pop(name, None)  # its memory would otherwise be kept beside the fused copy's

    def _link(self, node: Node, place: int) -> None:
        self._place[node.name] = place
        for name in node.outputs:
            self._maker[name] = node
        for name in node.inputs:
            self._readers.setdefault(name, []).append(node)

    def _unlink(self, node: Node) -> None:
        self._slots[self._place.pop(node.name)] = None
        for name in node.outputs:
            self._maker.pop(name, None)
        for name in node.inputs:
            self._readers[name].remove(node)
