"""NumPy: what one writes by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import threadpoolctl
from onnx import ModelProto

from coexec.errors import InputError
from coexec.experiments.layer_model import layer_feeds
from coexec.experiments.peers.base import Peer, Run
from coexec.layout import Array
from coexec.measure import random_constants
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear


class Numpy(Peer):
    """A matrix product, and for convolutions gathered windows before it. Layers only."""

    name = "numpy"
    packages = ("numpy",)

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        raise InputError("NumPy runs single layers only")

    def load_layer(self, op: Conv2d | Linear, copies: int, threads: int) -> Run:
        shapes, feeds = op.array_shapes, layer_feeds(op, copies)
        layers = [(feeds[f"x{i}"], random_constants(shapes, seed=i), feeds.get(f"r{i}")) for i in range(copies)]
        controller = threadpoolctl.ThreadpoolController()
        compute: Callable[..., Array] = _linear if isinstance(op, Linear) else _conv2d

        def run() -> list[Array]:
            with controller.limit(limits=threads, user_api="blas"):
                return [_finish(op, compute(op, x, c["weight"]), c.get("bias"), r) for x, c, r in layers]

        return run


def _linear(op: Linear, x: Array, weight: Array) -> Array:
    return np.asarray(x @ weight)


def _conv2d(op: Conv2d, x: Array, weight: Array) -> Array:
    pads = ((0, 0), (0, 0), (op.pad_top, op.pad_bottom), (op.pad_left, op.pad_right))
    padded = np.pad(x, pads) if any(any(p) for p in pads) else x
    reach = (op.dilation_h * (op.KH - 1) + 1, op.dilation_w * (op.KW - 1) + 1)
    windows: Any = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, :: op.stride_h, :: op.stride_w, :: op.dilation_h, :: op.dilation_w]
    c_in, c_out = op.C_in // op.groups, op.C_out // op.groups
    out = np.empty((op.N, op.C_out, op.OH * op.OW), np.float32)
    for n in range(op.N):
        for g in range(op.groups):
            own = windows[n, g * c_in : (g + 1) * c_in].transpose(0, 3, 4, 1, 2).reshape(-1, op.OH * op.OW)
            kernel = weight[g * c_out : (g + 1) * c_out].reshape(c_out, -1)
            np.matmul(kernel, own, out=out[n, g * c_out : (g + 1) * c_out])
    return out.reshape(op.N, op.C_out, op.OH, op.OW)


def _finish(op: Conv2d | Linear, out: Array, bias: Array | None, residual: Array | None) -> Array:
    if bias is not None:
        out += bias if isinstance(op, Linear) else bias[:, None, None]
    if residual is not None:
        out += residual
    op.activation.apply(out)
    return out
