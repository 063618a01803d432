"""Small ONNX models for tests, and their comparison with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

from coexec.graph import Graph

RNG = np.random.default_rng(0)


class Builder:
    """Writes a small ONNX model node by node."""

    def __init__(self, opset: int = 17, ir_version: int = 8) -> None:
        self.opset, self.ir_version = opset, ir_version
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, *dims: int | str | None, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(RNG.standard_normal(shape))

    def positive(self, *shape: int) -> str:
        return self.constant(RNG.uniform(0.5, 1.5, shape))

    def add(self, op: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        (output,) = self.add_many(op, *inputs, outputs=1, domain=domain, **attributes)
        return output

    def add_many(self, op: str, *inputs: str, outputs: int, **attributes: object) -> list[str]:
        """A node with several outputs; they are called t3, t3_1, t3_2..."""
        names = [f"t{len(self.nodes)}" + f"_{i}" * (i > 0) for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}{len(self.nodes)}", **attributes))
        return names

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        return self.add_many("Split", x, self.constant(sizes, np.int64), outputs=len(sizes), axis=axis)

    def model(self, *outputs: str, dtype: int = TensorProto.FLOAT) -> ModelProto:
        infos = [onnx.ValueInfoProto(name=name, type=open_tensor(dtype)) for name in outputs]
        graph = helper.make_graph(self.nodes, "small", self.inputs, infos, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=self.ir_version)

    # Layers that fusions start from

    def conv(self, x: str, c_in: int = 4, c_out: int = 4, bias: bool = True) -> str:
        weight = self.weights(c_out, c_in, 3, 3)
        return self.add("Conv", x, weight, *([self.weights(c_out)] if bias else []), pads=[1, 1, 1, 1])

    def linear(self, x: str, bias: bool = False) -> str:
        product = self.add("MatMul", x, self.weights(4, 4))
        return self.add("Add", product, self.weights(4)) if bias else product

    def norm(self, x: str) -> str:
        parameters = [self.positive(4), self.weights(4), self.weights(4), self.positive(4)]
        return self.add("BatchNormalization", x, *parameters, epsilon=1e-3)


def open_tensor(dtype: int) -> onnx.TypeProto:
    return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=dtype))


def evaluate(graph: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor of the graph, each in a buffer of its own layout, computed by op.run node by node."""
    values: dict[str, np.ndarray] = dict(graph.constants)
    for tensor in graph.tensors.values():
        buffer = np.zeros(tensor.layout.size(tensor.shape), tensor.dtype)
        values[tensor.name] = tensor.layout.view(buffer, tensor.shape)
    for name in graph.inputs:
        values[name][...] = feed[name]
    for node in graph.nodes:
        spare = [np.empty(spec.shape, spec.dtype) for spec in node.op.infer([graph.spec(n) for n in node.inputs])]
        outputs = [values[n] if n else spare[i] for i, n in enumerate(node.outputs)]
        node.op.run([values[n] if n else None for n in node.inputs], outputs)
    return {name: values[name] for name in graph.tensors}


def onnxruntime_values(model: ModelProto, feed: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """onnxruntime's values of any tensors of a model."""
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, feed), strict=True))


def random_feed(graph: Graph) -> dict[str, np.ndarray]:
    return {
        name: RNG.standard_normal(graph.tensors[name].shape).astype(graph.tensors[name].dtype) for name in graph.inputs
    }


def max_rel_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude."""
    return float(np.max(np.abs(got - expected), initial=0) / max(np.max(np.abs(expected), initial=0), 1e-6))


def assert_like_onnxruntime(model: ModelProto, graph: Graph, tolerance: float = 1e-5) -> None:
    """All tensors that survived have onnxruntime's values of the same name."""
    feed = random_feed(graph)
    got = evaluate(graph, feed)
    made = {name for node in model.graph.node for name in node.output}
    names = [name for name in got if name in made]
    assert set(graph.outputs) <= set(names)
    expected = onnxruntime_values(model, feed, names)
    for name in names:
        assert got[name].dtype == expected[name].dtype, name
        assert got[name].shape == expected[name].shape, name
        assert max_rel_error(got[name], expected[name]) <= tolerance, name


def kinds(graph: Graph) -> list[str]:
    return [node.op.kind for node in graph.nodes]
