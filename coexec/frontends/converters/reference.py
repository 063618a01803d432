"""Nodes that coexec has no op for: the ONNX reference evaluator runs them."""

from __future__ import annotations

from typing import Any

import numpy as np

from coexec.frontends.converters.reading import fail, output_count, present
from coexec.frontends.onnx_node import Converted, OnnxNode
from coexec.ops.base import ArraySpec
from coexec.ops.reference_op import ReferenceOp, evaluator


def reference(node: OnnxNode) -> Converted:
    """A ReferenceOp; ModelError when onnx has no implementation or the output shapes are unknown."""
    import onnx

    try:
        model = _one_node_model(node)
        evaluator(model.SerializeToString())
    except Exception as error:  # onnx documents no error for a missing implementation
        reason = f"neither coexec nor the ONNX reference evaluator implements it ({_first_line(error)})"
        raise fail(node, reason) from None
    known = dict(enumerate(node.output_specs))
    inferred = _inferred_outputs(onnx.shape_inference.infer_shapes(_with_constants(model, node)))
    outputs = []
    for index in range(output_count(node)):
        output = known.get(index) or inferred[index]
        if output is None:
            raise fail(node, f"the shape of output {index} depends on the data; coexec needs static shapes")
        outputs.append(output)
    used = tuple(present(node, index) for index in range(len(node.inputs)))
    op = ReferenceOp(node.op_type, model.SerializeToString(), used, tuple(outputs))
    return Converted(op, tuple(node.inputs))


def _one_node_model(node: OnnxNode) -> Any:
    """ModelProto of the node alone, its inputs named i0, i1..., its outputs o0, o1..."""
    from onnx import helper

    inputs = [f"i{index}" if present(node, index) else "" for index in range(len(node.inputs))]
    outputs = [f"o{index}" for index in range(output_count(node))]
    proto = helper.make_node(node.op_type, inputs, outputs, domain=node.domain)
    proto.attribute.extend(_attribute(name, value) for name, value in node.attributes.items())
    graph = helper.make_graph(
        [proto],
        "node",
        [_value_info(name, node.specs[index]) for index, name in enumerate(inputs) if name],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, node.opset)])


def _attribute(name: str, value: Any) -> Any:
    from onnx import AttributeProto, GraphProto, helper, numpy_helper

    if isinstance(value, GraphProto):
        raise ValueError("it holds a subgraph")
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, (list, tuple)) and not value:
        # An empty list says nothing of its type; every list attribute that may be empty is of ints.
        return helper.make_attribute(name, value, attr_type=AttributeProto.INTS)
    return helper.make_attribute(name, value)


def _value_info(name: str, spec: ArraySpec | None) -> Any:
    from onnx import helper

    if spec is None:
        raise ValueError("the shape of an input is unknown")
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype), spec.shape)


def _with_constants(model: Any, node: OnnxNode) -> Any:
    """The model with its constant inputs as initializers, from which shape inference reads values."""
    from onnx import ModelProto, numpy_helper

    copy = ModelProto()
    copy.CopyFrom(model)
    for index, value in enumerate(node.constants):
        if value is not None and value.size <= 64:
            copy.graph.initializer.append(numpy_helper.from_array(value, f"i{index}"))
    return copy


def _inferred_outputs(model: Any) -> list[ArraySpec | None]:
    from onnx import helper

    outputs: list[ArraySpec | None] = []
    for info in model.graph.output:
        tensor = info.type.tensor_type
        static = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
        if not static or not tensor.elem_type:
            outputs.append(None)
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        outputs.append(ArraySpec(tuple(d.dim_value for d in tensor.shape.dim), dtype))
    return outputs


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
