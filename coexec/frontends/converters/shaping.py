"""Nodes that move elements without computing: Reshape, Transpose, Concat, Split, Slice, Pad, Gather..."""

from __future__ import annotations

import numpy as np

from coexec.frontends.converters.reading import (
    axes_by_opset,
    axis_attribute,
    choice,
    constant_integers,
    distinct_axes,
    fail,
    integer,
    integers,
    normalized_axis,
    number,
    present,
    required_integers,
    shape,
    spec,
)
from coexec.frontends.onnx_node import Converted, OnnxNode
from coexec.layout import Array, Shape
from coexec.ops.concat import Concat
from coexec.ops.depth_to_space import DepthToSpace, SpaceToDepth
from coexec.ops.expand import Expand, Tile
from coexec.ops.gather import Gather, GatherElements, GatherND
from coexec.ops.operands import element_count
from coexec.ops.pad import PAD_MODES, Pad
from coexec.ops.reshape import Reshape
from coexec.ops.slice import Slice
from coexec.ops.split import Split
from coexec.ops.transpose import Transpose


def reshape(node: OnnxNode) -> Converted:
    x, wanted = shape(node), list(required_integers(node, 1, "the shape"))
    if not integer(node, "allowzero", 0):
        if any(size == 0 and axis >= len(x) for axis, size in enumerate(wanted)):
            raise fail(node, f"the shape {wanted} copies an axis that the input {x} does not have")
        wanted = [x[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if min(wanted, default=0) < -1 or wanted.count(-1) > 1:
        raise fail(node, f"the shape {wanted} has sizes below -1 or leaves two open")
    if -1 in wanted:
        rest = element_count(size for size in wanted if size != -1)
        if not rest or element_count(x) % rest:
            raise fail(node, f"an input of shape {x} does not reshape to {wanted}")
        wanted[wanted.index(-1)] = element_count(x) // rest
    return _reshape(node, tuple(wanted))


def flatten(node: OnnxNode) -> Converted:
    x, axis = shape(node), integer(node, "axis", 1)
    split = axis if axis >= 0 else axis + len(x)
    if not 0 <= split <= len(x):
        raise fail(node, f"axis {axis} is outside an input of rank {len(x)}")
    return _reshape(node, (element_count(x[:split]), element_count(x[split:])))


def squeeze(node: OnnxNode) -> Converted:
    x, axes = shape(node), axes_by_opset(node, 13)
    if not axes:
        return _reshape(node, tuple(size for size in x if size != 1))
    dropped = {normalized_axis(node, axis, len(x)) for axis in axes}
    if any(x[axis] != 1 for axis in dropped):
        raise fail(node, f"axes {axes} of an input of shape {x} are not all 1")
    return _reshape(node, tuple(size for axis, size in enumerate(x) if axis not in dropped))


def unsqueeze(node: OnnxNode) -> Converted:
    x, axes = shape(node), axes_by_opset(node, 13) or ()
    rank = len(x) + len(axes)
    added, rest = distinct_axes(node, axes, rank), iter(x)
    return _reshape(node, tuple(1 if axis in added else next(rest) for axis in range(rank)))


def transpose(node: OnnxNode) -> Converted:
    order = integers(node, "perm") or tuple(reversed(range(len(shape(node)))))
    return Converted(Transpose(order), node.inputs)


def concat(node: OnnxNode) -> Converted:
    return Converted(Concat(axis_attribute(node, 1)), node.inputs)


def split(node: OnnxNode) -> Converted:
    axis = axis_attribute(node, 0)
    sizes = integers(node, "split") if node.opset < 13 else constant_integers(node, 1, "the split")
    if sizes is None:
        length, count = shape(node)[axis], len(node.outputs)
        step = -(-length // count)
        sizes = tuple(max(0, min(step, length - i * step)) for i in range(count))
    if len(sizes) != len(node.outputs) or min(sizes) < 0:
        raise fail(node, f"the split {sizes} does not fit {len(node.outputs)} outputs")
    return Converted(Split(axis, sizes), node.inputs[:1])


def slice_(node: OnnxNode) -> Converted:
    x = shape(node)
    if node.opset < 10:
        starts, ends = integers(node, "starts") or (), integers(node, "ends") or ()
        axes, steps = integers(node, "axes"), None
    else:
        starts, ends = (required_integers(node, i, what) for i, what in ((1, "starts"), (2, "ends")))
        axes, steps = constant_integers(node, 3, "axes"), constant_integers(node, 4, "steps")
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise fail(node, f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit together")
    ranges = [(0, size, 1) for size in x]
    for start, end, axis, step in zip(starts, ends, distinct_axes(node, axes, len(x)), steps, strict=True):
        ranges[axis] = _clamped(start, end, step, x[axis])
    return Converted(Slice(tuple(ranges)), node.inputs[:1])


def _clamped(start: int, end: int, step: int, size: int) -> tuple[int, int, int]:
    """ONNX's rule, not Python's: going down, a start before the axis still means its first element."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, stop = (at + size if at < 0 else at for at in (start, end))
    bounds = (min(max(first, 0), high), min(max(stop, low), high), step)
    return bounds if len(range(*bounds)) else (0, 0, 1)


def pad(node: OnnxNode) -> Converted:
    """Inputs of the op: x, and the fill value where there is one."""
    rank, mode = len(shape(node)), choice(node, "mode", "constant", PAD_MODES)
    if node.opset < 11:
        pads, axes = integers(node, "pads") or (), tuple(range(rank))
        inputs: tuple[str | Array, ...] = (node.inputs[0], np.asarray(number(node, "value", 0), spec(node, 0).dtype))
    else:
        pads = required_integers(node, 1, "pads")
        axes = constant_integers(node, 3, "axes") or tuple(range(rank))
        inputs = (node.inputs[0], node.inputs[2]) if present(node, 2) else (node.inputs[0],)
    if len(pads) != 2 * len(axes):
        raise fail(node, f"{len(pads)} pads do not fit {len(axes)} axes")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(distinct_axes(node, axes, rank)):
        widths[axis] = (pads[i], pads[len(axes) + i])
    return Converted(Pad(tuple(widths), mode), inputs)


def expand(node: OnnxNode) -> Converted:
    return Converted(Expand(required_integers(node, 1, "the shape")), node.inputs[:1])


def tile(node: OnnxNode) -> Converted:
    return Converted(Tile(required_integers(node, 1, "repeats")), node.inputs[:1])


def gather(node: OnnxNode) -> Converted:
    return Converted(Gather(axis_attribute(node, 0)), node.inputs)


def gather_elements(node: OnnxNode) -> Converted:
    return Converted(GatherElements(axis_attribute(node, 0)), node.inputs)


def gather_nd(node: OnnxNode) -> Converted:
    return Converted(GatherND(integer(node, "batch_dims", 0)), node.inputs)


def depth_to_space(node: OnnxNode) -> Converted:
    pixels_inner = choice(node, "mode", "DCR", ("DCR", "CRD")) == "CRD"
    return Converted(DepthToSpace(integer(node, "blocksize", 1), pixels_inner), node.inputs)


def space_to_depth(node: OnnxNode) -> Converted:
    pixels_inner = choice(node, "mode", "DCR", ("DCR", "CRD")) == "CRD"
    return Converted(SpaceToDepth(integer(node, "blocksize", 1), pixels_inner), node.inputs)


def _reshape(node: OnnxNode, wanted: Shape) -> Converted:
    return Converted(Reshape(wanted), node.inputs[:1])
