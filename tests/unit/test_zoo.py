"""The zoo's models are the published architectures, valid and well scaled."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from coexec import zoo

UNTRAINED = ("running_mean", "running_var")


def count_parameters(model: onnx.ModelProto) -> int:
    """Float initializers that a training would change: all but statistics and scalar constants."""
    return sum(
        int(np.prod(i.dims))
        for i in model.graph.initializer
        if i.data_type == onnx.TensorProto.FLOAT and len(i.dims) > 0 and not i.name.endswith(UNTRAINED)
    )


@pytest.mark.parametrize("name", zoo.MODELS)
def test_published_parameter_count(name: str) -> None:
    # torchvision's model documentation lists these counts ("num_params" of each weight entry).
    model = getattr(zoo, name)()
    assert count_parameters(model) == zoo.MODELS[name].parameters
    size = zoo.MODELS[name].image_size
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, size, size]
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [1, 1000]


@pytest.mark.parametrize("name", [n for n in zoo.MODELS if n != "vgg16"])
def test_valid_and_well_scaled(name: str) -> None:
    size = 128 if name == "inception_v3" else 64
    model = zoo.build(name, image_size=size, classes=10)
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    names = [v.name for v in inferred.graph.value_info]
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1, 3, size, size), np.float32) for _ in range(2))
    for tensor, value in zip(["output", *names], session.run(None, {"input": a}), strict=True):
        assert np.isfinite(value).all(), tensor
        if value.dtype == np.float32 and not tensor.endswith("weights"):
            assert 1e-2 < value.std() < 1e3, (tensor, value.std())
    first, second = (session.run(["output"], {"input": x})[0] for x in (a, b))
    assert np.abs(first - second).max() > 0.05 * np.abs(first).max()


def test_seed_decides_the_weights() -> None:
    def weight(seed: int) -> np.ndarray:
        model = zoo.squeezenet(seed=seed, image_size=64)
        return numpy_helper.to_array(model.graph.initializer[0])

    assert np.array_equal(weight(0), weight(0))
    assert not np.array_equal(weight(0), weight(1))


def test_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="resnet18"):
        zoo.resnet19()
