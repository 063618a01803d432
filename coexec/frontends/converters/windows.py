"""Windows of pooling and convolution nodes: strides, dilations, padding and auto_pad resolved."""

from __future__ import annotations

from coexec.frontends.converters.reading import choice, fail, integer, integers
from coexec.frontends.onnx_node import OnnxNode
from coexec.layout import Shape
from coexec.ops.window import Window


def read_window(node: OnnxNode, size: Shape, kernel: Shape) -> Window:
    """The node's window over a spatial input of ``size``."""
    rank = len(size)
    strides, dilations = spatial_attribute(node, "strides", rank), spatial_attribute(node, "dilations", rank)
    if len(kernel) != rank:
        raise fail(node, f"kernel {kernel} does not fit an input with spatial shape {size}")
    mode = auto_pad(node)
    begin, end = (0,) * rank, (0,) * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            for n, s, d, k in zip(size, strides, dilations, kernel, strict=True)
        ]
        begin, end = share_padding(totals, mode == "SAME_UPPER")
    elif mode == "NOTSET":
        begin, end = explicit_padding(node, rank)
    return Window(kernel, strides, begin, end, dilations, bool(integer(node, "ceil_mode", 0)))


def auto_pad(node: OnnxNode) -> str:
    """Attribute ``auto_pad``, which leaves no room for pads of the node's own."""
    mode = choice(node, "auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if mode != "NOTSET" and any(integers(node, "pads") or ()):
        raise fail(node, f"has both auto_pad {mode} and pads; leave one out")
    return mode


def spatial_attribute(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    """An integer per spatial axis, 1 by default."""
    values = integers(node, name) or (1,) * rank
    if len(values) != rank:
        raise fail(node, f"{name} {values} does not fit {rank} spatial axes")
    return values


def explicit_padding(node: OnnxNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Attribute ``pads`` as padding before and after."""
    pads = integers(node, "pads") or (0,) * (2 * rank)
    if len(pads) != 2 * rank:
        raise fail(node, f"pads {pads} does not fit {rank} spatial axes")
    return pads[:rank], pads[rank:]


def share_padding(totals: list[int], more_at_end: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after; an odd one goes to the end or to the beginning."""
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (small, large) if more_at_end else (large, small)
