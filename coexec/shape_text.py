"""Short descriptions of layers for tables."""

from __future__ import annotations

from coexec.ops.base import SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear


def shape_text(op: SplitOp) -> str:
    """What a layer computes: "64->128 3x3/2 @56" for convolutions (@ input size), "50x768x3072" (M x K x N)."""
    if isinstance(op, Linear):
        return f"{op.M}x{op.K}x{op.N}"
    if not isinstance(op, Conv2d):
        return op.kind
    size = f"{op.H}" if op.H == op.W else f"{op.H}x{op.W}"
    stride = "" if (op.stride_h, op.stride_w) == (1, 1) else f"/{op.stride_h}"
    if op.stride_w != op.stride_h:
        stride += f"x{op.stride_w}"
    dilation = "" if (op.dilation_h, op.dilation_w) == (1, 1) else f" d{max(op.dilation_h, op.dilation_w)}"
    groups = "" if op.groups == 1 else " depthwise" if op.groups == op.C_in == op.C_out else f" g{op.groups}"
    batch = "" if op.N == 1 else f"{op.N} x "
    return f"{batch}{op.C_in}->{op.C_out} {op.KH}x{op.KW}{stride}{dilation}{groups} @{size}"
