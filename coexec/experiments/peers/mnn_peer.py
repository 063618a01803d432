"""MNN, through the converter in its wheel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx import ModelProto

from coexec.experiments.peers.base import Peer, Run
from coexec.experiments.peers.convert import mnn, output_shapes
from coexec.layout import Array


class Mnn(Peer):
    """MNN's CPU backend with precision "high", which is fp32."""

    name = "mnn"
    packages = ("MNN",)

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        import MNN

        shapes = output_shapes(model)
        config = {"backend": "CPU", "precision": "high", "numThread": threads}
        manager = MNN.nn.create_runtime_manager((config,))
        with TemporaryDirectory() as folder:
            path = str(mnn(model, Path(folder)))
            net = MNN.nn.load_module_from_file(path, list(feeds), list(shapes), runtime_manager=manager)
        arrays = list(feeds.values())

        def run() -> list[Array]:
            variables = []
            for x in arrays:
                variable = MNN.expr.placeholder(list(x.shape), MNN.expr.NCHW)
                variable.write(x)
                variables.append(variable)
            results = [MNN.expr.convert(y, MNN.expr.NCHW).read() for y in net.forward(variables)]
            return [np.asarray(r).reshape(shape) for r, shape in zip(results, shapes.values(), strict=True)]

        return run
