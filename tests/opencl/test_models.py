"""The zoo's models, split, against onnxruntime: the sample of `scripts/check`; and that the check can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from coexec import zoo
from coexec.api import load_graph
from coexec.device import Session
from coexec.executor import Executor
from coexec.experiments.conformance import (
    AXES,
    SHARES,
    TOLERANCE,
    Link,
    all_cases,
    check_models,
    find_links,
    report,
    run_poisoned,
    sample_cases,
)
from coexec.experiments.network_timing import random_feeds
from coexec.measure import LayerRig
from coexec.ops.linear import Linear
from coexec.planner import Choice, Resources, assemble, share_choices
from coexec.sync import open_sync

MODELS = list(zoo.MODELS)


@pytest.mark.opencl
@pytest.mark.parametrize("name", MODELS)
def test_model_equals_onnxruntime(name: str) -> None:
    links = find_links()
    if not links:
        pytest.skip("no usable OpenCL device here")
    results = check_models({name: getattr(zoo, name)}, {name: sample_cases(MODELS, links)[name]})
    assert results
    for result in results:
        assert result.ok, result
        assert result.tensors > 15


def without_elements(x: tuple[int, ...], weight: tuple[int, ...], bias: int) -> onnx.ModelProto:
    """A layer with an axis of size 0, its result joined by an ordinary layer's."""
    op, rank = ("Conv", 4) if len(x) == 4 else ("Gemm", 2)
    pads = {"pads": [1, 1, 1, 1]} if op == "Conv" else {}
    nodes = [
        helper.make_node(op, ["x", "w", "b"], ["y"], **pads),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("MatMul", ["m", "k"], ["n"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("m", (4, 16)))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * r) for n, r in (("z", rank), ("n", 2))]
    shapes = {"w": weight, "b": (bias,), "k": (16, 32)}
    constants = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "empty", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


EMPTY = [
    ((0, 3), (3, 4), 4),
    ((2, 0), (0, 4), 4),
    ((2, 3), (3, 0), 0),
    ((0, 3, 5, 5), (4, 3, 3, 3), 4),
    ((1, 0, 5, 5), (4, 0, 3, 3), 4),
    ((1, 3, 5, 5), (0, 3, 3, 3), 0),
]


@pytest.mark.parametrize(("x", "weight", "bias"), EMPTY, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_layers_without_elements(
    opencl_link: Link, x: tuple[int, ...], weight: tuple[int, ...], bias: int, share: float
) -> None:
    """Only the layer beside them is on the GPU side."""
    model = without_elements(x, weight, bias)
    graph, sync = load_graph(model), open_sync(Session(opencl_link.info, 1), opencl_link.sync)
    assert [node.op.kind for node in graph.split_nodes()] == ["linear"]
    use = Resources("", "", sync.session.traits, 1, sync.name)
    executor, feeds = Executor(graph, sync, 1), random_feeds(graph)
    executor.load(assemble(graph, share_choices(graph, "channel", share), None, use))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(2):
        got = executor.run(feeds)
        for name, expected in zip(("z", "n"), session.run(["z", "n"], feeds), strict=True):
            assert got[name].shape == expected.shape
            np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.opencl
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_sample_reaches_everything(count: int) -> None:
    """Each model, device with strategy, axis and share, however many models there are."""
    links = find_links()
    if not links:
        pytest.skip("no usable OpenCL device here")
    names = MODELS[:count]
    cases = sample_cases(names, links)
    pairs = [(link, cut) for own in cases.values() for link, cuts in own.items() for cut in cuts]
    assert [name for name, own in cases.items() if own] == names
    assert {link for link, _ in pairs} == set(links)
    everything = all_cases(names, links)
    cuts = {cut for own in everything.values() for cuts in own.values() for cut in cuts}
    assert {(cut.axis, cut.share) for cut in cuts} == {(axis, share) for axis in AXES for share in SHARES}
    assert {cut for _, cut in pairs} == cuts
    full = sum(len(cuts) for own in everything.values() for cuts in own.values())
    assert full == count * len(links) * len(cuts)
    assert len(pairs) <= max(full // 2, len(cuts) + len(links))


def test_what_a_plan_leaves_out_is_seen(opencl_link: Link) -> None:
    """On poisoned memory a missing part is NaN, also in the second run and with memories of their own."""
    sync = open_sync(Session(opencl_link.info, 1), opencl_link.sync)
    graph = LayerRig(Linear(8, 16, 64), None, Resources("", "", None, 1), copies=2).graph
    use = Resources("", "", sync.session.traits, 1, sync.name)
    whole = assemble(graph, {node.name: Choice("channel", 32) for node in graph.nodes}, None, use)
    executor, feeds = Executor(graph, sync, 1), random_feeds(graph)
    for missing in ("cpu", "gpu"):
        executor.load(whole)
        assert np.isfinite(run_poisoned(executor, whole, feeds)["y1"]).all()
        halves = replace(whole, tasks=tuple(replace(t, wait_for=0) for t in whole.tasks if t.side != missing))
        executor.load(halves)
        for _ in range(2):
            result = run_poisoned(executor, halves, feeds)["y1"]
            lost = slice(32, 64) if missing == "cpu" else slice(0, 32)
            assert np.isnan(result[:, lost]).all()
            assert np.isfinite(np.delete(result, np.arange(64)[lost], axis=1)).all()


def test_a_wrong_model_fails(opencl_link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight of one layer off by a percent of its largest value is found."""
    from coexec.experiments import conformance

    original = conformance.load_graph

    def off(proto: object) -> object:
        graph = original(proto)
        name = next(node.inputs[1] for node in graph.split_nodes())
        weight = graph.constants[name].copy()
        weight[0] += 0.01 * np.abs(weight).max()
        return replace(graph, constants={**graph.constants, name: weight})

    models = {"squeezenet": lambda: zoo.build("squeezenet", image_size=64)}
    cases = {"squeezenet": {opencl_link: sample_cases(["squeezenet"], [opencl_link])["squeezenet"][opencl_link][:1]}}
    (right,) = check_models(models, cases)
    assert right.ok
    monkeypatch.setattr(conformance, "load_graph", off)
    (wrong,) = check_models(models, cases)
    assert not wrong.ok
    assert wrong.max_rel_error > TOLERANCE
    assert report([right, wrong])["failed"] == 1
