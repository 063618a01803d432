"""The ops that can be split, by kind."""

from __future__ import annotations

from coexec.ops.base import SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

SPLIT_OPS: dict[str, type[SplitOp]] = {cls.kind: cls for cls in (Conv2d, Linear)}
