"""Hypothesis strategies for small networks with views of all kinds, and for the tasks of a plan for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from random_ops import F4

from coexec.frontends.finish import finish
from coexec.frontends.program import Program
from coexec.graph import Graph, Node
from coexec.kernels.variant import GpuTraits
from coexec.layout import Layout, Shape
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.attention import Attention
from coexec.ops.base import ArraySpec, Op, SplitOp
from coexec.ops.concat import Concat
from coexec.ops.conv2d import Conv2d
from coexec.ops.elementwise import Elementwise
from coexec.ops.identity import Identity
from coexec.ops.layer_norm import LayerNorm
from coexec.ops.linear import Linear
from coexec.ops.pool import Pool
from coexec.ops.reshape import Reshape
from coexec.ops.split import Split
from coexec.ops.transpose import Transpose
from coexec.ops.window import Window
from coexec.plan import Side, Task
from coexec.planner import Choice, Resources, layer_tasks

TRAITS = GpuTraits(compute_units=1, vector_width=16, vector_registers=32, cpu=True)
MOST_ELEMENTS = 200


class Network:
    """A program that grows node by node."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[Node] = []
        self.specs: dict[str, ArraySpec] = {}
        self.constants: dict[str, np.ndarray] = {}

    def shape(self, name: str) -> Shape:
        return self.specs[name].shape

    def one(self, fits: Callable[[Shape], bool] = lambda shape: True) -> str | None:
        """A tensor whose shape fits; late ones first, so that chains grow long."""
        names = [name for name, spec in self.specs.items() if fits(spec.shape)]
        return self.draw(st.sampled_from(names[::-1])) if names else None

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        values = np.random.default_rng(len(self.constants)).standard_normal(shape)
        self.constants[name] = (values / math.sqrt(math.prod(shape[1:]) or 1)).astype(np.float32)
        return name

    def add(self, op: Op, *inputs: str) -> list[str]:
        known = {**self.specs, **{name: ArraySpec(c.shape, F4) for name, c in self.constants.items()}}
        made = op.infer([known[name] if name else None for name in inputs])
        names = [f"t{len(self.specs) + i}" for i in range(len(made))]
        self.nodes.append(Node(f"n{len(self.nodes)}", op, inputs, tuple(names)))
        self.specs |= dict(zip(names, made, strict=True))
        return names


Form = Callable[[Network], None]


def elementwise(net: Network) -> None:
    x = net.one()
    assert x is not None
    if net.draw(st.booleans()):
        net.add(Activate(Activation("relu")), x)
    else:
        net.add(Elementwise("add"), x, net.one(lambda shape: shape == net.shape(x)) or x)


def conv(net: Network) -> None:
    x = net.one(lambda shape: len(shape) == 4)
    if x is None:
        return
    n, c_in, height, width = net.shape(x)
    kernel, dilation = net.draw(st.sampled_from([(1, 1), (3, 1), (3, 2)]))
    pad, groups = dilation * (kernel // 2), net.draw(st.sampled_from([g for g in (1, 2, 4) if c_in % g == 0]))
    c_out = groups * net.draw(st.integers(1, 8 // groups))
    residual = net.one(lambda shape: shape == (n, c_out, height, width)) if net.draw(st.booleans()) else None
    op = Conv2d(n, c_in, height, width, c_out, kernel, kernel, 1, 1, pad, pad, pad, pad, dilation, dilation, groups)
    weight = net.constant(c_out, c_in // groups, kernel, kernel)
    net.add(replace(op, residual=residual is not None), x, weight, "", *([residual] if residual else []))


def linear(net: Network) -> None:
    x = net.one(lambda shape: len(shape) > 1)
    if x is None:
        return
    *lead, depth = net.shape(x)
    channels = net.draw(st.integers(1, 8))
    residual = net.one(lambda shape: shape == (*lead, channels)) if net.draw(st.booleans()) else None
    op = Linear(math.prod(lead), depth, channels, residual=residual is not None)
    net.add(op, x, net.constant(depth, channels), "", *([residual] if residual else []))


def pool(net: Network) -> None:
    x = net.one(lambda shape: len(shape) == 4)
    if x is not None:
        sides = net.draw(st.sampled_from([(1, 1), (2, 2), (1, 3)]))
        pads = sides[0] // 2, sides[1] // 2
        window = Window(sides, net.draw(st.sampled_from([(1, 1), (2, 1)])), pads, pads, (1, 1))
        net.add(Pool(net.draw(st.sampled_from(["max", "average"])), window), x)


def norm(net: Network) -> None:
    x = net.one()
    assert x is not None
    axis = net.draw(st.integers(0, len(net.shape(x)) - 1))
    net.add(LayerNorm(axis, 0.1), x, net.constant(*net.shape(x)[axis:]))


def attention(net: Network) -> None:
    x = net.one(lambda shape: len(shape) == 4)
    if x is not None:
        b, h, t, d = net.shape(x)
        (k,) = net.add(Transpose((0, 1, 3, 2)), x)
        net.add(Attention(b, h, t, t, d, d, 0.5), x, k, x)


def concat(net: Network) -> None:
    """Of a tensor with others of its shape, with itself, with constants."""
    x = net.one(lambda shape: math.prod(shape) <= MOST_ELEMENTS // 3)
    if x is None:
        return
    shape = net.shape(x)
    parts = [x]
    for _ in range(net.draw(st.integers(1, 2))):
        form = net.draw(st.integers(0, 5))
        if form == 0:
            parts.append(net.constant(*shape))
        elif form < 4:
            parts += net.add(Activate(Activation("relu")), x)
        else:
            parts.append(net.one(lambda other: other == shape) or x)
    net.add(Concat(net.draw(st.integers(0, len(shape) - 1))), *net.draw(st.permutations(parts)))


def split(net: Network) -> None:
    x = net.one(lambda shape: max(shape) > 1)
    if x is None:
        return
    axis = net.draw(st.sampled_from([i for i, size in enumerate(net.shape(x)) if size > 1]))
    size = net.shape(x)[axis]
    ends = sorted({0, size, *net.draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=2))})
    net.add(Split(axis, tuple(b - a for a, b in pairwise(ends))), x)


def transpose(net: Network) -> None:
    x = net.one()
    assert x is not None
    net.add(Transpose(tuple(net.draw(st.permutations(range(len(net.shape(x))))))), x)


def reshape(net: Network) -> None:
    x = net.one()
    assert x is not None
    shape = net.shape(x)
    i = net.draw(st.integers(0, len(shape) - 1))
    size = shape[i]
    targets = [(*shape[:i], 1, *shape[i:]), (math.prod(shape[:i]), math.prod(shape[i:])), shape]
    targets += [(*shape[: i - 1], shape[i - 1] * size, *shape[i + 1 :])] if i else [(math.prod(shape),)]
    targets += [(*shape[: i - 1], size, shape[i - 1], *shape[i + 1 :])] if i else []
    targets += [(*shape[:i], factor, size // factor, *shape[i + 1 :]) for factor in (2, 3) if size % factor == 0]
    net.add(Reshape(net.draw(st.sampled_from([t for t in targets if len(t) < 6]))), x)


def identity(net: Network) -> None:
    x = net.one()
    assert x is not None
    net.add(Identity(), x)


FORMS: tuple[Form, ...] = (
    *(elementwise, conv, linear, pool, norm, attention),
    *(concat, concat, split, split, transpose, reshape, identity),
)


@st.composite
def graphs(draw: st.DrawFn, most_nodes: int = 8) -> Graph:
    """A network whose unread tensors are outputs, some others too; some tensors have room between their rows."""
    net = Network(draw)
    for shape in draw(st.lists(st.tuples(*(st.integers(1, 4),) * 4), min_size=1, max_size=2)):
        net.specs[f"t{len(net.specs)}"] = ArraySpec(shape, F4)
    inputs = tuple(net.specs)
    while not net.nodes:
        for form in draw(st.lists(st.sampled_from(FORMS), min_size=2, max_size=most_nodes)):
            form(net)
    read = {name for node in net.nodes for name in node.inputs}
    given_out = draw(st.sets(st.sampled_from([name for name in net.specs if name not in inputs]), max_size=2))
    outputs = tuple(name for name in net.specs if name not in read or name in given_out)
    graph = finish(Program(net.nodes, net.specs, net.constants, inputs, outputs), "random")
    roomy = draw(st.sets(st.sampled_from(list(graph.tensors)), max_size=3))
    tensors = {
        name: replace(t, layout=_with_room(t.layout, t.shape)) if name in roomy else t
        for name, t in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)


def _with_room(layout: Layout, shape: Shape) -> Layout:
    return replace(layout, pitch=shape[layout.order[-1]] + 2) if len(shape) > 1 else layout


@st.composite
def networks(draw: st.DrawFn, most_nodes: int = 8) -> tuple[Graph, list[Task]]:
    """A network, and tasks that cut its layers and place its other nodes at random. Waits are not set."""
    graph = draw(graphs(most_nodes))
    choices: dict[str, Choice] = {}
    sides: dict[str, Side] = {}
    for node in graph.nodes:
        if graph.can_split(node):
            assert isinstance(node.op, SplitOp)
            axis = draw(st.sampled_from(node.op.axes))
            step = node.op.step(axis)
            choices[node.name] = Choice(axis, step * draw(st.integers(0, node.op.units(axis) // step)))
        elif node.name not in graph.placement.free:
            sides[node.name] = draw(st.sampled_from(["cpu", "gpu"])) if node.name in graph.device_ops else "cpu"
    return graph, layer_tasks(graph, choices, sides, Resources("", "", TRAITS, 1))


def random_feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(graph.tensors[name].shape).astype(np.float32) for name in graph.inputs}


def evaluate(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor and constant: each node's op on arrays of its own, dense in logical order."""
    values = {**graph.constants, **feeds}
    for node in graph.nodes:
        for name in node.outputs:
            values[name] = np.full(graph.tensors[name].shape, np.nan, graph.tensors[name].dtype)
        node.op.run([values[name] if name else None for name in node.inputs], [values[n] for n in node.outputs])
    return values
