"""Makes every input of a model static, and lets ONNX infer what follows from that."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from coexec.errors import InputError, ModelError
from coexec.frontends.onnx_import import attribute_value, static_spec
from coexec.frontends.onnx_node import OnnxNode
from coexec.frontends.onnx_ops import convert
from coexec.frontends.onnx_read import ReadModel, node_name, one_line, to_dtype
from coexec.layout import Shape
from coexec.ops.base import ArraySpec
from coexec.ops.operands import check_size

POOLS = ("AveragePool", "LpPool", "MaxPool")

Dims = list[int | str | None]
"""Dimensions as the model states them: a number, a symbol, or None."""


def fix_shapes(
    read: ReadModel,
    input_shapes: Mapping[str, Sequence[int]] | None,
    fallback_shapes: Mapping[str, Sequence[int]],
) -> ModelProto:
    """The model with static inputs and inferred shapes.

    Raises InputError for an entry of ``input_shapes`` that does not fit the model, ModelError for
    dimensions that stay open or are damaged, and for shapes that contradict one another.
    """
    proto = ModelProto()
    proto.CopyFrom(read.proto)
    values = {value.name: value for value in proto.graph.input if value.name in read.open_inputs}
    if input_shapes is not None and not isinstance(input_shapes, Mapping):
        raise InputError(f"input_shapes must map input names to shapes, not {type(input_shapes).__name__}")
    given = {name: _given_shape(name, shape) for name, shape in (input_shapes or {}).items()}
    for name in given:
        if name not in values:
            raise InputError(f"input_shapes names {name!r}, the model's inputs are {', '.join(values) or '(none)'}")
    dims = {name: _dims(value) for name, value in values.items()}
    for name, shape in fallback_shapes.items():
        if name in dims and name not in given and _fits(dims[name], shape):
            given[name] = tuple(shape)
    symbols = _symbols(dims, given)
    for name, value in values.items():
        shape = given[name] if name in given else _resolve(name, dims[name], symbols)
        _set_shape(value, shape)
    types = {value.name: value.type for value in proto.graph.input}
    for value in proto.graph.output:
        if value.name in types:  # an output that is an input or a large initializer itself
            value.type.CopyFrom(types[value.name])
        elif value.type.HasField("tensor_type"):
            # Declared shapes may still hold symbols or another batch size.
            value.type.tensor_type.ClearField("shape")
    return _infer(proto, read)


def _infer(proto: ModelProto, read: ReadModel) -> ModelProto:
    """The model with the shapes that ONNX finds, except those of poolings that round up, which are ours.

    ONNX counts a last window that starts in the padding, runtimes leave it out. Where that matters ONNX cannot be
    asked to be strict; the importer infers every node again, alone, and is.
    """
    strict = True
    for node in proto.graph.node:
        if node.op_type not in POOLS or not any(a.name == "ceil_mode" and a.i for a in node.attribute):
            continue
        graph = _infer_once(proto, read.source, strict=False).graph
        types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
        shape = _pooled(node, static_spec(types.get(node.input[0])), read.opset)
        expected = static_spec(types.get(node.output[0]))
        if shape is None or expected is None or shape == expected.shape:
            continue
        given = [value for value in proto.graph.output if value.name == node.output[0]]
        for value in given or [proto.graph.value_info.add()]:
            value.CopyFrom(ValueInfoProto(name=node.output[0], type=types[node.output[0]]))
            _set_shape(value, shape)
        strict = False
    return _infer_once(proto, read.source, strict)


def _infer_once(proto: ModelProto, source: str, strict: bool) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=strict, data_prop=True)
    except Exception as error:  # InferenceError, and C++ exceptions of other types
        raise ModelError(f"{source}: shapes do not fit together: {one_line(error)}") from error


def _pooled(node: NodeProto, spec: ArraySpec | None, opset: int) -> Shape | None:
    """The output's shape by coexec's own op; None where the importer will have to refuse the node."""
    if spec is None:
        return None
    name, (inputs, outputs) = node_name(node), (tuple(node.input), tuple(node.output))
    attributes = {a.name: attribute_value(a, name) for a in node.attribute}
    described = OnnxNode(name, node.op_type, "", opset, attributes, inputs, outputs, (spec,), (None,), (None,))
    try:
        return convert(described).op.infer([spec])[0].shape
    except ModelError:
        return None


def _given_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError as error:
        raise InputError(f"input_shapes[{name!r}] must be a sequence of whole numbers, not {shape!r}") from error
    if any(d < 0 for d in dims):
        raise InputError(f"input_shapes[{name!r}] is {dims}: dimensions must not be negative")
    return dims


def _dims(value: ValueInfoProto) -> Dims | None:
    """None when even the rank is open."""
    kind: TypeProto = value.type
    if not kind.HasField("tensor_type"):
        raise ModelError(f"input {value.name!r} is no tensor ({kind.WhichOneof('value')}), which is not supported")
    if kind.tensor_type.elem_type == TensorProto.UNDEFINED:
        raise ModelError(f"input {value.name!r} has no data type, which is not supported")
    if not kind.tensor_type.HasField("shape"):
        return None
    dims: Dims = []
    for dim in kind.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or None)
    shape = [d for d in dims if isinstance(d, int)]
    if any(d < 0 for d in shape):
        raise ModelError(f"input {value.name!r} has shape {_show(dims)}: dimensions must not be negative")
    return dims


def _symbols(dims: Mapping[str, Dims | None], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Symbol -> value, as the given shapes fix them; checks the given shapes on the way."""
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        stated = dims[name]
        if stated is None:
            continue
        if not _fits(stated, shape):
            raise InputError(f"input_shapes[{name!r}] is {shape}, but in the model it is {_show(stated)}")
        for d, size in zip(stated, shape, strict=True):
            if isinstance(d, str) and symbols.setdefault(d, size) != size:
                raise InputError(f"input_shapes gives dimension {d!r} both {symbols[d]} and {size} (at {name!r})")
    return symbols


def _fits(stated: Dims | None, shape: Sequence[int]) -> bool:
    """Whether a shape has the rank, and the sizes as far as they are fixed, that the model states."""
    return stated is None or (
        len(stated) == len(shape) and all(d == n for d, n in zip(stated, shape, strict=True) if isinstance(d, int))
    )


def _resolve(name: str, dims: Dims | None, symbols: Mapping[str, int]) -> tuple[int, ...]:
    if dims is None:
        raise ModelError(f"input {name!r} has an open shape: pass input_shapes={{{name!r}: (...)}}")
    known = [symbols.get(d, d) if isinstance(d, str) else d for d in dims]
    shape = tuple(d for d in known if isinstance(d, int))
    if len(shape) < len(known):
        example = ", ".join(str(d) if isinstance(d, int) else "1" for d in known)
        comma = "," if len(known) == 1 else ""
        raise ModelError(
            f"input {name!r} has open dimensions {_show(known)}: "
            f"fix them, for example input_shapes={{{name!r}: ({example}{comma})}}, on the command line "
            f"--input-shape {name}={example.replace(', ', 'x')}"
        )
    return shape


def _show(dims: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in dims) + ")"


def _set_shape(value: ValueInfoProto, shape: tuple[int, ...]) -> None:
    tensor = value.type.tensor_type
    what = f"input {value.name!r}"
    check_size(what, shape, to_dtype(tensor.elem_type, what).itemsize)
    del tensor.shape.dim[:]
    tensor.shape.SetInParent()
    for size in shape:
        tensor.shape.dim.add().dim_value = size
