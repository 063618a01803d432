"""What attributes of standard nodes may hold, beyond the type that ONNX's checker has compared already.

A name means the same in every op that has it, so one table serves all ops. It is applied before ONNX infers
shapes: that code divides by strides, allocates by counts and follows indices without looking at them first.
"""

from __future__ import annotations

import math

from onnx import AttributeProto, NodeProto, helper

from coexec.errors import ModelError

MAX_INT32 = 2**31 - 1
"""Geometry must fit the kernels' 32-bit numbers."""

FLAG, POSITIVE, NOT_NEGATIVE = (0, 1), (1, MAX_INT32), (0, MAX_INT32)

BOUNDS: dict[str, tuple[int, int]] = {
    "align_corners": FLAG,
    "allowzero": FLAG,
    "antialias": FLAG,
    "batch_dims": NOT_NEGATIVE,
    "blocksize": POSITIVE,
    "ceil_mode": FLAG,
    "center_point_box": FLAG,
    "count_include_pad": FLAG,
    "detect_negative": FLAG,
    "detect_positive": FLAG,
    "dilations": POSITIVE,
    "exclude_outside": FLAG,
    "exclusive": FLAG,
    "fmod": FLAG,
    "group": POSITIVE,
    "hidden_size": POSITIVE,
    "inverse": FLAG,
    "is_causal": FLAG,
    "keepdims": FLAG,
    "kernel_shape": POSITIVE,
    "largest": FLAG,
    "linear_before_reset": FLAG,
    "noop_with_empty_axes": FLAG,
    "num_groups": POSITIVE,
    "num_outputs": POSITIVE,
    "offset_group": POSITIVE,
    "onesided": FLAG,
    "output_height": POSITIVE,
    "output_padding": NOT_NEGATIVE,
    "output_shape": POSITIVE,
    "output_width": POSITIVE,
    "p": POSITIVE,
    "pads": NOT_NEGATIVE,
    "periodic": FLAG,
    "pooled_shape": POSITIVE,
    "reverse": FLAG,
    "saturate": FLAG,
    "select_last_index": FLAG,
    "size": POSITIVE,
    "sorted": FLAG,
    "storage_order": FLAG,
    "strides": POSITIVE,
    "training_mode": FLAG,
    "transA": FLAG,
    "transB": FLAG,
    "upper": FLAG,
}
EXCEPTIONS = {("Pad", "pads"): (-MAX_INT32, MAX_INT32)}
"""Pad crops where a width is negative."""

DATA = frozenset({"extrapolation_value", "value", "value_float", "value_floats"})
"""Floats that end up in a tensor as they are."""
LIMITS = frozenset({"max", "min"})
"""Clip's, which may be infinite."""


def check_attributes(node: NodeProto, name: str) -> None:
    """Raise ModelError, calling the node ``name``, for a value that no op can mean."""
    for attribute in node.attribute:
        reason = _fault(node.op_type, attribute)
        if reason:
            raise ModelError(f"node {name!r} ({node.op_type}): {attribute.name} is {reason}")
    if node.op_type == "Split":
        counts = [attribute.i for attribute in node.attribute if attribute.name == "num_outputs"]
        if counts and counts[0] != len(node.output):
            raise ModelError(f"node {name!r} (Split): num_outputs is {counts[0]}, it has {len(node.output)} outputs")


def _fault(op_type: str, attribute: AttributeProto) -> str:
    """What the attribute is and should be; "" if nothing is wrong."""
    name, kind = attribute.name, attribute.type
    bounds = EXCEPTIONS.get((op_type, name)) or BOUNDS.get(name)
    if kind in (AttributeProto.INT, AttributeProto.INTS) and bounds is not None:
        low, high = bounds
        values = attribute.ints if kind == AttributeProto.INTS else [attribute.i]
        if any(not low <= value <= high for value in values):
            return f"{helper.get_attribute_value(attribute)}, outside {low} to {high}"
    if kind in (AttributeProto.FLOAT, AttributeProto.FLOATS) and name not in DATA:
        values = attribute.floats if kind == AttributeProto.FLOATS else [attribute.f]
        if any(math.isnan(value) or (math.isinf(value) and name not in LIMITS) for value in values):
            return f"{helper.get_attribute_value(attribute)}, not a finite number"
    return ""
