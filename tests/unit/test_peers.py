"""The libraries that coexec is compared with compute the layer that it computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from coexec import zoo
from coexec.errors import InputError
from coexec.experiments.layer_model import layer_feeds, layer_model
from coexec.experiments.peers import PEERS, Peer, Run, choose_peers, convert, load_all, loaded, relative_difference
from coexec.experiments.peers.numpy_peer import Numpy
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


TOLERANCE = {"openvino_default": 3e-2, "mnn": 2e-3}
"""Largest error over the largest value, where it is not that of fp32: bfloat16; approximate activations."""


def usable(name: str) -> Peer:
    """The peer; skips the test where it is not installed, or can run nothing."""
    reason = PEERS[name].available() or ("LiteRT reads no ONNX" if name == "litert" else None)
    if reason is not None:
        pytest.skip(reason)
    return PEERS[name]


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_peer_computes_the_layer(name: str, op: AnyOp) -> None:
    peer = usable(name)
    if name == "ncnn" and isinstance(op, Conv2d) and op.N > 1:
        pytest.skip("ncnn has no batch axis")
    run = peer.load_layer(op, 3, threads=1)
    right = [expected(op, copy, 3) for copy in range(3)]
    for _ in range(2):  # a second run finds nothing changed by the first
        results = run()
        assert relative_difference(results, right) < TOLERANCE.get(name, 2e-5)
        assert {r.dtype for r in results} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", PEERS)
def test_peer_runs_a_network(name: str, tmp_path: Path) -> None:
    model = zoo.build("squeezenet", image_size=64)
    if name == "numpy":
        pytest.skip("NumPy runs single layers only")
    peer = usable(name)
    path = tmp_path / "squeezenet.onnx"
    onnx.save(model, path)
    feeds = {"input": np.random.default_rng(0).standard_normal((1, 3, 64, 64), np.float32)}
    right = PEERS["onnxruntime"].load_model(model, feeds, 1)()
    for source in (model, str(path)):
        assert relative_difference(peer.load_model(source, feeds, 1)(), right) < TOLERANCE.get(name, 2e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["squeezenet.onnx"]


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
    name = "no_such_library"
    packages = ("no_such_library",)

    def load_model(self, model: str | onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        raise AssertionError("it is not installed")


class Failing(Peer):
    name = "failing"
    packages = ("numpy",)

    def load_model(self, model: str | onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        raise RuntimeError("line one\nline two")


class HalfThere(Failing):
    name = "half_there"
    packages = ("numpy", "no_such_converter")


def test_a_peer_that_cannot_is_a_note() -> None:
    op = SHAPES[0]
    for peer, note in (
        (Missing(), "no_such_library: no_such_library is not installed"),
        (Failing(), "failing: line one line two"),
        (HalfThere(), "half_there: no_such_converter is not installed"),
    ):
        assert loaded(peer, lambda p: p.load_layer(op, 1, 1)) == (None, note)
    run, note = loaded(PEERS["numpy"], lambda p: p.load_layer(op, 1, 1))
    assert run is not None and note is None
    run, reason = loaded(PEERS["numpy"], lambda p: p.load_model("some.onnx", {}, 1))
    assert run is None and reason == "numpy: NumPy runs single layers only"


class Off(Numpy):
    name = "off"

    def load_layer(self, op: AnyOp, copies: int, threads: int) -> Run:
        run = super().load_layer(op, copies, threads)

        def off() -> list[Array]:
            print("what a library says")
            return [y + np.float32(0.5) * np.abs(y).max() for y in run()]

        return off


def test_results_are_compared_with_the_reference(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    found = load_all([PEERS["numpy"], Off(), Missing()], lambda p: p.load_layer(SHAPES[0], 2, 1))
    assert list(found.runs) == ["numpy", "off"]
    assert found.notes == ["no_such_library: no_such_library is not installed"]
    assert found.differences["numpy"] == pytest.approx(0, abs=1e-6)
    assert found.differences["off"] == pytest.approx(0.5, rel=1e-3)


def test_relative_difference() -> None:
    one, two = np.float32([[1, -2]]), np.float32([[1, -1]])
    assert relative_difference([one, two], [one, two]) == 0
    assert relative_difference([one, two], [one, one]) == 0.5
    for wrong in ([one], [one, two[0]], [one, two * np.nan]):
        assert relative_difference(wrong, [one, two]) == float("inf")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('bad op\\n'); raise SystemExit(3)", r"its converter failed \(3\): bad op"),
        ("pass", r"its converter failed \(0\): no message"),
        ("import time; time.sleep(60)", "its converter took more than 1 s"),
    ],
)
def test_a_converter_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str) -> None:
    monkeypatch.setattr(convert, "LIMIT_S", 1.0)
    monkeypatch.setattr(convert, "MNN_CONVERT", program)
    with pytest.raises(InputError, match=message):
        convert.mnn(layer_model(SHAPES[0], 1), tmp_path)


def test_libraries_are_imported_late() -> None:
    heavy = ("onnxruntime", "openvino", "ncnn", "MNN", "torch", "pnnx")
    program = f"import sys, coexec.experiments.bench; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_choice_of_peers() -> None:
    assert [peer.name for peer in choose_peers(None)] == list(PEERS)
    assert [peer.name for peer in choose_peers(["onnxruntime", "numpy", "onnxruntime"])] == ["onnxruntime", "numpy"]
    assert choose_peers([]) == []
    assert [name for name, peer in PEERS.items() if not peer.fp32] == ["openvino_default"]
    with pytest.raises(InputError, match="unknown peer 'tvm'; there are numpy, onnxruntime, openvino, "):
        choose_peers(["numpy", "tvm"])
