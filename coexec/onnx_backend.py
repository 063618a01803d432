"""coexec behind ONNX's own backend interface (``onnx.backend.base``).

``prepare(model).run(inputs)`` works as for any ONNX backend. A value that fixes shapes or weights (Reshape's
shape, Conv's weight) may be fed at run time, as the backend interface allows: the model is then specialised
to the fed value, and kept for the next call with the same one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from coexec.api import CPU_ONLY, partition
from coexec.errors import InputError, ModelError
from coexec.layout import Array
from coexec.model import Model

MAX_SPECIALISED = 16
"""Specialised models kept per prepared model."""

WEIGHT_INPUTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (1,)}
"""Inputs that are constants in a network and decide whether the layer can be split."""


class CoexecRep(BackendRep):
    """A prepared model."""

    def __init__(self, model: onnx.ModelProto, device: str | None) -> None:
        super().__init__()
        self._model = model
        self._device = device
        initialized = {i.name for i in model.graph.initializer}
        self._inputs = [i.name for i in model.graph.input if i.name not in initialized]
        self._specialised: OrderedDict[bytes, Model] = OrderedDict()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs for ``inputs``: a sequence in the order of the graph's inputs, or name -> array."""
        values = list(inputs.values()) if isinstance(inputs, dict) else list(inputs)
        names = list(inputs) if isinstance(inputs, dict) else self._inputs[: len(values)]
        if len(names) != len(values):
            raise InputError(f"the model takes {len(self._inputs)} inputs, got {len(values)}")
        feeds = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        model, left = self._model_for(feeds)
        return tuple(model.run(None, left))

    def _model_for(self, feeds: dict[str, Array]) -> tuple[Model, dict[str, Array]]:
        """The model for these feeds, and the feeds that it still takes."""
        weights = _weight_names(self._model)
        try:
            return self._specialise(feeds, {n for n in feeds if n in weights})
        except ModelError:
            first = next(iter(feeds), None)
            return self._specialise(feeds, {n for n in feeds if n != first})

    def _specialise(self, feeds: dict[str, Array], fixed: set[str]) -> tuple[Model, dict[str, Array]]:
        left = {name: value for name, value in feeds.items() if name not in fixed}
        key = repr([(n, v.shape, str(v.dtype)) for n, v in left.items()]).encode()
        key += b"".join(n.encode() + feeds[n].tobytes() for n in sorted(fixed))
        if key not in self._specialised:
            model = onnx.ModelProto()
            model.CopyFrom(self._model)
            for name in fixed:
                model.graph.initializer.append(numpy_helper.from_array(feeds[name], name))
            shapes = {name: value.shape for name, value in left.items()}
            self._specialised[key] = partition(model, input_shapes=shapes, device=self._device)
            while len(self._specialised) > MAX_SPECIALISED:
                self._specialised.popitem(last=False)
        self._specialised.move_to_end(key)
        return self._specialised[key], left


class CoexecBackend(Backend):
    """Runs ONNX models with coexec. Devices: "CPU", or an OpenCL device id of `coexec devices`."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> CoexecRep:
        """A prepared model; ModelError if it is not valid."""
        super().prepare(model, device, **kwargs)
        return CoexecRep(model, _device_id(device))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node; ``outputs_info`` may give dtype and shape of each output."""
        feeds = {n: np.asarray(v) for n, v in zip([n for n in node.input if n], inputs, strict=True)}
        model = _single_node_model(node, feeds, outputs_info, kwargs.get("opset_version"))
        return cls.prepare(model, device).run(feeds)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is here."""
        if device == "CPU":
            return True
        from coexec.device import find_devices

        return any(d.usable and d.id == _device_id(device) for d in find_devices())


def _device_id(device: str) -> str | None:
    try:
        is_cpu = Device(device).type == DeviceType.CPU
    except (AttributeError, ValueError, KeyError):
        is_cpu = False
    return CPU_ONLY if is_cpu else device


def _weight_names(model: onnx.ModelProto) -> set[str]:
    return {
        node.input[i]
        for node in model.graph.node
        for i in WEIGHT_INPUTS.get(node.op_type, ())
        if i < len(node.input) and node.input[i]
    }


def _single_node_model(
    node: onnx.NodeProto, feeds: dict[str, Array], outputs_info: Any, opset: int | None
) -> onnx.ModelProto:
    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    if outputs_info is None:
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    else:
        outputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in zip([n for n in node.output if n], outputs_info, strict=True)
        ]
    graph = helper.make_graph([node], "node", inputs, outputs)
    version = opset or onnx.defs.onnx_opset_version()
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


prepare = CoexecBackend.prepare
run_model = CoexecBackend.run_model
run_node = CoexecBackend.run_node
supports_device = CoexecBackend.supports_device
is_compatible = CoexecBackend.is_compatible
