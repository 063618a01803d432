"""Models full of views (concatenations, pieces, reshapes, transpositions), split, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto
from onnx_builder import RNG, Builder
from random_networks import evaluate, networks, random_feeds

from coexec.api import build, load_graph, partition
from coexec.dependencies import add_waits
from coexec.executor import Executor
from coexec.experiments.conformance import AXES, SHARES, Link
from coexec.graph import Graph
from coexec.layout import Array
from coexec.plan import Plan, Task
from coexec.planner import Resources, assemble, share_choices
from coexec.sync import opened


def conv(b: Builder, x: str, c_in: int, c_out: int, kernel: int = 3) -> str:
    weight = b.constant(RNG.standard_normal((c_out, c_in, kernel, kernel)) / (kernel * np.sqrt(c_in)))
    return b.add("Relu", b.add("Conv", x, weight, b.weights(c_out), pads=[kernel // 2] * 4))


def linear(b: Builder, x: str, k: int, n: int) -> str:
    return b.add("MatMul", x, b.constant(RNG.standard_normal((k, n)) / np.sqrt(k)))


def branches() -> onnx.ModelProto:
    """As in SqueezeNet and Inception: branches joined by channels, one of them a pool, the joint read twice."""
    b = Builder()
    x = conv(b, b.input("x", 1, 3, 9, 9), 3, 12)
    pooled = b.add("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    y = b.add("Concat", conv(b, x, 12, 20, 1), conv(b, x, 12, 17), pooled, axis=1)
    z = b.add("Concat", conv(b, y, 49, 8, 1), y, axis=1)
    mean = b.add("GlobalAveragePool", conv(b, z, 57, 40))
    return b.model(linear(b, b.add("Flatten", mean), 40, 10), z)


def shuffled() -> onnx.ModelProto:
    """As in ShuffleNet: channels split in halves, one computed, joined, and shuffled by a reshape."""
    b = Builder()
    left, right = b.split(conv(b, b.input("x", 1, 3, 8, 6), 3, 32), 1, 16, 16)
    joined = b.add("Concat", left, conv(b, right, 16, 16), axis=1)
    turned = b.add("Transpose", b.reshape(joined, 1, 2, 16, 8, 6), perm=[0, 2, 1, 3, 4])
    left, right = b.split(b.reshape(turned, 1, 32, 8, 6), 1, 16, 16)
    return b.model(b.add("Concat", conv(b, left, 16, 16), right, axis=1))


def tokens() -> onnx.ModelProto:
    """An image as rows of tokens with one more before them, through attention and back to an image."""
    b = Builder()
    x = b.reshape(conv(b, b.input("x", 2, 3, 4, 5), 3, 24), 2, 24, 20)
    x = b.add("Concat", b.weights(2, 1, 24), b.add("Transpose", x, perm=[0, 2, 1]), axis=1)
    q, k, v = (b.reshape(piece, 2, 21, 3, 8) for piece in b.split(linear(b, x, 24, 72), 2, 24, 24, 24))
    scores = b.add("MatMul", b.add("Transpose", q, perm=[0, 2, 1, 3]), b.add("Transpose", k, perm=[0, 2, 3, 1]))
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), b.add("Transpose", v, perm=[0, 2, 1, 3]))
    y = linear(b, b.reshape(b.add("Transpose", mixed, perm=[0, 2, 1, 3]), 2, 21, 24), 24, 24)
    _, rest = b.split(b.add("Add", x, y), 1, 1, 20)
    image = b.reshape(b.add("Transpose", rest, perm=[0, 2, 1]), 2, 24, 4, 5)
    return b.model(conv(b, image, 24, 6), y)


def rows() -> onnx.ModelProto:
    """Linear layers on several leading axes, their results joined, flattened, squeezed and turned."""
    b = Builder()
    x = b.input("x", 2, 3, 16)
    y = b.add("Concat", linear(b, x, 16, 40), linear(b, x, 16, 24), axis=2)
    tall = b.add("Concat", y, linear(b, y, 64, 64), axis=1)
    more = b.add("Unsqueeze", linear(b, b.add("Flatten", tall, axis=2), 64, 12), b.constant([0], np.int64))
    less = b.add("Squeeze", linear(b, more, 12, 7), b.constant([0], np.int64))
    return b.model(linear(b, b.add("Transpose", less, perm=[1, 0]), 12, 5), tall, less)


def columns() -> onnx.ModelProto:
    """Images joined and split along their width and height: their rows are not evenly apart."""
    b = Builder()
    x = conv(b, b.input("x", 1, 3, 6, 7), 3, 16)
    wide = b.add("Concat", conv(b, x, 16, 16), conv(b, x, 16, 16, 1), axis=3)
    left, right = b.split(wide, 3, 4, 10)
    high = b.add("Concat", conv(b, left, 16, 20), conv(b, left, 16, 20, 1), axis=2)
    return b.model(conv(b, high, 20, 5, 1), conv(b, right, 16, 7))


def ends() -> onnx.ModelProto:
    """Views at the edges: inputs and outputs that are joined, split, turned and given out twice."""
    b = Builder()
    x, y = b.input("x", 1, 8, 6, 6), b.input("y", 1, 8, 6, 6)
    both = b.add("Concat", x, y, x, axis=1)
    first, second, third = b.split(both, 1, 4, 12, 8)
    z = conv(b, second, 12, 16)
    turned = b.add("Transpose", z, perm=[0, 2, 3, 1])
    return b.model(first, turned, b.reshape(turned, 36, 16), third, both, z)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    f.__name__: f for f in (branches, shuffled, tokens, rows, columns, ends)
}


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_close(got: list[Array], expected: list[Array]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_on_the_cpu(name: str) -> None:
    model = MODELS[name]()
    feeds = random_feeds(load_graph(model))
    assert_close(partition(model, device="cpu", cpu_threads=1).run(None, feeds), by_onnxruntime(model, feeds))


def test_in_float64() -> None:
    """No kernel computes it, but its layers see their tensors as matrices all the same."""
    b = Builder()
    x = b.add("Transpose", b.input("x", 2, 3, 4, dtype=TensorProto.DOUBLE), perm=[2, 1, 0])
    y = b.add("MatMul", x, b.constant(RNG.standard_normal((2, 5)), np.float64))
    z = b.add("MatMul", b.add("Transpose", y, perm=[0, 2, 1]), b.constant(RNG.standard_normal((3, 4)), np.float64))
    joined = b.add("Concat", z, b.add("MatMul", z, b.constant(RNG.standard_normal((4, 4)), np.float64)), axis=1)
    model = b.model(joined, y, dtype=TensorProto.DOUBLE)
    feeds = {"x": RNG.standard_normal((2, 3, 4))}
    assert_close(partition(model, device="cpu", cpu_threads=1).run(None, feeds), by_onnxruntime(model, feeds))


@pytest.mark.parametrize("name", MODELS)
def test_split(sampled_link: Link, name: str) -> None:
    """At every share and axis, twice, on memory full of NaN, which a plan that leaves something out shows."""
    model = MODELS[name]()
    graph, sync = load_graph(model), opened(sampled_link.info, 1, sampled_link.sync)
    assert graph.placement.free
    use, executor = Resources("", "", sync.session.traits, 1, sync.name), Executor(graph, sync, 1)
    for memory in {id(m): m for m in map(executor.tensors.memory, graph.tensors)}.values():
        memory.host[...] = 0xFF
    feeds = random_feeds(graph)
    expected = by_onnxruntime(model, feeds)
    for axis in AXES:
        for share in SHARES:
            executor.load(assemble(graph, share_choices(graph, axis, share), None, use))
            for factor in (-1, 1):
                got = executor.run({key: factor * value for key, value in feeds.items()})
            assert_close([got[output] for output in graph.outputs], expected)


@pytest.mark.parametrize("name", MODELS)
def test_built_from_a_plan(sampled_link: Link, name: str) -> None:
    """The way that ``partition`` goes, with a plan whose layers are cut in halves."""
    model, info = MODELS[name](), sampled_link.info
    graph = load_graph(model)
    use = Resources(info.id, info.name_and_driver, info.traits(1), 1, sampled_link.sync)
    plan = assemble(graph, share_choices(graph, "channel", 0.5), None, use)
    assert {task.side for task in plan.tasks} == {"cpu", "gpu"}
    feeds = random_feeds(graph)
    assert_close(build(graph, plan).run(None, feeds), by_onnxruntime(model, feeds))


@given(case=networks())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_networks(sampled_link: Link, case: tuple[Graph, list[Task]]) -> None:
    graph, tasks = case
    executor, feeds = Executor(graph, opened(sampled_link.info, 1, sampled_link.sync), 1), random_feeds(graph)
    # Kernels are left open: the strategy chose them for another device.
    executor.load(Plan("", "", "", "", 0, 1, "", tuple(add_waits(graph, tasks)), {}, {}, 0.0, "", {}, {}, "", ""))
    got, expected = executor.run(feeds), evaluate(graph, feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
