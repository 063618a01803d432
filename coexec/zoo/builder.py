"""Builds ONNX graphs of image networks, layer by layer, with seeded weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from coexec.errors import InputError

OPSET = 20
IR_VERSION = 10

Floats = npt.NDArray[np.float32]


class Builder:
    """Each method appends nodes and returns the name of their output; ``shape`` knows every tensor's shape."""

    def __init__(self, name: str, input_shape: tuple[int, ...], seed: int) -> None:
        self.name = name
        self.input_shape = input_shape
        self.shape: dict[str, tuple[int, ...]] = {"input": input_shape}
        self.parameters = 0
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._model = onnx.ModelProto()  # takes each weight as it comes, which saves copies of VGG-16's 553 MB

    def node(self, op: str, name: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any) -> str:
        """Append one node with one output of ``shape``; the output has the node's name."""
        self._append(op, name, inputs, {name: shape}, attributes)
        return name

    def _append(
        self,
        op: str,
        name: str,
        inputs: Sequence[str],
        outputs: dict[str, tuple[int, ...]],
        attributes: dict[str, Any],
    ) -> None:
        for shape in outputs.values():
            if min(shape) < 1:
                raise InputError(f"{self.name}: {name} would give shape {shape}; use a larger image_size")
        self._nodes.append(helper.make_node(op, list(inputs), list(outputs), name=name, **attributes))
        self.shape.update(outputs)

    def constant(self, name: str, value: npt.NDArray[Any], trained: bool = False) -> str:
        """An initializer; ``trained`` ones count as parameters."""
        little_endian = value.astype(value.dtype.newbyteorder("<"), copy=False)
        self._model.graph.initializer.add(
            name=name,
            dims=value.shape,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            raw_data=little_endian.tobytes(),
        )
        self.parameters += value.size if trained else 0
        return name

    def normal(self, shape: tuple[int, ...], std: float) -> Floats:
        """Seeded normal values."""
        values = self._rng.standard_normal(shape, np.float32)
        values *= np.float32(std)
        return values

    def conv(
        self,
        x: str,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """Convolution with He-scaled weights."""
        n, c_in, height, width = self.shape[x]
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        ph, pw = (padding, padding) if isinstance(padding, int) else padding
        weight = self.normal((channels, c_in // groups, kh, kw), float(np.sqrt(2 / (c_in // groups * kh * kw))))
        inputs = [x, self.constant(f"{name}.weight", weight, trained=True)]
        if bias:
            inputs.append(self.constant(f"{name}.bias", self.normal((channels,), 0.05), trained=True))
        shape = (n, channels, (height + 2 * ph - kh) // stride + 1, (width + 2 * pw - kw) // stride + 1)
        return self.node(
            "Conv",
            name,
            inputs,
            shape,
            kernel_shape=[kh, kw],
            strides=[stride, stride],
            pads=[ph, pw, ph, pw],
            group=groups,
        )

    def batch_norm(self, x: str, name: str, scale: float = 1.0, epsilon: float = 1e-5) -> str:
        """Batch normalisation with plausible statistics; ``scale`` damps the last one of a residual branch."""
        channels = self.shape[x][1]
        uniform = self._rng.uniform
        values = {
            "weight": uniform(0.8 * scale, 1.2 * scale, channels),
            "bias": uniform(-0.1, 0.1, channels),
            "running_mean": uniform(-0.1, 0.1, channels),
            "running_var": uniform(0.8, 1.2, channels),
        }
        inputs = [
            self.constant(f"{name}.{key}", value.astype(np.float32), trained=key in ("weight", "bias"))
            for key, value in values.items()
        ]
        return self.node("BatchNormalization", name, [x, *inputs], self.shape[x], epsilon=epsilon)

    def relu(self, x: str, name: str) -> str:
        return self.node("Relu", name, [x], self.shape[x])

    def relu6(self, x: str, name: str) -> str:
        low = self.constant(f"{name}.min", np.array(0, np.float32))
        high = self.constant(f"{name}.max", np.array(6, np.float32))
        return self.node("Clip", name, [x, low, high], self.shape[x])

    def add(self, a: str, b: str, name: str) -> str:
        return self.node("Add", name, [a, b], self.shape[a])

    def pool(
        self, x: str, name: str, kind: str, kernel: int, stride: int, padding: int = 0, ceil_mode: bool = False
    ) -> str:
        """MaxPool or AveragePool (``kind``), padding counted in the average as torchvision does."""
        n, c, height, width = self.shape[x]
        up = stride - 1 if ceil_mode else 0
        sizes = [(size + 2 * padding - kernel + up) // stride + 1 for size in (height, width)]
        extra = {"count_include_pad": 1} if kind == "AveragePool" else {}
        return self.node(
            kind,
            name,
            [x],
            (n, c, sizes[0], sizes[1]),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
            ceil_mode=int(ceil_mode),
            **extra,
        )

    def global_pool(self, x: str, name: str) -> str:
        n, c, _, _ = self.shape[x]
        return self.node("GlobalAveragePool", name, [x], (n, c, 1, 1))

    def flatten(self, x: str, name: str) -> str:
        n, *rest = self.shape[x]
        return self.node("Flatten", name, [x], (n, int(np.prod(rest))), axis=1)

    def concat(self, parts: Sequence[str], name: str, axis: int = 1) -> str:
        shape = list(self.shape[parts[0]])
        shape[axis] = sum(self.shape[p][axis] for p in parts)
        return self.node("Concat", name, parts, tuple(shape), axis=axis)

    def split(self, x: str, names: Sequence[str]) -> list[str]:
        """Equal consecutive pieces of the last axis; the node is called like ``x``, with ".split"."""
        *lead, length = self.shape[x]
        pieces = {name: (*lead, length // len(names)) for name in names}
        self._append("Split", f"{x}.split", [x], pieces, {"axis": -1, "num_outputs": len(names)})
        return list(names)

    def gemm(self, x: str, name: str, features: int) -> str:
        """Fully connected layer on a matrix, weights stored as torchvision exports them (transB)."""
        n, k = self.shape[x]
        weight = self.constant(f"{name}.weight", self.normal((features, k), float(np.sqrt(2 / k))), trained=True)
        bias = self.constant(f"{name}.bias", self.normal((features,), 0.05), trained=True)
        return self.node("Gemm", name, [x, weight, bias], (n, features), transB=1)

    def linear(self, x: str, name: str, features: int, gain: float = 1.0) -> str:
        """Matrix product over the last axis and bias, as MatMul and Add."""
        *lead, k = self.shape[x]
        weight = self.normal((k, features), float(np.sqrt(gain / k)))
        product = self.node(
            "MatMul",
            f"{name}.matmul",
            [x, self.constant(f"{name}.weight", weight, trained=True)],
            (*lead, features),
        )
        bias = self.constant(f"{name}.bias", self.normal((features,), 0.02), trained=True)
        return self.node("Add", name, [product, bias], (*lead, features))

    def finish(self, output: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        """The model, with ``output`` renamed to "output"."""
        for node in self._nodes:
            node.output[:] = ["output" if name == output else name for name in node.output]
            node.input[:] = ["output" if name == output else name for name in node.input]
        model, graph = self._model, self._model.graph
        graph.name = self.name
        graph.node.extend(self._nodes)
        graph.input.append(helper.make_tensor_value_info("input", TensorProto.FLOAT, self.input_shape))
        graph.output.append(helper.make_tensor_value_info("output", TensorProto.FLOAT, shape))
        model.opset_import.append(helper.make_opsetid("", OPSET))
        model.producer_name = "coexec.zoo"
        model.ir_version = IR_VERSION
        return model
