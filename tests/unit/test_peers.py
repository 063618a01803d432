"""The libraries that coexec is compared with compute the layer that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx
import pytest

from coexec.errors import InputError
from coexec.experiments.layer_model import layer_feeds, layer_model
from coexec.experiments.peers import PEERS, Peer, Run, choose_peers, loaded
from coexec.layout import Array
from coexec.measure import random_constants
from coexec.ops.activation import ACTIVATIONS, Activation
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

AnyOp = Conv2d | Linear

SHAPES: list[AnyOp] = [
    Linear(1, 7, 5),
    Linear(9, 16, 33, bias=True),
    Conv2d(1, 3, 9, 8, 6, 3, 3, 1, 1, 1, 1, 1, 1, bias=True),
    Conv2d(2, 4, 7, 9, 8, 3, 2, 2, 1, 0, 1, 2, 0, 1, 2, groups=2),
    Conv2d(1, 6, 8, 8, 6, 3, 3, 1, 1, 1, 1, 1, 1, groups=6, residual=True),
    Conv2d(1, 5, 4, 4, 7, 1, 1, bias=True, residual=True),
]
OPS: list[AnyOp] = [
    *SHAPES,
    *(
        replace(SHAPES[1 if i % 2 else 2], activation=Activation(kind, 0.1, 0.7), residual=i % 3 == 0)
        for i, kind in enumerate(ACTIVATIONS)
    ),
]


def expected(op: AnyOp, copy: int, copies: int) -> Array:
    """The op's reference in float64 for one of the copies."""
    constants, feeds = random_constants(op.array_shapes, seed=copy), layer_feeds(op, copies)
    logical = [feeds[f"x{copy}"], constants["weight"], constants.get("bias"), feeds.get(f"r{copy}")]
    result = np.empty(op.array_shapes["y"])
    arrays, view = op.canonical(logical, result)
    view[...] = op.reference(arrays)
    return result


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_peer_computes_the_layer(name: str, op: AnyOp) -> None:
    reason = PEERS[name].available()
    if reason is not None:
        pytest.skip(reason)
    run = PEERS[name].load_layer(op, 3, threads=1)
    for _ in range(2):  # a second run finds nothing changed by the first
        results = run()
        assert len(results) == 3
        for copy, result in enumerate(results):
            np.testing.assert_allclose(result, expected(op, copy, 3), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_layer_model_is_valid(op: AnyOp) -> None:
    model = layer_model(op, 2)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["y0", "y1"]
    assert {value.name for value in model.graph.input} == set(layer_feeds(op, 2))


def test_copies_differ() -> None:
    """Otherwise a library may find a copy's weights in the caches, or compute one of them only."""
    model = layer_model(SHAPES[1], 3)
    arrays = {i.name: onnx.numpy_helper.to_array(i).tobytes() for i in model.graph.initializer}
    assert len(set(arrays.values())) == len(arrays) == 6
    feeds = layer_feeds(SHAPES[1], 3)
    assert len({value.tobytes() for value in feeds.values()}) == 3


class Missing(Peer):
    name = package = module = "no_such_library"

    def load_model(self, model: str | onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        raise AssertionError("it is not installed")


class Failing(Peer):
    name: ClassVar[str] = "failing"
    package = module = "numpy"

    def load_model(self, model: str | onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        raise RuntimeError("line one\nline two")


def test_a_peer_that_cannot_is_a_note() -> None:
    op = SHAPES[0]
    for peer, note in (
        (Missing(), "no_such_library: no_such_library is not installed"),
        (Failing(), "failing: line one line two"),
    ):
        assert loaded(peer, lambda p: p.load_layer(op, 1, 1)) == (None, note)
    run, note = loaded(PEERS["numpy"], lambda p: p.load_layer(op, 1, 1))
    assert run is not None and note is None
    run, reason = loaded(PEERS["numpy"], lambda p: p.load_model("some.onnx", {}, 1))
    assert run is None and reason == "numpy: NumPy runs single layers only"


def test_choice_of_peers() -> None:
    assert [peer.name for peer in choose_peers(None)] == list(PEERS)
    assert [peer.name for peer in choose_peers(["onnxruntime", "numpy", "onnxruntime"])] == ["onnxruntime", "numpy"]
    assert choose_peers([]) == []
    with pytest.raises(InputError, match="unknown peer 'tvm'; there are numpy, onnxruntime"):
        choose_peers(["numpy", "tvm"])
