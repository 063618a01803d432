"""The libraries that coexec is compared with. A new one is a class and a line in PEERS.

A peer gets an ONNX model and feeds, and gives back a function that runs it once, from arrays in user memory to
arrays in user memory. A single layer comes as one model of several independent copies, so that none finds its
own data in the caches.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import threadpoolctl
from onnx import ModelProto

from coexec.errors import InputError
from coexec.experiments.layer_model import layer_feeds, layer_model
from coexec.experiments.setting import version
from coexec.layout import Array
from coexec.measure import random_constants
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

Run = Callable[[], list[Array]]
"""Runs what was loaded once; returns its outputs."""


class Peer(ABC):
    """One library."""

    name: ClassVar[str]
    package: ClassVar[str]
    """Distribution that holds it."""
    module: ClassVar[str]
    """What is imported of it."""

    def available(self) -> str | None:
        """Why it cannot be used here; None if it can."""
        return None if find_spec(self.module) else f"{self.package} is not installed"

    def version(self) -> str | None:
        """Version of the installed package."""
        return version(self.package)

    @abstractmethod
    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        """A model (path or proto) made ready with so many threads; any exception means that it cannot load it."""

    def load_layer(self, op: Conv2d | Linear, copies: int, threads: int) -> Run:
        """Copies of one layer with the weights of ``coexec.measure.LayerRig``; run one after the other."""
        return self.load_model(layer_model(op, copies), layer_feeds(op, copies), threads)


class OnnxRuntime(Peer):
    """onnxruntime's CPU provider, sequential, all optimisations."""

    name = package = module = "onnxruntime"

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        source = os.fspath(model) if isinstance(model, str | os.PathLike) else model.SerializeToString()
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        fed = dict(feeds)
        return lambda: [np.asarray(a) for a in session.run(None, fed)]


class Numpy(Peer):
    """What one writes by hand: a matrix product, and for convolutions gathered windows before it. Layers only."""

    name = package = module = "numpy"

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


PEERS: dict[str, Peer] = {peer.name: peer for peer in (Numpy(), OnnxRuntime())}


def choose_peers(names: list[str] | None) -> list[Peer]:
    """The named peers, all of them for None; InputError for a name that is not known."""
    for name in names or ():
        if name not in PEERS:
            raise InputError(f"unknown peer {name!r}; there are {', '.join(PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(PEERS if names is None else names)]


def loaded(peer: Peer, load: Callable[[Peer], Run]) -> tuple[Run | None, str | None]:
    """What ``load`` makes of a peer, or None and the reason in one line."""
    reason = peer.available()
    if reason is not None:
        return None, f"{peer.name}: {reason}"
    try:
        run = load(peer)
        run()
    except Exception as error:  # libraries raise anything; the comparison goes on without them
        return None, f"{peer.name}: {' '.join(str(error).split())[:200] or type(error).__name__}"
    return run, None
