"""ONNX models as Graphs: read safely, made static, folded, converted, fused, laid out, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from onnx import ModelProto

from coexec.errors import ModelError
from coexec.frontends.finish import finish
from coexec.frontends.fusion import fuse
from coexec.frontends.onnx_fold import fold
from coexec.frontends.onnx_import import import_model
from coexec.frontends.onnx_read import read_model
from coexec.frontends.onnx_shapes import fix_shapes
from coexec.graph import Graph
from coexec.graph_cache import Request, read_graph, write_graph


def load_onnx(
    model: str | os.PathLike[str] | ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    fallback_shapes: Mapping[str, Sequence[int]] | None = None,
    asked: Request | None = None,
) -> Graph:
    """Import a model of opset 9 or newer as a checked, static, fused Graph.

    An initializer that is listed among the inputs too is a constant like any other: it cannot be fed.

    Args:
        model: path of an ONNX file, or the ModelProto itself (which is not changed). Weights in external
            files are read from the model's own folder only.
        input_shapes: input name -> shape, for inputs that the model leaves open, batch size included.
        fallback_shapes: the same, for those of them that ``input_shapes`` does not name; what does not fit is not used.
        asked: what the graph is stored under for later processes, if the model's file holds all of it.

    Raises:
        ModelError: the model is damaged, unsupported, or leaves a dimension open.
        InputError: ``input_shapes`` does not fit the model, or ``model`` is of another type.
    """
    try:
        read = read_model(model)
        static = fold(fix_shapes(read, input_shapes, fallback_shapes or {}))
        name, storable = read.proto.graph.name, not read.external
        program = import_model(static, read.weights, read.opset, read.open_inputs)
        del read, static  # the program lets go of weights as they are fused
    except UnicodeDecodeError as error:  # protobuf checks text only when it is read
        raise ModelError(f"not an ONNX model: a name in it is not UTF-8 text ({error.reason})") from error
    fuse(program)
    graph = finish(program, name)
    if asked is not None and storable:
        write_graph(asked, graph)
        return read_graph(asked) or graph  # stored, its weights need not stay in memory
    return graph
