"""Layers that are kept for testing: a profile never samples them, so that a test of its predictors is fair.

The tables hold the layer shapes of Inception-v3 and ViT-B/32 and of the two suites that `coexec validate` runs.
"""

from __future__ import annotations

from coexec.ops.base import SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

ConvShape = tuple[int, int, int, int, int, int, int, int, int]
"""C_in, H, W, C_out, KH, KW, stride_h, stride_w, groups."""

HELD_OUT_LINEAR: frozenset[tuple[int, int, int]] = frozenset(
    [
        # ViT-B/32: MLP, joint and single projections, patches as a product, head
        (50, 768, 3072), (50, 3072, 768), (50, 768, 2304), (50, 768, 768), (49, 3072, 768), (1, 768, 1000),
        # Inception-v3: head and auxiliary head
        (1, 2048, 1000), (1, 768, 1000),
        # Suite of linear layers
        (197, 768, 3072), (128, 768, 768), (196, 1024, 1024), (1024, 1024, 1024), (16, 512, 1024),
        (1, 4096, 4096), (77, 515, 1211),
    ]
)  # fmt: skip
"""M, K, N."""

_SUITE_CONV: tuple[ConvShape, ...] = (
    (3, 224, 224, 64, 7, 7, 2, 2, 1),
    (64, 56, 56, 64, 3, 3, 1, 1, 1),
    (128, 28, 28, 128, 3, 3, 1, 1, 1),
    (256, 14, 14, 256, 3, 3, 1, 1, 1),
    (512, 7, 7, 512, 3, 3, 1, 1, 1),
    (128, 56, 56, 128, 3, 3, 2, 2, 1),
    (64, 56, 56, 256, 1, 1, 1, 1, 1),
    (256, 56, 56, 64, 1, 1, 1, 1, 1),
    (128, 112, 112, 128, 3, 3, 1, 1, 1),
    (192, 17, 17, 192, 1, 7, 1, 1, 1),
    (144, 56, 56, 24, 1, 1, 1, 1, 1),
    (144, 56, 56, 144, 3, 3, 1, 1, 144),
    (96, 112, 112, 96, 3, 3, 2, 2, 96),
    (128, 28, 28, 128, 3, 3, 1, 1, 32),
    (37, 31, 45, 53, 5, 3, 1, 1, 1),
)

_VIT_B32_CONV: tuple[ConvShape, ...] = ((3, 224, 224, 768, 32, 32, 32, 32, 1),)

# Inception-v3 by input size: (C_in, C_out, KH, KW, stride).
_INCEPTION_V3: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    299: ((3, 32, 3, 3, 2),),
    149: ((32, 32, 3, 3, 1),),
    147: ((32, 64, 3, 3, 1),),
    73: ((64, 80, 1, 1, 1), (80, 192, 3, 3, 1)),
    35: (
        *((c_in, c_out, 1, 1, 1) for c_in in (192, 256, 288) for c_out in (32, 48, 64)),
        (48, 64, 5, 5, 1),
        (64, 96, 3, 3, 1),
        (96, 96, 3, 3, 1),
        (288, 384, 3, 3, 2),
        (96, 96, 3, 3, 2),
    ),
    17: (
        *((768, c_out, 1, 1, 1) for c_out in (128, 160, 192)),
        *((c, c_out, kh, 8 - kh, 1) for c in (128, 160, 192) for c_out in (c, 192) for kh in (1, 7)),
        (192, 320, 3, 3, 2),
        (192, 192, 3, 3, 2),
    ),
    8: (
        *((c_in, c_out, 1, 1, 1) for c_in in (1280, 2048) for c_out in (192, 320, 384, 448)),
        (384, 384, 1, 3, 1),
        (384, 384, 3, 1, 1),
        (448, 384, 3, 3, 1),
    ),
    5: ((768, 128, 1, 1, 1), (128, 768, 5, 5, 1)),
}

HELD_OUT_CONV: frozenset[ConvShape] = frozenset(
    [
        *_SUITE_CONV,
        *_VIT_B32_CONV,
        *(
            (c_in, size, size, c_out, kh, kw, stride, stride, 1)
            for size, layers in _INCEPTION_V3.items()
            for c_in, c_out, kh, kw, stride in layers
        ),
    ]
)


def held_out(op: SplitOp) -> bool:
    """Whether this layer is one of those kept for testing (whatever its padding, bias and activation)."""
    if isinstance(op, Linear):
        return (op.M, op.K, op.N) in HELD_OUT_LINEAR
    if isinstance(op, Conv2d):
        shape = (op.C_in, op.H, op.W, op.C_out, op.KH, op.KW, op.stride_h, op.stride_w, op.groups)
        return shape in HELD_OUT_CONV
    return False
