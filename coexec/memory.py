"""Where in one block of memory the intermediate tensors of a network lie: those never needed at once may share it.

Placed one by one, the largest first, each at the lowest offset that is free while it lives ("greedy by size",
Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, arXiv 2001.03288).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coexec.graph import Graph

ALIGNMENT_BYTES = 128


@dataclass(frozen=True)
class Life:
    """From the first node that writes a tensor to the last that reads it, as positions in the graph."""

    nbytes: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Whether both are needed at once."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Memory:
    """The block's layout.

    Attributes:
        offsets: of each intermediate root tensor, in bytes. Inputs and outputs have memory of their own.
        nbytes: of the block.
        separate_bytes: what the same tensors would take side by side.
        neighbours: root tensors that have bytes in common with each.
    """

    offsets: Mapping[str, int]
    nbytes: int
    separate_bytes: int
    neighbours: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, int]:
        """Bytes of the intermediate tensors as they share memory, and without that."""
        return {"shared_bytes": self.nbytes, "separate_bytes": self.separate_bytes}


def lay_out(graph: Graph) -> Memory:
    """The layout for a graph's intermediate tensors."""
    lives = _lives(graph)
    offsets: dict[str, int] = {}
    for name in sorted(lives, key=lambda n: (-lives[n].nbytes, lives[n].first)):
        taken = sorted((offsets[n], offsets[n] + lives[n].nbytes) for n in offsets if lives[n].meets(lives[name]))
        start = 0
        for low, high in taken:
            if start + lives[name].nbytes <= low:
                break
            start = max(start, high)
        offsets[name] = start
    ends = {name: offset + lives[name].nbytes for name, offset in offsets.items()}
    neighbours = {
        name: tuple(n for n in offsets if n != name and offsets[n] < ends[name] and offsets[name] < ends[n])
        for name in offsets
    }
    return Memory(offsets, max(ends.values(), default=0), sum(life.nbytes for life in lives.values()), neighbours)


def _lives(graph: Graph) -> dict[str, Life]:
    places = graph.placement.places
    kept = {places[name].root for name in (*graph.inputs, *graph.outputs) if name in places}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        for name in (*node.inputs, *node.outputs):
            if name in places and places[name].root not in kept:
                root = places[name].root
                first.setdefault(root, position)
                last[root] = position
    return {
        root: Life(-(-graph.tensors[root].nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, first[root], last[root])
        for root in first
    }
