"""Reads an ONNX model without trusting it: file or ModelProto in, checked ModelProto and weights out.

Large initializers leave the protobuf at once and appear in it as graph inputs of static shape, so that
the checker, shape inference and constant folding neither copy nor serialise them. No file outside the
model's own folder is ever opened.
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from coexec import zoo
from coexec.errors import InputError, ModelError
from coexec.frontends.onnx_attributes import check_attributes
from coexec.layout import Array
from coexec.ops.operands import check_size

MIN_OPSET = 9
MAX_FILE_BYTES = 2**31 - 1
"""What protobuf can hold in one message."""
SMALL_ELEMENTS = 1024
"""Initializers up to this size stay in the protobuf: shape inference and folding read them."""
STANDARD_DOMAINS = ("", "ai.onnx")
PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


@dataclass(frozen=True)
class ReadModel:
    """A model that passed every check.

    Attributes:
        source: what to call it in messages (path, or graph name).
        proto: its graph with only small initializers, functions inlined; no input is an initializer
            except the large ones, which are listed in ``weights``.
        weights: large initializers by name.
        opset: version of the standard operator set.
        open_inputs: names of the inputs that users feed, in the model's order.
        external: whether some weights are in other files.
    """

    source: str
    proto: ModelProto
    weights: dict[str, Array]
    opset: int
    open_inputs: tuple[str, ...]
    external: bool


def read_model(model: str | os.PathLike[str] | ModelProto) -> ReadModel:
    """Read and check; see the module. Raises ModelError, or InputError for an argument of wrong type."""
    if isinstance(model, ModelProto):
        source, folder, proto = model.graph.name or "model", None, model
    elif isinstance(model, (str, os.PathLike)):
        path = Path(model)
        source, folder, proto = str(path), path.parent, _parse(path)
    else:
        raise InputError(f"model must be a path or an onnx.ModelProto, not {type(model).__name__}")
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{source} is not an ONNX model: it holds no graph")
    if not proto.graph.output:
        raise ModelError(f"{source} has no outputs: there is nothing to compute")
    _check_domains(proto)
    opset = _opset(proto, source)
    places = _Places(folder, source)
    # All of them before any file is opened.
    found = [places.find(tensor) for tensor in _tensors(proto)]
    stripped, weights = _strip(proto, places)
    _check_wiring(stripped.graph)
    try:
        onnx.checker.check_model(_with_shape_fields(stripped))
        if stripped.functions:
            stripped = onnx.inliner.inline_local_functions(stripped)
    except Exception as error:  # the checker raises several unrelated types, some from C++
        raise ModelError(f"{source} is not a valid ONNX model: {one_line(error)}") from error
    for node in _nodes(stripped):
        check_attributes(node, node_name(node))
    open_inputs = _drop_initializer_inputs(stripped, weights)
    return ReadModel(source, stripped, weights, opset, open_inputs, any(found))


def _with_shape_fields(proto: ModelProto) -> ModelProto:
    """A copy for the checker, which refuses inputs and outputs of open rank; those are dealt with later."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    return copy


def one_line(error: object) -> str:
    """The message of an exception on one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def node_name(node: NodeProto) -> str:
    """The node's name, or one made of its op type and first output."""
    return node.name or f"{node.op_type}:{next((o for o in node.output if o), '')}"


def _parse(path: Path) -> ModelProto:
    what = f"{path} is not an ONNX model"
    try:
        status = path.stat()
    except FileNotFoundError:
        known = f"; coexec.zoo.{path}() builds that model" if str(path) in zoo.MODELS else ""
        raise ModelError(f"there is no model file {path}{known}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{what}: {one_line(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(f"{what}: it is a directory; give the .onnx file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{what}: it is not a regular file")
    if status.st_size == 0:
        raise ModelError(f"{what}: the file is empty")
    if status.st_size > MAX_FILE_BYTES:
        raise ModelError(f"{path} is above protobuf's 2 GiB; save the model with its weights as external data")
    proto = ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {one_line(error.strerror or error)}") from error
    except Exception as error:  # protobuf's DecodeError
        raise ModelError(f"{what}: the file is damaged, cut short or of another kind") from error
    return proto


def _opset(proto: ModelProto, source: str) -> int:
    versions = [o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if not versions:
        raise ModelError(f"{source} is not a valid ONNX model: it imports no version of the standard opset")
    opset = int(max(versions))
    if opset < MIN_OPSET:
        raise ModelError(f"{source} uses opset {opset}, coexec reads {MIN_OPSET} to {newest}; convert the model")
    if opset > newest:
        raise ModelError(f"{source} uses opset {opset}, the installed onnx knows up to {newest}; upgrade onnx")
    return opset


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        yield from _inner_graphs(node)


def _inner_graphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs) if _holds_graph(attribute) else ():
            yield from _graphs(inner)


def _holds_graph(attribute: AttributeProto) -> bool:
    return attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    """All nodes: of the graph, of graphs in nodes, of functions."""
    for graph in _graphs(proto.graph):
        yield from graph.node
    for function in proto.functions:
        for node in function.node:
            yield node
            for graph in _inner_graphs(node):
                yield from graph.node


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    for graph in _graphs(proto.graph):
        yield from graph.initializer
    for node in _nodes(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_domains(proto: ModelProto) -> None:
    own = {(f.domain, f.name) for f in proto.functions}
    for node in _nodes(proto):
        if node.domain not in STANDARD_DOMAINS and (node.domain, node.op_type) not in own:
            raise ModelError(
                f"node {node_name(node)!r}: op {node.op_type!r} of domain {node.domain!r} is not supported; "
                "export the model with standard ONNX ops"
            )
    for graph in _graphs(proto.graph):
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise ModelError(f"initializer {name!r} is sparse, which is not supported; store it dense")


def _check_wiring(graph: GraphProto) -> None:
    """Every input of a node exists; says which tensor and node where not."""
    known = {value.name for value in (*graph.input, *graph.initializer)}
    made = {name for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                reason = (
                    "which only a later node makes; sort the nodes"
                    if name in made
                    else "which is no input, no initializer and no node's output"
                )
                raise ModelError(f"node {node_name(node)!r} ({node.op_type}) reads {name!r}, {reason}")
        known.update(node.output)
    for value in graph.output:
        if value.name not in known:
            raise ModelError(f"output {value.name!r} is made by no node")


# External data ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Places:
    """Finds the data of external tensors inside ``folder`` (None: the model came without a folder)."""

    folder: Path | None
    source: str

    def find(self, tensor: TensorProto) -> tuple[Path, int, int] | None:
        """File, offset and bytes of the tensor's data; None if it is in the model itself."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return None
        entries = {entry.key: entry.value for entry in tensor.external_data}
        what = f"{self.source}: external data {entries.get('location', '')!r} of tensor {tensor.name!r}"
        if self.folder is None:
            raise ModelError(f"{what} lies beside the model; pass the model's path instead of a ModelProto")
        path = _inside(self.folder.resolve(), entries.get("location", ""), what)
        needed = _data_bytes(tensor)
        offset, length = (_number(entries.get(key), what, key) for key in ("offset", "length"))
        if length not in (None, needed) or (offset or 0) + needed > path.stat().st_size:
            raise ModelError(f"{what} does not hold the {needed} bytes that the tensor's shape needs")
        return path, offset or 0, needed

    def load(self, tensor: TensorProto) -> TensorProto:
        """The tensor itself, or a copy that holds its external data."""
        place = self.find(tensor)
        if place is None:
            return tensor
        path, offset, size = place
        loaded = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                loaded.raw_data = file.read(size)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {one_line(error.strerror or error)}") from error
        return loaded


def external_files(path: Path) -> set[Path]:
    """The files of a model's external weights; for a model that `read_model` has accepted."""
    places = (_Places(path.parent, str(path)).find(tensor) for tensor in _tensors(_parse(path)))
    return {place[0] for place in places if place is not None}


def _inside(root: Path, location: str, what: str) -> Path:
    """The existing regular file ``location`` below ``root``, symbolic links followed."""
    windows = PureWindowsPath(location)
    absolute = PurePosixPath(location).is_absolute() or bool(windows.anchor)
    if not location or "\0" in location or absolute or ".." in windows.parts:
        raise ModelError(f"{what} must be a relative path inside the model's folder")
    try:
        path = (root / location).resolve()
        found = path.is_file()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links, a name too long
        raise ModelError(f"{what} cannot be resolved: {one_line(error)}") from error
    if not path.is_relative_to(root):
        raise ModelError(f"{what} leaves the model's folder through a symbolic link")
    if not found:
        raise ModelError(f"{what} is missing; put the file beside the model")
    return path


def _number(text: str | None, what: str, key: str) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ModelError(f"{what} has {key} {text!r}, which is not a number of bytes")
    return int(text)


def _data_bytes(tensor: TensorProto) -> int:
    """Bytes of the tensor's raw data; several values of a packed type share a byte."""
    dtype = to_dtype(tensor.data_type, f"tensor {tensor.name!r}")
    bits = PACKED_BITS.get(TensorProto.DataType.Name(tensor.data_type), dtype.itemsize * 8)
    shape = check_size(f"tensor {tensor.name!r}", tensor.dims, bits / 8)
    return -(-math.prod(shape) * bits // 8)


def to_dtype(data_type: int, what: str) -> np.dtype[np.generic]:
    """ONNX's data type as NumPy's; ModelError for text and for what the installed onnx does not know."""
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(data_type))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{what} has the unknown data type {data_type}") from error
    if dtype.kind == "O":
        raise ModelError(f"{what} holds strings, which are not supported")
    return dtype


# Taking the weights out ------------------------------------------------------------------------------


def to_array(tensor: TensorProto, what: str) -> Array:
    """The values of a tensor that is not external, read-only; ModelError if data and shape do not fit."""
    needed = _data_bytes(tensor)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != needed:
            raise ModelError(f"{what} holds {len(raw)} bytes, its shape {tuple(tensor.dims)} needs {needed}")
        if sys.byteorder == "little" and TensorProto.DataType.Name(tensor.data_type) not in PACKED_BITS:
            # The bytes themselves, without the copies that numpy_helper makes of them.
            return np.frombuffer(raw, to_dtype(tensor.data_type, what)).reshape(tuple(tensor.dims))
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:  # numpy_helper raises ValueError, TypeError and others on damaged data
        raise ModelError(f"{what} is damaged: {one_line(error)}") from error


def _strip(proto: ModelProto, places: _Places) -> tuple[ModelProto, dict[str, Array]]:
    """A copy of what inference needs, small initializers inside, and the large ones as arrays."""
    copy = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = copy.graph
    graph.name = proto.graph.name or "model"
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.node.extend(node for node in proto.graph.node if _large_constant(node) is None)
    _name_standard_domain(copy)
    for tensor in _tensors(copy):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(places.load(tensor))
    inputs = {value.name: value for value in graph.input}
    weights: dict[str, Array] = {}
    for name, tensor in _large_and_small(proto):
        loaded = places.load(tensor)
        array = to_array(loaded, f"initializer {name!r}")
        if array.size <= SMALL_ELEMENTS:
            graph.initializer.append(loaded)
            continue
        if name in weights:
            raise ModelError(f"initializer {name!r} occurs twice")
        weights[name] = array
        # A weight may be listed as an input already, perhaps with open dimensions.
        value = inputs.get(name) or graph.input.add()
        value.CopyFrom(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return copy, weights


def _name_standard_domain(proto: ModelProto) -> None:
    """Write the standard domain as "" everywhere; "ai.onnx" means the same."""
    for node in _nodes(proto):
        if node.domain in STANDARD_DOMAINS:
            node.domain = ""
    for owner in (proto, *proto.functions):
        for imported in owner.opset_import:
            if imported.domain in STANDARD_DOMAINS:
                imported.domain = ""


def _large_and_small(proto: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """The initializers, and the large tensors of Constant nodes, which are as good as initializers."""
    yield from ((tensor.name, tensor) for tensor in proto.graph.initializer)
    for node in proto.graph.node:
        constant = _large_constant(node)
        if constant is not None:
            yield node.output[0], constant


def _large_constant(node: NodeProto) -> TensorProto | None:
    if node.op_type != "Constant" or len(node.attribute) != 1 or len(node.output) != 1:
        return None
    attribute = node.attribute[0]
    is_large = attribute.name == "value" and math.prod(attribute.t.dims) > SMALL_ELEMENTS
    return attribute.t if is_large else None


def _drop_initializer_inputs(proto: ModelProto, weights: dict[str, Array]) -> tuple[str, ...]:
    """Initializers that are listed as inputs too (the style before IR version 4) become constants."""
    graph = proto.graph
    small = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in small]
    del graph.input[:]
    graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, 8)
    return tuple(value.name for value in kept if value.name not in weights)
