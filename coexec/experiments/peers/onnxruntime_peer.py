"""ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto

from coexec.experiments.peers.base import Peer, Run
from coexec.layout import Array


class OnnxRuntime(Peer):
    """onnxruntime's CPU provider, sequential, all optimisations."""

    name = "onnxruntime"
    packages = ("onnxruntime",)

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
