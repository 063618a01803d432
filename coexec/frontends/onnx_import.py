"""Turns the nodes of a static ONNX model into coexec ops, one after the other.

On the way every shape and every constant is known exactly, so what depends on constants only is computed
here, and ops that hand their input on are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from coexec.errors import CoexecError, ModelError
from coexec.frontends.onnx_node import Converted, OnnxNode
from coexec.frontends.onnx_ops import convert
from coexec.frontends.onnx_read import SMALL_ELEMENTS, node_name, one_line, to_array
from coexec.frontends.program import Program
from coexec.graph import Node
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.cast import Cast
from coexec.ops.expand import Expand
from coexec.ops.identity import Identity
from coexec.ops.operands import check_size
from coexec.ops.pool import Pool
from coexec.ops.relayout import Relayout
from coexec.ops.reshape import Reshape
from coexec.ops.transpose import Transpose

FOLDED_BYTES = 2**29
"""Larger results of constant nodes are computed at run time, so that a model cannot fill the memory here."""
RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                    "RandomUniformLike"})  # fmt: skip


def import_model(proto: ModelProto, weights: Mapping[str, Array], opset: int, inputs: tuple[str, ...]) -> Program:
    """The model's nodes as ops. Raises ModelError for a node that cannot be run, naming it."""
    importer = _Importer(proto, weights, opset, inputs)
    for node in proto.graph.node:
        importer.add(node)
    return importer.finish()


class _Importer:
    """Names that stand for another tensor (an Identity's output) are in ``same_as``."""

    def __init__(self, proto: ModelProto, weights: Mapping[str, Array], opset: int, inputs: tuple[str, ...]) -> None:
        graph = proto.graph
        self.opset = opset
        self.imports = [helper.make_opsetid("", opset)]
        self.inputs = inputs
        self.outputs = tuple(value.name for value in graph.output)
        self.read = {name for node in graph.node for name in node.input if name} | set(self.outputs)
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self.taken |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)} | set(weights)
        self.constants: dict[str, Array] = dict(weights)
        for tensor in graph.initializer:
            self.constants[tensor.name] = to_array(tensor, f"initializer {tensor.name!r}")
        self.specs = {value.name: _static(value.type) for value in graph.input if value.name in inputs}
        self.same_as: dict[str, str] = {}
        self.nodes: dict[str, Node] = {}
        self.maker: dict[str, str] = {}

    # What is known of a name

    def resolve(self, name: str) -> str:
        while name in self.same_as:
            name = self.same_as[name]
        return name

    def spec(self, name: str) -> ArraySpec | None:
        if name in self.constants:
            return _spec_of(self.constants[name])
        return self.specs.get(name)

    # Adding a node

    def add(self, proto: NodeProto) -> None:
        if not self.read.intersection(proto.output):
            return
        node = self.describe(proto)
        if node.op_type in STATIC:
            self.constants[node.outputs[0]] = STATIC[node.op_type](node)
            return
        try:
            converted = convert(node)
            inputs = self.names(node, converted)
            specs = converted.op.infer([self.spec(name) if name else None for name in inputs])
        except CoexecError as error:
            raise _naming(error, node) from error
        self.check_outputs(node, converted.op, specs)
        if self.folds(node, inputs, specs):
            self.compute(node, converted.op, inputs, specs)
        elif not self.leave_out(node, converted.op, inputs, specs):
            self.put(Node(node.name, converted.op, inputs, node.outputs), specs)

    def describe(self, proto: NodeProto) -> OnnxNode:
        inputs = tuple(self.resolve(name) for name in proto.input)
        specs = tuple(self.spec(name) if name else None for name in inputs)
        for name, spec in zip(inputs, specs, strict=True):
            if name and spec is None:
                raise ModelError(f"node {node_name(proto)!r} ({proto.op_type}): the shape of {name!r} is not static")
        constants = tuple(self.constants.get(name) if name else None for name in inputs)
        return OnnxNode(
            name=self.unique(node_name(proto)),
            op_type=proto.op_type,
            domain="",
            opset=self.opset,
            attributes={a.name: attribute_value(a, node_name(proto)) for a in proto.attribute},
            inputs=inputs,
            outputs=tuple(name if name in self.read else "" for name in proto.output),
            specs=specs,
            constants=constants,
            output_specs=self.infer(proto, specs, constants),
        )

    def unique(self, name: str) -> str:
        count, candidate = 1, name
        while candidate in self.nodes:
            count += 1
            candidate = f"{name}_{count}"
        return candidate

    def infer(
        self, proto: NodeProto, specs: tuple[ArraySpec | None, ...], constants: tuple[Array | None, ...]
    ) -> tuple[ArraySpec | None, ...]:
        """What ONNX makes of one node, given everything that is known of its inputs."""
        types, data = {}, {}
        for name, spec, constant in zip(proto.input, specs, constants, strict=True):
            if spec is not None:
                types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(spec.dtype), spec.shape)
            if constant is not None and constant.size <= SMALL_ELEMENTS:
                data[name] = numpy_helper.from_array(np.ascontiguousarray(constant).reshape(constant.shape), name)
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in proto.attribute):
            return (None,) * len(proto.output)
        try:
            schema = onnx.defs.get_schema(proto.op_type, self.opset, "")
            _check_types(schema, specs)
            found = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=self.imports, ir_version=8
            )
        except Exception as error:  # InferenceError, SchemaError and C++ exceptions of other types
            raise ModelError(f"node {node_name(proto)!r} ({proto.op_type}): {one_line(error)}") from error
        return tuple(static_spec(found.get(name)) for name in proto.output)

    def names(self, node: OnnxNode, converted: Converted) -> tuple[str, ...]:
        """Inputs by name; arrays that the converter made become constants."""
        names = []
        for port, value in enumerate(converted.inputs):
            if isinstance(value, str):
                names.append(value)
                continue
            name = self.fresh(f"{node.name}:{port}")
            self.constants[name] = value
            names.append(name)
        return tuple(names)

    def fresh(self, name: str) -> str:
        """``name``, or one like it that the model uses nowhere."""
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def check_outputs(self, node: OnnxNode, op: Op, specs: tuple[ArraySpec, ...]) -> None:
        own_shape = isinstance(op, Pool) and op.window.ceil_mode  # see onnx_shapes
        for name, spec, expected in zip(node.outputs, specs, node.output_specs, strict=False):
            if spec.dtype.kind == "O":
                raise ModelError(f"node {node.name!r} ({node.op_type}): {name!r} holds strings; leave them out")
            check_size(f"tensor {name!r}", spec.shape, spec.dtype.itemsize)
            if name and expected is not None and spec != expected and not own_shape:
                raise ModelError(
                    f"node {node.name!r} ({node.op_type}): {name!r} is {spec.dtype} {spec.shape} here, "
                    f"{expected.dtype} {expected.shape} by ONNX shape inference"
                )
        unmade = [name for name in node.outputs[len(specs) :] if name]
        if unmade:
            raise ModelError(f"node {node.name!r} ({node.op_type}): optional output {unmade[0]!r} is not supported")

    # Constants

    def folds(self, node: OnnxNode, inputs: tuple[str, ...], specs: tuple[ArraySpec, ...]) -> bool:
        known = [name in self.constants for name in inputs if name]
        size = sum(int(np.prod(s.shape, dtype=np.int64)) * s.dtype.itemsize for s in specs)
        return bool(known) and all(known) and node.op_type not in RANDOM and size <= FOLDED_BYTES

    def compute(self, node: OnnxNode, op: Op, inputs: tuple[str, ...], specs: tuple[ArraySpec, ...]) -> None:
        values = [self.constants[name] if name else None for name in inputs]
        outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
        try:
            with np.errstate(all="ignore"):
                op.run(values, outputs)
        except Exception as error:  # whatever NumPy finds wrong with the values
            raise ModelError(f"node {node.name!r} ({node.op_type}) cannot be computed: {one_line(error)}") from error
        for name, value in zip(node.outputs, outputs, strict=False):
            if name:
                self.constants[name] = value

    # Ops that hand their input on

    def leave_out(self, node: OnnxNode, op: Op, inputs: tuple[str, ...], specs: tuple[ArraySpec, ...]) -> bool:
        """Let the output's name stand for the input, where the op changes nothing."""
        if not _changes_nothing(op, self.spec(inputs[0]) if inputs else None, specs[0]):
            return False
        for name, spec in zip(node.outputs[1:], specs[1:], strict=False):
            if name:  # Dropout's mask
                self.constants[name] = np.broadcast_to(np.True_, spec.shape)
        source, target = inputs[0], node.outputs[0]
        if not target:  # only the mask is read
            pass
        elif target not in self.outputs:
            self.same_as[target] = source
        elif source in self.maker and source not in self.outputs:
            self.rename(source, target)
        else:  # an output that is an input, a constant or another output: it needs memory of its own
            self.put(Node(node.name, Relayout(), (source,), (target,)), specs[:1])
        return True

    def rename(self, source: str, target: str) -> None:
        """Give a computed tensor the name of the graph output that it is."""
        name = self.maker.pop(source)
        old = self.nodes[name]
        outputs = tuple(target if o == source else o for o in old.outputs)
        self.nodes[name] = Node(old.name, old.op, old.inputs, outputs)
        self.specs[target] = self.specs.pop(source)
        self.maker[target] = name
        self.same_as[source] = target

    def put(self, node: Node, specs: Sequence[ArraySpec]) -> None:
        """Add a node; outputs of its op that nothing reads get names too, so that the op finds them all."""
        given = (*node.outputs, *("",) * len(specs))[: len(specs)]
        outputs = tuple(name or self.fresh(f"{node.name}:output{port}") for port, name in enumerate(given))
        self.nodes[node.name] = Node(node.name, node.op, node.inputs, outputs)
        for name, spec in zip(outputs, specs, strict=True):
            self.specs[name], self.maker[name] = spec, node.name

    def finish(self) -> Program:
        for name in self.outputs:
            if name in self.constants:
                self.copy_constant(name)
        nodes = (
            Node(node.name, node.op, tuple(self.resolve(name) for name in node.inputs), node.outputs)
            for node in self.nodes.values()
        )
        return Program(nodes, self.specs, self.constants, self.inputs, self.outputs)

    def copy_constant(self, name: str) -> None:
        """A constant output becomes a tensor that a node fills, so that outputs are always tensors."""
        value = self.constants.pop(name)
        constant = self.fresh(f"{name}:constant")
        self.constants[constant] = value
        for key, node in self.nodes.items():
            if name in node.inputs:
                inputs = tuple(constant if i == name else i for i in node.inputs)
                self.nodes[key] = Node(node.name, node.op, inputs, node.outputs)
        self.put(Node(self.unique(f"Constant:{name}"), Relayout(), (constant,), (name,)), [_spec_of(value)])


def _changes_nothing(op: Op, before: ArraySpec | None, after: ArraySpec) -> bool:
    if isinstance(op, Transpose):
        return op.order == tuple(range(len(op.order)))
    return isinstance(op, Identity) or (isinstance(op, (Cast, Expand, Reshape)) and before == after)


# Nodes whose value follows from shapes or attributes alone -------------------------------------------


def _constant(node: OnnxNode) -> Array:
    makers: dict[str, Callable[[Any], Array]] = {
        "value": lambda v: np.asarray(v),
        "value_float": lambda v: np.float32(v).reshape(()),
        "value_floats": lambda v: np.asarray(v, np.float32),
        "value_int": lambda v: np.int64(v).reshape(()),
        "value_ints": lambda v: np.asarray(v, np.int64),
    }
    for key, value in node.attributes.items():
        if key in makers:
            return makers[key](value)
    raise ModelError(f"node {node.name!r} (Constant) has no numeric value, which is not supported")


def _shape(node: OnnxNode) -> Array:
    spec = node.specs[0]
    assert spec is not None
    return np.asarray(spec.shape[node.attributes.get("start", 0) : node.attributes.get("end")], np.int64)


def _size(node: OnnxNode) -> Array:
    spec = node.specs[0]
    assert spec is not None
    return np.asarray(np.prod(spec.shape, dtype=np.int64))


def _constant_of_shape(node: OnnxNode) -> Array:
    """A view of one number, so that it costs no memory however large it is."""
    if node.constants[0] is None:
        raise ModelError(f"node {node.name!r} (ConstantOfShape) has a shape that is not constant")
    value = np.asarray(node.attributes.get("value", np.float32(0))).reshape(-1)[:1]
    shape = check_size(f"tensor {node.outputs[0]!r}", node.constants[0].reshape(-1), value.dtype.itemsize)
    return np.broadcast_to(value.reshape(()), shape)


STATIC: dict[str, Callable[[OnnxNode], Array]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
}


def _check_types(schema: Any, specs: Sequence[ArraySpec | None]) -> None:
    """Raise ModelError unless the op takes the inputs' dtypes, which ONNX's inference of one node does not ask."""
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    bound: dict[str, str] = {}
    for port, spec in enumerate(specs):
        if spec is None:
            continue
        formal = schema.inputs[min(port, len(schema.inputs) - 1)]
        kind = f"tensor({TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(spec.dtype)).lower()})"
        if kind not in allowed.get(formal.type_str, (formal.type_str,)):
            raise ModelError(f"input {port} is a {kind}, which the op does not take")
        if formal.is_homogeneous and bound.setdefault(formal.type_str, kind) != kind:
            raise ModelError(f"input {port} is a {kind}, another one a {bound[formal.type_str]}; they must be alike")


# ONNX's descriptions as ours -------------------------------------------------------------------------


def _spec_of(array: Array) -> ArraySpec:
    return ArraySpec(array.shape, array.dtype)


def _static(kind: TypeProto) -> ArraySpec:
    spec = static_spec(kind)
    assert spec is not None, "inputs are static after fix_shapes"
    return spec


def static_spec(kind: TypeProto | None) -> ArraySpec | None:
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if kind.tensor_type.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))
    return ArraySpec(tuple(dim.dim_value for dim in dims), dtype)


def attribute_value(attribute: AttributeProto, node: str) -> Any:
    """The attribute as a Python value: text as str, tensors as arrays."""
    if attribute.type == AttributeProto.TENSOR:
        return to_array(attribute.t, f"node {node!r}: attribute {attribute.name!r}")
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if attribute.type == AttributeProto.STRINGS:
        return [text.decode(errors="replace") for text in value]
    if attribute.type == AttributeProto.TENSORS:
        return [to_array(tensor, f"node {node!r}: attribute {attribute.name!r}") for tensor in value]
    return list(value) if isinstance(value, (list, tuple)) or attribute.type in _LISTS else value


_LISTS = (AttributeProto.INTS, AttributeProto.FLOATS)


def _naming(error: CoexecError, node: OnnxNode) -> CoexecError:
    """The error with the node's name in front, unless it is named already."""
    text = str(error)
    if repr(node.name) in text:
        return error
    return ModelError(f"node {node.name!r} ({node.op_type}): {text}")
