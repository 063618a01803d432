"""Stored graphs: equal to those that were read from the model, and never those of another file or other shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import small_input, small_model
from onnx import TensorProto, helper, numpy_helper
from single_node import Case, whole_model
from test_ops import CASES, FALLBACK

from coexec import graph_cache, zoo
from coexec.api import load, load_graph, partition
from coexec.errors import CoexecError, ModelError
from coexec.frontends.onnx import load_onnx
from coexec.graph import Graph
from coexec.graph_cache import Request, read_graph, request, write_graph

ANY = Request(b"any", (), ())


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("COEXEC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    onnx.save(small_model(), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def graphs(folder: Path) -> list[Path]:
    """The entries that are graphs, not the small ones that lead to them."""
    return [path for path in folder.iterdir() if path.stat().st_size > 200]


def assert_same(a: Graph, b: Graph) -> None:
    for what in ("name", "nodes", "tensors", "inputs", "outputs", "notes"):
        assert getattr(a, what) == getattr(b, what)
    assert repr(a.nodes) == repr(b.nodes)  # an int is equal to a float and to a bool
    assert a.signature() == b.signature()
    assert list(a.constants) == list(b.constants)
    for name, array in a.constants.items():
        other = b.constants[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape)
        assert array.tobytes() == other.tobytes()


def forbid_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the model is read again")

    monkeypatch.setattr("coexec.frontends.onnx.load_onnx", never)


@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v2", "resnet18"])
def test_networks_come_back_as_they_were(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build(name, image_size=64)
    onnx.save(model, tmp_path / "model.onnx")
    first = load_graph(tmp_path / "model.onnx")
    forbid_import(monkeypatch)
    second = load_graph(tmp_path / "model.onnx")
    monkeypatch.undo()
    for graph in (first, second):
        assert_same(graph, load_graph(model))
    second.check()


@pytest.mark.parametrize("case", [*CASES, *FALLBACK], ids=str)
def test_every_op_comes_back_or_is_not_stored(case: Case) -> None:
    try:
        graph = load_onnx(whole_model(case)[0])
    except CoexecError as error:
        pytest.skip(str(error))
    write_graph(ANY, graph)
    again = read_graph(ANY)
    if again is not None:
        assert_same(again, graph)


def test_most_ops_can_be_stored() -> None:
    stored = set()
    for number, case in enumerate({case.op_type: case for case in CASES if case.opset >= 9}.values()):
        with suppress(ModelError):  # a Cast to text
            asked = Request(bytes([number]), (), ())
            write_graph(asked, load_onnx(whole_model(case)[0]))
            if read_graph(asked) is not None:
                stored.add(case.op_type)
    assert len(stored) > 100


def test_a_second_process_needs_no_onnx_and_gives_the_same(small: Path, tmp_path: Path) -> None:
    model = partition(small, device="cpu", cpu_threads=1)
    model.plan.save(tmp_path / "plan.json")
    expected = model(small_input())
    np.save(tmp_path / "x.npy", small_input())
    script = (
        "import sys, numpy as np, coexec\n"
        "m = coexec.load('small.onnx', plan='plan.json')\n"
        "np.save('y.npy', m(np.load('x.npy')))\n"
        "print(sorted(n for n in ('onnx', 'ml_dtypes', 'pyopencl', 'lightgbm', 'scipy') if n in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=dict(os.environ), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"[]\n"
    assert np.load(tmp_path / "y.npy").tobytes() == np.asarray(expected).tobytes()


def test_another_content_is_read_anew(small: Path, folder: Path) -> None:
    first = load_graph(small)
    status = small.stat()
    model = small_model()
    weight = numpy_helper.to_array(model.graph.initializer[0]) + 1
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    onnx.save(model, small)
    os.utime(small, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert small.stat().st_size == status.st_size
    second = load_graph(small)
    assert_same(second, load_graph(model))
    assert not np.array_equal(first.constants["w1"], second.constants["w1"])
    assert len(graphs(folder)) == 2


def test_a_copy_elsewhere_is_the_same_model(small: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_graph(small)
    small.rename(small.with_name("other.onnx"))
    forbid_import(monkeypatch)
    load_graph(small.with_name("other.onnx"))
    assert len(graphs(folder)) == 1


def test_shapes_and_code_are_part_of_the_key(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ({"input": (1, 3, 20, 20)}, {"input": [2, 3, 20, 20]}, {"input": (1, 3, 20, 20), "x": (1,)}, {})

    def keys() -> set[bytes]:
        asked = [request(small, given, fallback) for given in (*shapes, None) for fallback in (*shapes, None)]
        return {one.key for one in asked if one is not None}

    before = keys()
    assert len(before) == 16  # no shapes and none at all are one
    monkeypatch.setattr(graph_cache, "_code", lambda: "newer")
    assert not before & keys()


def test_open_models_are_kept_by_shape(tmp_path: Path) -> None:
    model = small_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = tmp_path / "open.onnx"
    onnx.save(model, path)
    for _ in range(2):
        for batch in (1, 2):
            graph = load_graph(path, {"input": (batch, 3, 20, 20)})
            assert graph.input_shapes() == {"input": (batch, 3, 20, 20)}
        with pytest.raises(ModelError, match="open dimensions"):
            load_graph(path)


@pytest.mark.parametrize("given", [{"input": "abc"}, {"input": 3}, {3: (1,)}, [1], {"input": (1.5, 3, 20, 20)}])
def test_shapes_that_make_no_sense_are_refused_as_ever(small: Path, given: object) -> None:
    def refusal(model: object) -> str:
        with pytest.raises(CoexecError) as raised:
            load_graph(model, given)  # type: ignore[arg-type]
        return str(raised.value)

    assert refusal(small) == refusal(small_model())


def test_faults_are_told_every_time(tmp_path: Path, folder: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(small_model().SerializeToString()[:300])
    os.mkfifo(tmp_path / "pipe")
    for _ in range(2):
        for path, fault in (
            (broken, "damaged"),
            (tmp_path / "missing", "no model file"),
            (tmp_path, "directory"),
            (tmp_path / "pipe", "not a regular file"),
        ):
            with pytest.raises(ModelError, match=fault):
                load_graph(path)
    assert not folder.exists() or not list(folder.iterdir())


def test_weights_in_other_files_are_read_every_time(tmp_path: Path, folder: Path) -> None:
    """Only the model's own file is part of the key."""
    path = tmp_path / "model.onnx"
    for factor in (1, 2):
        model = small_model()
        weight = numpy_helper.to_array(model.graph.initializer[0]) * factor
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
        onnx.save_model(model, path, save_as_external_data=True, location="weights", size_threshold=0)
        np.testing.assert_array_equal(load_graph(path).constants["w1"], weight)
        (tmp_path / "weights").unlink()
    assert not folder.exists() or not list(folder.iterdir())


def test_a_damaged_graph_is_read_from_the_model_again(small: Path, folder: Path) -> None:
    expected = load_graph(small_model())
    load_graph(small)
    (path,) = graphs(folder)
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        assert_same(load_graph(small), expected)
        assert path.read_bytes() == whole


def test_what_the_format_cannot_hold_is_not_stored() -> None:
    graph = load_graph(small_model())
    for constants in ({"w1": np.array(["text", None], object)}, {"w1": np.zeros(2, [("a", "f4"), ("b", "i4")])}):
        odd = Graph(graph.name, graph.nodes, graph.tensors, constants, graph.inputs, graph.outputs)
        write_graph(ANY, odd)
        assert read_graph(ANY) is None


def test_large_models_are_not_stored(monkeypatch: pytest.MonkeyPatch, small: Path, folder: Path) -> None:
    monkeypatch.setattr(graph_cache, "LARGEST_BYTES", 100)
    load_graph(small)
    assert not folder.exists() or not list(folder.iterdir())


def test_a_second_plan_can_be_loaded(small: Path, tmp_path: Path) -> None:
    """Weights that were let go of after the first plan are there for the next."""
    load_graph(small)
    first = partition(small, device="cpu", cpu_threads=1)
    model = load(small, first.plan)
    x = small_input()
    expected = model(x)
    other = type(first.plan).from_json(first.plan.to_json())
    model.plan = other
    np.testing.assert_array_equal(model(x), expected)


def test_special_numbers_in_ops_survive(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["y"]),
        helper.make_node("Elu", ["y"], ["z"], alpha=0.1),
    ]
    made = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("low", -np.inf), ("high", np.inf))]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "z")]
    model = helper.make_model(
        helper.make_graph(nodes, "odd", ports[:1], ports[1:], made),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(model, tmp_path / "odd.onnx")
    for _ in range(2):
        assert_same(load_graph(tmp_path / "odd.onnx"), load_graph(model))
