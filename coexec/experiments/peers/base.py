"""What a peer is: a library that gets an ONNX model, and runs it from and to arrays in user memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import ClassVar

from onnx import ModelProto

from coexec.experiments.layer_model import layer_feeds, layer_model
from coexec.layout import Array
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

Run = Callable[[], list[Array]]
"""Runs what was loaded once; returns its outputs."""


class Peer(ABC):
    """One library."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Distributions that it needs, the library itself first. Each is imported by its name, with _ for -."""
    fp32: ClassVar[bool] = True
    """Whether all that it computes is fp32; only such a peer is compared with, others are shown beside it."""

    def available(self) -> str | None:
        """Why it cannot be used here; None if it can."""
        missing = [package for package in self.packages if find_spec(package.replace("-", "_")) is None]
        return f"{missing[0]} is not installed" if missing else None

    @abstractmethod
    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        """A model (path or proto) made ready with so many threads; any exception means that it cannot load it.

        ``feeds`` has the inputs by name, in the model's order.
        """

    def load_layer(self, op: Conv2d | Linear, copies: int, threads: int) -> Run:
        """Copies of one layer with the weights of ``coexec.measure.LayerRig``; run one after the other."""
        return self.load_model(layer_model(op, copies), layer_feeds(op, copies), threads)
