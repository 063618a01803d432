"""Lets the onnxscript optimizer fold shape arithmetic and constant branches of a static model.

Only its constant folding is used, none of its rewrite rules: names, opset and op types stay those of the
model, so it serves opset 9 as well as the newest. Results above ``FOLDED_ELEMENTS`` stay unfolded here
and are dealt with one by one in onnx_import, which knows all constants and all shapes.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

from onnx import ModelProto

FOLDED_ELEMENTS = 4096
ROUNDS = 3
"""A branch that one round puts in place of its If is folded in the next."""


def fold(proto: ModelProto) -> ModelProto:
    """The model with constant parts evaluated; the model itself where there are none or the optimizer gives up."""
    if not _can_fold(proto):
        return proto
    # Both take half a second to import, which only those pay whose model needs it.
    import onnx_ir
    from onnxscript.optimizer import fold_constants_ir, remove_unused_nodes

    model = onnx_ir.serde.deserialize_model(proto)
    with _quiet("onnxscript"), contextlib.suppress(RuntimeError, ValueError, TypeError):
        for _ in range(ROUNDS):
            result = fold_constants_ir(model, onnx_shape_inference=True, should_fold=_is_small)
            if not result:
                break
        remove_unused_nodes(model)
        return onnx_ir.serde.serialize_model(model)
    return proto


def _can_fold(proto: ModelProto) -> bool:
    """Whether a node's result is known before any input is: of constants, of shapes, of a branch."""
    known = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            known.update(node.output)
        elif (
            node.op_type in ("Shape", "Size")
            or any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
            or all(name in known for name in node.input if name)
        ):
            return True
    return False


def _is_small(node: Any) -> bool:
    """Whether the result's size is known and small, before anything is allocated for it."""
    if len(node.outputs) != 1:
        return False
    shape = node.outputs[0].shape
    return shape is not None and shape.is_static() and math.prod(int(d) for d in shape) <= FOLDED_ELEMENTS


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a logger: what it would warn of is checked in onnx_import."""
    prefix = f"{name}."
    names = [name, *(key for key in logging.root.manager.loggerDict if key.startswith(prefix))]
    before = {logging.getLogger(key): logging.getLogger(key).disabled for key in names}
    try:
        for logger in before:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in before.items():
            logger.disabled = disabled
