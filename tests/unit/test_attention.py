"""Attention that a model spells out: what becomes one op, what must not, and that the results are onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx_builder import Builder, assert_like_onnxruntime, kinds

from coexec.frontends.onnx import load_onnx
from coexec.graph import Graph
from coexec.ops.attention import Attention

B, H, T, S, D, E = 2, 3, 5, 7, 4, 6
Scaling = Callable[[Builder, str], str]


@dataclass(frozen=True)
class Parts:
    """The tensors of a spelled-out attention so far; each step may be exchanged."""

    b: Builder
    q: str
    k: str
    v: str


def parts(keys: tuple[int, ...] = (B, H, D, S), turned: bool = False) -> Parts:
    b = Builder()
    k = b.input("k", *((B, S, H, D) if turned else keys))
    k = b.add("Transpose", k, perm=[0, 2, 3, 1]) if turned else k
    return Parts(b, b.input("q", B, H, T, D), k, b.input("v", B, H, S, E))


def same(b: Builder, x: str) -> str:
    return x


def times(number: object) -> Scaling:
    return lambda b, x: b.add("Mul", x, b.constant(number))


def number_times(number: object) -> Scaling:
    return lambda b, x: b.add("Mul", b.constant(number), x)


def over(number: object) -> Scaling:
    return lambda b, x: b.add("Div", x, b.constant(number))


def written(p: Parts, scale: Scaling = same, axis: int = -1) -> str:
    weights = p.b.add("Softmax", scale(p.b, p.b.add("MatMul", p.q, p.k)), axis=axis)
    return p.b.add("MatMul", weights, p.v)


def load(model: ModelProto) -> Graph:
    graph = load_onnx(model)
    assert_like_onnxruntime(model, graph, tolerance=1e-4)
    return graph


FUSED: dict[str, tuple[Scaling, float]] = {
    "no scale": (same, 1.0),
    "mul": (times(0.5), 0.5),
    "mul, number first": (number_times(0.5), 0.5),
    "mul, negative": (times(-0.25), -0.25),
    "mul, one axis": (times([0.5]), 0.5),
    "mul, four axes": (times([[[[0.5]]]]), 0.5),
    "div": (over(4), 0.25),
    "div, three axes": (over([[[4]]]), 0.25),
}


@pytest.mark.parametrize("turned", [False, True], ids=["keys as they come", "keys turned"])
@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str, turned: bool) -> None:
    scaling, scale = FUSED[name]
    p = parts(turned=turned)
    graph = load(p.b.model(written(p, scaling)))
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, Attention))
    assert op == Attention(B, H, T, S, D, E, scale)
    assert kinds(graph) == ["transpose"] * turned + ["attention"]


def scale_on_queries(b: Builder) -> str:
    """The product with q stays before it."""
    q = b.add("Mul", b.input("q", B, H, T, D), b.constant(0.5))
    return written(Parts(b, q, b.input("k", B, H, D, S), b.input("v", B, H, S, E)))


def scale_on_queries_and_keys(b: Builder) -> str:
    """As PyTorch exports it."""
    q = b.add("Mul", b.input("q", B, H, T, D), b.constant(0.7))
    k = b.add("Mul", b.add("Transpose", b.input("k", B, H, S, D), perm=[0, 1, 3, 2]), b.constant(0.7))
    return written(Parts(b, q, k, b.input("v", B, H, S, E)))


def test_in_float64() -> None:
    b = Builder()
    q, k, v = (
        b.input(n, B, H, *s, dtype=TensorProto.DOUBLE) for n, s in zip("qkv", ((T, D), (D, S), (S, E)), strict=True)
    )
    scores = b.add("Mul", b.add("MatMul", q, k), b.constant(0.5, np.float64))
    graph = load(b.model(b.add("MatMul", b.add("Softmax", scores), v), dtype=TensorProto.DOUBLE))
    assert kinds(graph) == ["attention"]
    assert not graph.device_ops


def test_zoo_spelling() -> None:
    """One linear layer for q, k and v, cut, reshaped and turned; what follows is turned back."""
    b = Builder()
    joint = b.add("MatMul", b.input("x", B, T, H * D), b.weights(H * D, 3 * H * D))
    q, k, v = (b.reshape(piece, B, T, H, D) for piece in b.split(joint, 2, *(H * D,) * 3))
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (b.add("Transpose", x, perm=order) for x, order in zip((q, k, v), orders, strict=True))
    mixed = b.add("Transpose", written(Parts(b, q, k, v), times(D**-0.5)), perm=[0, 2, 1, 3])
    graph = load(b.model(b.add("MatMul", b.reshape(mixed, B, T, H * D), b.weights(H * D, 8))))
    working = [node.op.kind for node in graph.nodes if node.name not in graph.placement.free]
    assert working == ["linear", "attention", "linear"]
    assert set(graph.device_ops) == {node.name for node in graph.nodes if node.op.kind in ("linear", "attention")}


@pytest.mark.parametrize("make", [scale_on_queries, scale_on_queries_and_keys], ids=lambda f: f.__name__)
def test_scale_before_the_product_stays_there(make: Callable[[Builder], str]) -> None:
    b = Builder()
    graph = load(b.model(make(b)))
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, Attention))
    assert op.scale == 1.0
    assert kinds(graph).count("elementwise") == (1 if make is scale_on_queries else 2)


def masked(b: Builder, x: str) -> str:
    return b.add("Add", x, b.input("mask", 1, 1, T, S))


def constant_mask(b: Builder, x: str) -> str:
    return b.add("Add", x, b.constant(np.triu(np.full((T, S), -1e4), 1)))


def other_spelling(p: Parts, outputs: Callable[[str, str, str], tuple[str, ...]]) -> ModelProto:
    """The inner tensors by name: scores, weights and result."""
    scores = p.b.add("MatMul", p.q, p.k)
    weights = p.b.add("Softmax", scores, axis=-1)
    return p.b.model(*outputs(scores, weights, p.b.add("MatMul", weights, p.v)))


def log_softmax() -> ModelProto:
    p = parts()
    weights = p.b.add("LogSoftmax", p.b.add("MatMul", p.q, p.k), axis=-1)
    return p.b.model(p.b.add("MatMul", weights, p.v))


def without(axis: str) -> Callable[[], ModelProto]:
    """Attention without elements: a softmax over nothing."""

    def make() -> ModelProto:
        b, t, s, d = Builder(), *(0 if axis == name else 3 for name in "TSD")
        return b.model(written(Parts(b, b.input("q", B, H, t, d), b.input("k", B, H, d, s), b.input("v", B, H, s, E))))

    return make


def weights_second() -> ModelProto:
    """The softmax is the right-hand factor."""
    p = parts()
    weights = p.b.add("Softmax", p.b.add("MatMul", p.q, p.k), axis=-1)
    return p.b.model(p.b.add("MatMul", p.b.input("u", B, H, E, T), weights))


def constant_values() -> ModelProto:
    p = parts()
    return p.b.model(written(Parts(p.b, p.q, p.k, p.b.weights(B, H, S, E))))


def broadcast_heads() -> ModelProto:
    """One head of keys for all queries."""
    b = Builder()
    return b.model(written(Parts(b, b.input("q", B, H, T, D), b.input("k", B, 1, D, S), b.input("v", B, H, S, E))))


def three_axes() -> ModelProto:
    b = Builder()
    return b.model(written(Parts(b, b.input("q", B, T, D), b.input("k", B, D, S), b.input("v", B, S, E))))


def read_twice() -> ModelProto:
    p = parts()
    weights = p.b.add("Softmax", p.b.add("MatMul", p.q, p.k), axis=-1)
    return p.b.model(p.b.add("MatMul", weights, p.v), p.b.add("Relu", weights))


def written_with(scaling: Scaling = same, axis: int = -1) -> Callable[[], ModelProto]:
    def make() -> ModelProto:
        p = parts()
        return p.b.model(written(p, scaling, axis))

    return make


NOT_FUSED: dict[str, Callable[[], ModelProto]] = {
    "mask": written_with(masked),
    "constant mask": written_with(constant_mask),
    "scale, then mask": written_with(lambda b, x: masked(b, times(0.5)(b, x))),
    "scale per key": written_with(times(np.linspace(0.5, 1, S))),
    "scale of 0": written_with(times(0)),
    "divided by the scores": written_with(lambda b, x: b.add("Div", b.constant(0.5), x)),
    "softmax over queries": written_with(axis=2),
    "log softmax": log_softmax,
    "scores given out": lambda: other_spelling(parts(), lambda scores, weights, y: (y, scores)),
    "weights given out": lambda: other_spelling(parts(), lambda scores, weights, y: (y, weights)),
    "weights read twice": read_twice,
    "weights as second factor": weights_second,
    "constant values": constant_values,
    "one head of keys": broadcast_heads,
    "three axes": three_axes,
    "no queries": without("T"),
    "no keys": without("S"),
    "no depth": without("D"),
}


@pytest.mark.parametrize("name", NOT_FUSED)
def test_not_fused(name: str) -> None:
    assert "attention" not in kinds(load(NOT_FUSED[name]()))
