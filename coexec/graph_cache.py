"""Graphs of model files, kept on disk from one process to the next.

Reading a model the careful way costs a second: importing `onnx` (which registers a dozen small number types with
NumPy) half of it; checks, shape inference, folding and fusion the rest. The graph that comes out depends on nothing
but the file's content, the shapes asked for and the code, so it is stored: its description, then its constants, which
are mapped into memory where they lie. A second, small entry leads from what was asked for to the graph.
"""

from __future__ import annotations

import hashlib
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module, metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coexec.disk_cache import DiskCache, let_go, open_cache
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Shape

LIMIT_BYTES = 1 << 30
LARGEST_BYTES = 600 << 20
"""Of one model's constants: a larger one would push out all others."""
ALIGNMENT = 64
CHUNK = 4 << 20
LENGTH = struct.Struct("<Q")
Shapes = Mapping[str, Sequence[int]]


class _Node(msgspec.Struct, array_like=True):
    """A node, and where the class of its op is."""

    name: str
    module: str
    op: str
    fields: msgspec.Raw
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class _Constant(msgspec.Struct, array_like=True):
    """A constant, and where its bytes begin after the description."""

    shape: tuple[int, ...]
    dtype: str
    offset: int


class _Description(msgspec.Struct, array_like=True):
    """A Graph without the content of its constants."""

    name: str
    nodes: list[_Node]
    tensors: dict[str, Tensor]
    constants: dict[str, _Constant]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]


def graph_cache() -> DiskCache:
    """Where the graphs are kept."""
    return open_cache("models", LIMIT_BYTES)


@dataclass(frozen=True)
class Request:
    """A model file by its content, and the shapes that it is read with (given ones, and those to fall back on)."""

    content: bytes
    given: tuple[tuple[str, Shape], ...]
    fallback: tuple[tuple[str, Shape], ...]

    @property
    def key(self) -> bytes:
        return _key(self.content, "request", self.given, self.fallback)


def request(path: Path, given: Shapes | None, fallback: Shapes | None) -> Request | None:
    """What is asked for; None if the file cannot be read or the shapes make no sense, which its reader will tell."""
    try:
        shapes = _sorted(given or {}), _sorted(fallback or {})
        if not path.is_file():
            return None  # a pipe would be waited for
        digest = hashlib.sha256(_code().encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return Request(digest.digest(), *shapes)


def _sorted(shapes: Shapes) -> tuple[tuple[str, Shape], ...]:
    return tuple(sorted((name, tuple(operator.index(d) for d in shape)) for name, shape in shapes.items()))


def _key(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


@cache
def _code() -> str:
    """Of all code that makes graphs: coexec's own by content, onnx by version."""
    digest = hashlib.sha256(metadata.version("onnx").encode())
    root = Path(__file__).parent
    for file in sorted((*root.glob("*.py"), *root.glob("ops/*.py"), *root.glob("frontends/**/*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def read_graph(asked: Request) -> Graph | None:
    """The graph that was stored for this request; its constants are read-only and stay in the file."""
    where = graph_cache().read(asked.key)
    content = None if where is None else graph_cache().read(bytes(where))
    if content is None:
        return None
    (length,) = LENGTH.unpack_from(content)
    described = msgspec.msgpack.decode(content[LENGTH.size :][:length], type=_Description, dec_hook=_dtype)
    data = content[_aligned(LENGTH.size + length) :]
    constants = {name: _view(data, constant) for name, constant in described.constants.items()}
    return replace(_graph(described, constants), let_go=partial(let_go, content))


def write_graph(asked: Request, graph: Graph) -> None:
    """Store a graph for this request and for that of its plans, unless it is large or the format cannot hold it."""
    arrays = {name: np.asarray(array, order="C") for name, array in graph.constants.items()}
    if sum(array.nbytes for array in arrays.values()) > LARGEST_BYTES:
        return
    places = dict(zip(arrays, accumulate((_aligned(a.nbytes) for a in arrays.values()), initial=0), strict=False))
    described = _Description(
        graph.name,
        [],
        dict(graph.tensors),
        {name: _Constant(array.shape, array.dtype.str, places[name]) for name, array in arrays.items()},
        graph.inputs,
        graph.outputs,
        graph.notes,
    )
    try:
        described.nodes = [_encoded(node) for node in graph.nodes]
        description = msgspec.msgpack.encode(described, enc_hook=_dtype_name)
        again = _graph(msgspec.msgpack.decode(description, type=_Description, dec_hook=_dtype), graph.constants)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return
    same = replace(again, constants={}) == replace(graph, constants={}) and again.notes == graph.notes
    if not same or any(a.dtype.hasobject or np.dtype(a.dtype.str) != a.dtype for a in arrays.values()):
        return
    head = LENGTH.pack(len(description)) + description
    parts: list[Any] = [head, bytes(_aligned(len(head)) - len(head))]
    for array in arrays.values():
        parts += [array.reshape(-1).view(np.uint8), bytes(_aligned(array.nbytes) - array.nbytes)]
    shapes = _sorted(graph.input_shapes())
    where = _key(asked.content, "graph", shapes)
    graph_cache().write(where, parts)
    for key in (asked.key, replace(asked, given=(), fallback=shapes).key):
        graph_cache().write(key, [where])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _view(data: memoryview, constant: _Constant) -> Array:
    dtype = np.dtype(constant.dtype)
    count = int(np.prod(constant.shape, dtype=np.int64))
    return np.frombuffer(data, dtype, count, constant.offset).reshape(constant.shape)


def _graph(described: _Description, constants: Mapping[str, Array]) -> Graph:
    return Graph(
        described.name,
        tuple(_decoded(node) for node in described.nodes),
        described.tensors,
        constants,
        described.inputs,
        described.outputs,
        described.notes,
    )


def _encoded(node: Node) -> _Node:
    kind, fields = type(node.op), msgspec.Raw(msgspec.msgpack.encode(node.op, enc_hook=_dtype_name))
    return _Node(node.name, kind.__module__, kind.__qualname__, fields, node.inputs, node.outputs)


def _decoded(node: _Node) -> Node:
    kind = getattr(import_module(node.module), node.op)
    return Node(node.name, msgspec.msgpack.decode(node.fields, type=kind, dec_hook=_dtype), node.inputs, node.outputs)


def _dtype_name(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.str
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _dtype(kind: Any, value: Any) -> Any:
    return np.dtype(value)
