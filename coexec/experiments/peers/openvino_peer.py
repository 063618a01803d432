"""OpenVINO, asked for fp32, and left alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from coexec.experiments.peers.base import Peer, Run
from coexec.layout import Array


class OpenVino(Peer):
    """OpenVINO's CPU plugin for latency, in fp32."""

    name = "openvino"
    packages = ("openvino",)
    options: ClassVar[Mapping[str, Any]] = {"INFERENCE_PRECISION_HINT": "f32"}

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        import openvino

        core = openvino.Core()
        source = os.fspath(model) if isinstance(model, str | os.PathLike) else model.SerializeToString()
        options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, **self.options}
        compiled = core.compile_model(core.read_model(source), "CPU", options)
        request, outputs, fed = compiled.create_infer_request(), list(compiled.outputs), dict(feeds)

        def run() -> list[Array]:
            results = request.infer(fed, share_inputs=True)
            return [np.asarray(results[output]) for output in outputs]

        return run


class OpenVinoDefault(OpenVino):
    """OpenVINO in the precision that it chooses by itself, bfloat16 on some processors."""

    name = "openvino_default"
    fp32 = False
    options: ClassVar[Mapping[str, Any]] = {}
