"""The zoo's models are the published architectures, valid and well scaled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from coexec import zoo
from coexec.errors import InputError

UNTRAINED = ("running_mean", "running_var")
SMALL = {"inception_v3": 128}
"""Image sizes that are quick to run; 64 where none is named (vgg16 is built for 224 only)."""


def count_parameters(model: onnx.ModelProto) -> int:
    """Float initializers that a training would change: all but statistics and scalar constants."""
    return sum(
        int(np.prod(i.dims))
        for i in model.graph.initializer
        if i.data_type == onnx.TensorProto.FLOAT and len(i.dims) > 0 and not i.name.endswith(UNTRAINED)
    )


def dims(value: onnx.ValueInfoProto) -> list[int]:
    return [d.dim_value for d in value.type.tensor_type.shape.dim]


@pytest.fixture(scope="module", params=zoo.MODELS)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each model as it is published, built once."""
    yield request.param, getattr(zoo, request.param)()


def test_published_parameter_count(named: tuple[str, onnx.ModelProto]) -> None:
    # torchvision's model documentation lists these counts ("num_params" of each weight entry).
    name, model = named
    assert count_parameters(model) == zoo.MODELS[name].parameters


def test_auxiliary_head_of_inception_makes_the_difference() -> None:
    conv0, conv1 = 768 * 128 + 2 * 128, 128 * 768 * 5 * 5 + 2 * 768  # weights, scale and bias of the normalisation
    assert zoo.MODELS["inception_v3"].parameters + conv0 + conv1 + (768 * 1000 + 1000) == 27_161_264


def test_valid_with_published_shapes(named: tuple[str, onnx.ModelProto]) -> None:
    name, model = named
    onnx.checker.check_model(model, full_check=True)  # compares the declared output shape with the inferred one
    size = zoo.MODELS[name].image_size
    assert [(v.name, dims(v)) for v in model.graph.input] == [("input", [1, 3, size, size])]
    assert [(v.name, dims(v)) for v in model.graph.output] == [("output", [1, 1000])]
    assert [o.version for o in model.opset_import] == [20]
    node_names = [node.name for node in model.graph.node]
    assert all(node_names) and len(set(node_names)) == len(node_names)


@pytest.mark.parametrize("name", [n for n in zoo.MODELS if n != "vgg16"])
def test_well_scaled_in_small(name: str) -> None:
    size = SMALL.get(name, 64)
    model = zoo.build(name, batch=2, image_size=size, classes=10)
    attention = {node.output[0] for node in model.graph.node if node.op_type == "Softmax"}
    names = [o for node in model.graph.node for o in node.output if o != "output"]
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 3, size, size), np.float32) for _ in range(2))
    for tensor, value in zip(["output", *names], session.run(None, {"input": a}), strict=True):
        assert np.isfinite(value).all(), tensor
        if value.dtype == np.float32 and tensor not in attention:  # a mean of 1 / tokens leaves them little spread
            assert 1e-2 < value.std() < 1e3, (tensor, value.std())
    first, second = (session.run(["output"], {"input": x})[0] for x in (a, b))
    assert first.shape == (2, 10)
    assert np.abs(first - second).max() > 0.05 * np.abs(first).max()


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "inception_v3", "squeezenet"])
def test_seed_decides_every_byte(name: str) -> None:
    first, again, other = (zoo.build(name, seed=seed, image_size=SMALL.get(name, 64)) for seed in (0, 0, 1))
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    drawn = [i for i, w in enumerate(first.graph.initializer) if w.name.endswith((".weight", ".bias"))]
    assert all(first.graph.initializer[i].raw_data != other.graph.initializer[i].raw_data for i in drawn)


@pytest.mark.parametrize(
    ("name", "size"), [("vgg16", 64), ("inception_v3", 64), ("vit_b32", 100), ("resnet18", 0), ("squeezenet", -1)]
)
def test_unusable_image_size_is_refused(name: str, size: int) -> None:
    with pytest.raises(InputError, match=name):
        zoo.build(name, image_size=size)


def test_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="resnet18"):
        zoo.resnet19()


def test_import_is_light_and_models_survive_each_other() -> None:
    code = (
        "import sys, coexec.zoo as zoo; assert not {'onnx', 'onnxruntime'} & set(sys.modules);"
        "[getattr(zoo, name)(image_size=128) for name in ('squeezenet', 'resnet18', 'squeezenet')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
