"""Reading attributes, shapes and constant inputs of a node, with errors that name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coexec.errors import ModelError
from coexec.frontends.onnx_node import OnnxNode
from coexec.layout import Array, Shape
from coexec.ops.base import ArraySpec


def fail(node: OnnxNode, reason: str) -> ModelError:
    """The error to raise for ``node``."""
    return ModelError(f"node {node.name!r} ({node.op_type}): {reason}")


def integer(node: OnnxNode, name: str, default: int) -> int:
    """An int attribute."""
    return int(node.attributes.get(name, default))


def number(node: OnnxNode, name: str, default: float) -> float:
    """A float attribute."""
    return float(node.attributes.get(name, default))


def text(node: OnnxNode, name: str, default: str) -> str:
    """A string attribute."""
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def choice(node: OnnxNode, name: str, default: str, known: Any) -> str:
    """A string attribute that must be one of ``known``."""
    value = text(node, name, default)
    if value not in known:
        raise fail(node, f"{name} is {value!r}, which is not one of {', '.join(known)}")
    return value


def integers(node: OnnxNode, name: str) -> tuple[int, ...] | None:
    """A list-of-ints attribute; None when the node leaves it out."""
    value = node.attributes.get(name)
    return None if value is None else tuple(int(item) for item in value)


def present(node: OnnxNode, index: int) -> bool:
    """Whether the node has input ``index``."""
    return index < len(node.inputs) and bool(node.inputs[index])


def spec(node: OnnxNode, index: int) -> ArraySpec:
    """Shape and dtype of an input that must be there."""
    if not present(node, index):
        raise fail(node, f"input {index} is missing")
    known = node.specs[index]
    if known is None:
        raise fail(node, f"the shape of input {node.inputs[index]!r} is unknown; export with static shapes")
    return known


def shape(node: OnnxNode, index: int = 0) -> Shape:
    """Shape of an input that must be there."""
    return spec(node, index).shape


def constant(node: OnnxNode, index: int, what: str) -> Array | None:
    """Value of an input that must be constant (``what`` names it); None when it is absent."""
    if not present(node, index):
        return None
    value = node.constants[index]
    if value is None:
        raise fail(node, f"{what} ({node.inputs[index]!r}) is computed at run time; export with static shapes")
    return value


def scalar(node: OnnxNode, index: int, what: str) -> Any:
    """The one number of a constant input that must be there."""
    value = constant(node, index, what)
    if value is None or value.size != 1 or value.ndim > 1:
        raise fail(node, f"{what} (input {index}) must be one number")
    return value.reshape(-1)[0]


def constant_integers(node: OnnxNode, index: int, what: str) -> tuple[int, ...] | None:
    """A constant input of integers; None when it is absent."""
    value = constant(node, index, what)
    if value is not None and value.ndim > 1:
        raise fail(node, f"{what} (input {index}) has shape {value.shape}, it must be a list of numbers")
    return None if value is None else tuple(int(item) for item in value.reshape(-1))


def required_integers(node: OnnxNode, index: int, what: str) -> tuple[int, ...]:
    """A constant input of integers that must be there."""
    value = constant_integers(node, index, what)
    if value is None:
        raise fail(node, f"input {index} ({what}) is missing")
    return value


def normalized_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """The axis counted from the front."""
    if not -rank <= axis < rank:
        raise fail(node, f"axis {axis} is outside an input of rank {rank}")
    return axis % rank


def axis_attribute(node: OnnxNode, default: int) -> int:
    """Attribute ``axis``, counted from the front of input 0."""
    return normalized_axis(node, integer(node, "axis", default), len(shape(node)))


def axes_by_opset(node: OnnxNode, first_input_opset: int, index: int = 1) -> tuple[int, ...] | None:
    """``axes``: an attribute before ``first_input_opset``, a constant input from then on."""
    if node.opset < first_input_opset:
        return integers(node, "axes")
    return constant_integers(node, index, "axes")


def distinct_axes(node: OnnxNode, axes: Sequence[int], rank: int) -> list[int]:
    """``axes`` counted from the front, none of them twice."""
    normalized = [normalized_axis(node, axis, rank) for axis in axes]
    if len(set(normalized)) < len(normalized):
        raise fail(node, f"axes {tuple(axes)} name an axis twice")
    return normalized


def output_count(node: OnnxNode) -> int:
    """Outputs up to the last one that has a name."""
    named = [index for index, name in enumerate(node.outputs) if name]
    return max(named, default=0) + 1


def is_float(spec: ArraySpec) -> bool:
    """Whether NumPy computes on the dtype as on a float (float16, float32, float64)."""
    return spec.dtype.kind == "f"


def is_native(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy itself has the dtype (no strings, bfloat16, float8, int4)."""
    return dtype.kind in "biuf" and dtype.isbuiltin == 1
