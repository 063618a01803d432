"""Intermediate tensors share memory only while they are not needed together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from random_networks import networks

from coexec.graph import Graph
from coexec.memory import ALIGNMENT_BYTES
from coexec.plan import Task


def needed(graph: Graph, root: str) -> tuple[int, int]:
    """First and last node that touch a root or a view of it."""
    places = graph.placement.places
    positions = [
        i
        for i, node in enumerate(graph.nodes)
        for name in (*node.inputs, *node.outputs)
        if name in places and places[name].root == root
    ]
    return positions[0], positions[-1]


@given(networks())
def test_what_is_needed_at_once_lies_apart(case: tuple[Graph, list[Task]]) -> None:
    graph, _ = case
    memory = graph.memory
    owner: dict[int, np.ndarray] = {}
    for root, offset in memory.offsets.items():
        assert offset % ALIGNMENT_BYTES == 0
        first, last = needed(graph, root)
        for position in range(first, last + 1):
            taken = owner.setdefault(position, np.zeros(memory.nbytes, bool))
            own = taken[offset : offset + graph.tensors[root].nbytes]
            assert not own.any(), f"{root} lies on another tensor at node {position}"
            own[:] = True
    assert memory.nbytes <= memory.separate_bytes


@given(networks())
def test_inputs_and_outputs_have_memory_of_their_own(case: tuple[Graph, list[Task]]) -> None:
    graph, _ = case
    places = graph.placement.places
    kept = {places[name].root for name in (*graph.inputs, *graph.outputs) if name in places}
    roots = {place.root for place in places.values()}
    assert kept.isdisjoint(graph.memory.offsets)
    assert roots == kept | set(graph.memory.offsets)
