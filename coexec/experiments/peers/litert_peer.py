"""LiteRT, listed because it would be asked for."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from coexec.errors import InputError
from coexec.experiments.peers.base import Peer, Run
from coexec.layout import Array


class LiteRt(Peer):
    """LiteRT reads no ONNX; what converts it brings TensorFlow along and takes minutes for a network."""

    name = "litert"
    packages = ("ai-edge-litert",)

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        raise InputError("LiteRT reads no ONNX, and there is no light converter for it")
