"""What a converter gets of one ONNX node, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op


@dataclass(frozen=True)
class OnnxNode:
    """One ONNX node with all that is known of its inputs.

    Attributes:
        name: the node's name (made up from op type and first output when empty).
        opset: version of the opset of ``domain`` that the model imports.
        attributes: name -> Python value (int, float, str, list, numpy array for tensors).
        inputs, outputs: names as in the model, "" for an absent optional one.
        specs: shape and dtype per input, None where absent.
        constants: value per input where it is constant, else None.
        output_specs: what ONNX shape inference knows of each output (None: nothing).
    """

    name: str
    op_type: str
    domain: str
    opset: int
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    specs: tuple[ArraySpec | None, ...]
    constants: tuple[Array | None, ...]
    output_specs: tuple[ArraySpec | None, ...]


@dataclass(frozen=True)
class Converted:
    """An op and its inputs: tensor or constant names, or new constant arrays; "" for absent."""

    op: Op
    inputs: tuple[str | Array, ...]


Converter = Callable[[OnnxNode], Converted]
"""Raises ModelError (naming node, op and reason) for a node that it cannot turn into an op."""
