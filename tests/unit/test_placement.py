"""Tensors that share memory: the same values as on arrays of their own, and nothing overlaps that is not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_networks import evaluate, graphs, random_feeds

from coexec.graph import Graph, Node, Tensor, assign_layouts
from coexec.layout import Array, Layout, Shape
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.attention import Attention
from coexec.ops.base import ArraySpec, Box, Op
from coexec.ops.concat import Concat
from coexec.ops.conv2d import Conv2d
from coexec.ops.identity import Identity
from coexec.ops.linear import Linear
from coexec.ops.reshape import Reshape
from coexec.ops.split import Split
from coexec.ops.transpose import Transpose
from coexec.placement import Placement, works_on

F4 = np.dtype(np.float32)
VIEWS = (Concat, Split, Transpose, Reshape, Identity)


def memories(graph: Graph) -> dict[str, Array]:
    """One poisoned array per tensor that lies in no other."""
    places = graph.placement.places
    assert set(places) == set(graph.tensors)
    assert all(places[place.root].root == place.root for place in places.values())
    return {
        name: np.full(graph.tensors[name].layout.size(graph.tensors[name].shape), np.nan, F4)
        for name, place in places.items()
        if place.root == name
    }


def view(graph: Graph, name: str, memory: Mapping[str, Array]) -> Array:
    """A tensor as a view of its root's memory, checked to lie within it."""
    place, shape = graph.placement.places[name], graph.tensors[name].shape
    base = memory[place.root]
    steps = place.strides.steps
    last = place.strides.offset + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    assert 0 in shape or 0 <= place.strides.offset <= last < base.size
    assert all(stride >= 0 for stride in steps)
    strides = [stride * base.itemsize for stride in steps]
    return np.lib.stride_tricks.as_strided(base[place.strides.offset :], shape, strides)


def run_placed(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor after the nodes that have work have run, in order, where their tensors lie."""
    memory = memories(graph)
    values = {name: view(graph, name, memory) for name in graph.tensors}
    for name, value in feeds.items():
        values[name][...] = value
    known: Mapping[str, Array] = {**graph.constants, **values}
    for node in graph.nodes:
        if node.name not in graph.placement.free:
            node.op.run([known[n] if n else None for n in node.inputs], [known[n] for n in node.outputs])
    return values


def assert_same_values(graph: Graph) -> None:
    feeds = random_feeds(graph)
    expected, got = evaluate(graph, feeds), run_placed(graph, feeds)
    for name in graph.tensors:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def identities(graph: Graph) -> dict[str, Array]:
    """Per tensor the number of each element, which views of it share; everything else counts on."""
    numbers: dict[str, Array] = {}
    count = 0

    def new(shape: Shape) -> Array:
        nonlocal count
        count += int(np.prod(shape))
        return np.arange(count - int(np.prod(shape)), count).reshape(shape)

    for name in (*graph.constants, *graph.inputs):
        spec = graph.spec(name)
        assert spec is not None
        numbers[name] = new(spec.shape)
    for node in graph.nodes:
        for name in node.outputs:
            numbers[name] = new(graph.tensors[name].shape)
        if isinstance(node.op, VIEWS):
            node.op.run([numbers[name] for name in node.inputs], [numbers[name] for name in node.outputs])
    return numbers


def assert_shared_by_views_only(graph: Graph) -> None:
    """Whatever shares a place is the same element, and no element is twice in a tensor's memory."""
    offsets = offsets_of(graph)
    elements = identities(graph)
    at: dict[tuple[str, int], int] = {}
    for name, own in offsets.items():
        assert len(np.unique(own)) == own.size, f"{name} overlaps itself"
        root = graph.placement.places[name].root
        for offset, number in zip(own.flat, elements[name].flat, strict=True):
            assert at.setdefault((root, int(offset)), int(number)) == number, f"{name} overlaps what it is no view of"


def offsets_of(graph: Graph) -> dict[str, Array]:
    """Where in its root's memory each element of each tensor lies."""
    memory = {name: np.arange(base.size) for name, base in memories(graph).items()}
    return {name: view(graph, name, memory) for name in graph.tensors}


@given(graphs())
def test_same_values_as_on_arrays_of_their_own(graph: Graph) -> None:
    assert_same_values(graph)


@given(graphs())
def test_only_views_share_memory(graph: Graph) -> None:
    assert_shared_by_views_only(graph)


@given(graphs())
def test_kernels_can_still_work(graph: Graph) -> None:
    """What kernels could compute on tensors of their own, they can where the tensors lie."""
    alone = Placement({name: own_place(tensor) for name, tensor in graph.tensors.items()}, frozenset(), {})
    for node in graph.nodes:
        op = graph.kernel_op(node)
        if op is not None and works_on(graph, node, op, alone.places):
            assert node.name in graph.device_ops, f"{node.name} ({node.op.kind})"


def own_place(tensor: Tensor) -> Any:
    graph = Graph("alone", (), {tensor.name: tensor}, {}, (tensor.name,), ())
    return graph.placement.places[tensor.name]


@given(graphs(), st.data())
def test_boxes_in_the_root_hold_all_elements(graph: Graph, data: st.DataObject) -> None:
    offsets = offsets_of(graph)
    for name, tensor in graph.tensors.items():
        box = data.draw(boxes(tensor.shape))
        root, root_box = graph.placement.in_root(graph, name, box)
        assert root == graph.placement.places[name].root
        assert set(offsets[name][box].flat) <= set(offsets[root][root_box].flat), (name, box, root_box)


@st.composite
def boxes(draw: st.DrawFn, shape: Shape) -> Box:
    ranges: list[slice] = []
    for size in shape:
        first, last = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        ranges.append(draw(st.sampled_from([slice(first, last), slice(None), slice(None, last), slice(first, None)])))
    return tuple(ranges)


# Cases -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network of inputs, constants and nodes (op, inputs, outputs), and the outputs of the nodes without work."""

    inputs: Mapping[str, Shape]
    nodes: Sequence[tuple[Op, str, str]]
    outputs: str
    free: str
    constants: Mapping[str, Shape] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def graph(self) -> Graph:
        rng = np.random.default_rng(0)
        constants = {name: rng.standard_normal(shape, np.float32) for name, shape in self.constants.items()}
        specs = {name: ArraySpec(shape, F4) for name, shape in self.inputs.items()}
        known = {**specs, **{name: ArraySpec(shape, F4) for name, shape in self.constants.items()}}
        nodes = []
        for op, inputs, outputs in self.nodes:
            names = tuple(inputs.split(" "))
            made = op.infer([known.get(name) for name in names])
            new = dict(zip(outputs.split(), made, strict=True))
            specs |= new
            known |= new
            nodes.append(Node(outputs, op, names, tuple(outputs.split())))
        layouts = {**assign_layouts(specs, nodes), **self.layouts}
        tensors = {name: Tensor(name, spec.shape, spec.dtype, layouts[name]) for name, spec in specs.items()}
        graph = Graph("case", tuple(nodes), tensors, constants, tuple(self.inputs), tuple(self.outputs.split()))
        graph.check()
        return graph


RELU = Activate(Activation("relu"))
CONV = Conv2d(1, 4, 3, 5, 4, 1, 1)
IMAGE = (1, 4, 3, 5)
WEIGHT = {"w": (4, 4, 1, 1)}


CASES = {
    "two made where the concatenation wants them": Case(
        {"x": IMAGE}, [(RELU, "x", "a"), (RELU, "x", "b"), (Concat(1), "a b", "y")], "y", "y"
    ),
    "along the rows": Case({"x": IMAGE}, [(RELU, "x", "a"), (RELU, "x", "b"), (Concat(2), "a b", "y")], "y", "y"),
    "layers' outputs": Case(
        {"x": IMAGE},
        [(CONV, "x w", "a"), (CONV, "a w", "b"), (Concat(1), "b a", "y")],
        "y",
        "y",
        WEIGHT,
    ),
    "the same twice": Case({"x": IMAGE}, [(RELU, "x", "a"), (Concat(1), "a a", "y")], "y", ""),
    "a constant": Case({"x": IMAGE}, [(RELU, "x", "a"), (Concat(1), "c a", "y")], "y", "", {"c": IMAGE}),
    "an input": Case({"x": IMAGE}, [(RELU, "x", "a"), (Concat(1), "x a", "y")], "y", "y"),
    "inputs only": Case({"x": IMAGE, "z": IMAGE}, [(Concat(3), "x z", "y")], "y", "y"),
    "an output": Case({"x": IMAGE}, [(RELU, "x", "a"), (RELU, "x", "b"), (Concat(1), "a b", "y")], "a y b", "y"),
    "into two concatenations": Case(
        {"x": IMAGE},
        [
            (RELU, "x", "a"),
            (RELU, "a", "b"),
            (Concat(1), "a b", "y"),
            (Concat(1), "x a", "z"),
        ],
        "y z",
        "y",
    ),
    "a concatenation in another": Case(
        {"x": IMAGE},
        [(RELU, "x", "a"), (RELU, "x", "b"), (Concat(1), "a b", "y"), (RELU, "x", "c"), (Concat(1), "y c", "z")],
        "z",
        "y; z",
    ),
    "and the inner one is read": Case(
        {"x": IMAGE},
        [(RELU, "x", "a"), (Concat(1), "x a", "y"), (RELU, "y", "c"), (Concat(1), "c y", "z")],
        "z y",
        "y; z",
    ),
    "split": Case({"x": IMAGE}, [(Split(1, (1, 3)), "x", "a b"), (RELU, "a", "y")], "y b", "a b"),
    "split of a concatenation": Case(
        {"x": IMAGE},
        [(RELU, "x", "a"), (Concat(1), "x a", "y"), (Split(1, (3, 5)), "y", "b c"), (RELU, "c", "z")],
        "z b",
        "y; b c",
    ),
    "split and joined in another order": Case(
        {"x": IMAGE}, [(Split(1, (2, 2)), "x", "a b"), (Concat(1), "b a", "y")], "y", "a b"
    ),
    "split and joined as before": Case(
        {"x": IMAGE}, [(Split(1, (2, 2)), "x", "a b"), (Concat(1), "a b", "y")], "y", "a b"
    ),
    "flattened rows": Case({"x": (2, 3, 4)}, [(Reshape((6, 4)), "x", "y")], "y", "y"),
    "squeezed and back": Case(
        {"x": (2, 1, 4)}, [(Reshape((2, 4)), "x", "a"), (Reshape((1, 2, 4, 1)), "a", "y")], "y", "a; y"
    ),
    "an input that can lie as its flattened transposition wants it": Case(
        {"x": (3, 4)}, [(Transpose((1, 0)), "x", "a"), (Reshape((12,)), "a", "y")], "y", "a; y"
    ),
    "no strides express it": Case(
        {"x": (3, 4)},
        [(Linear(3, 4, 4), "x w", "a"), (Transpose((1, 0)), "a", "b"), (Reshape((12,)), "b", "y")],
        "y",
        "b",
        {"w": (4, 4)},
    ),
    "a flattened image of a layer": Case(
        {"x": IMAGE}, [(CONV, "x w", "a"), (Reshape((1, 60)), "a", "y")], "y", "", WEIGHT
    ),
    "a flattened pixel of a layer": Case(
        {"x": (2, 4, 1, 1)},
        [(Conv2d(2, 4, 1, 1, 4, 1, 1), "x w", "a"), (Reshape((2, 4)), "a", "y")],
        "y",
        "y",
        WEIGHT,
    ),
    "a layer's channels turned inside": Case(
        {"x": IMAGE}, [(CONV, "x w", "a"), (Transpose((0, 2, 3, 1)), "a", "y")], "y", "y", WEIGHT
    ),
    "a layer's channels turned outside": Case(
        {"x": IMAGE}, [(CONV, "x w", "a"), (Transpose((1, 0, 2, 3)), "a", "y")], "y", "y", WEIGHT
    ),
    "turned for a layer that wants it otherwise": Case(
        {"x": (1, 3, 5, 4)},
        [(Transpose((0, 3, 1, 2)), "x", "a"), (CONV, "a w", "y")],
        "y",
        "a",
        WEIGHT,
    ),
    "rows that two layers want otherwise": Case(
        {"x": (4, 4)},
        [(Linear(4, 4, 4), "x w", "a"), (Transpose((1, 0)), "a", "b"), (Linear(4, 4, 4), "b w", "y")],
        "y",
        "",
        {"w": (4, 4)},
    ),
    "joined channels of linear layers": Case(
        {"x": (2, 3, 4)},
        [(Linear(6, 4, 5), "x v", "a"), (Linear(6, 4, 3), "x w", "b"), (Concat(2), "a b", "y")],
        "y",
        "y",
        {"v": (4, 5), "w": (4, 3)},
    ),
    "joined tokens of linear layers": Case(
        {"x": (2, 3, 4)},
        [(Linear(6, 4, 5), "x v", "a"), (Linear(6, 4, 5), "x w", "b"), (Concat(1), "a b", "y")],
        "y",
        "",  # rows of neither matrix would be equally far apart
        {"v": (4, 5), "w": (4, 5)},
    ),
    "heads of attention": Case(
        {"x": (2, 6, 8)},
        [
            (Linear(12, 8, 24), "x w", "j"),
            (Split(2, (8, 8, 8)), "j", "q k v"),
            *((Reshape((2, 6, 2, 4)), name, f"{name}h") for name in "qkv"),
            (Transpose((0, 2, 1, 3)), "qh", "qt"),
            (Transpose((0, 2, 3, 1)), "kh", "kt"),
            (Transpose((0, 2, 1, 3)), "vh", "vt"),
            (Attention(2, 2, 6, 6, 4, 4), "qt kt vt", "m"),
            (Transpose((0, 2, 1, 3)), "m", "mt"),
            (Reshape((2, 6, 8)), "mt", "y"),
        ],
        "y",
        "q k v; qh; kh; vh; qt; kt; vt; mt; y",
        {"w": (8, 24)},
    ),
    "without elements": Case({"x": (0, 4)}, [(Reshape((4, 0)), "x", "a"), (Concat(1), "a a", "y")], "y", ""),
    "identity": Case({"x": (3, 4)}, [(Identity(), "x", "a"), (RELU, "a", "b"), (Identity(), "b", "y")], "y", "a; y"),
    "into itself": Case({"x": (3, 4)}, [(Concat(0), "x", "y"), (Transpose((1, 0)), "y", "z")], "z", "y; z"),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    case = CASES[name]
    graph = case.graph()
    assert set(graph.placement.free) == {names for names in case.free.split("; ") if names}
    if not any(0 in tensor.shape for tensor in graph.tensors.values()):
        assert_shared_by_views_only(graph)
    assert_same_values(graph)
    layers = [node.name for node in graph.nodes if isinstance(node.op, Conv2d | Linear | Attention)]
    assert set(layers) <= set(graph.device_ops), "a layer can no longer be computed by kernels"
