"""ncnn, through the converter of its authors, pnnx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx import ModelProto

from coexec.errors import InputError
from coexec.experiments.peers.base import Peer, Run
from coexec.experiments.peers.convert import output_shapes, pnnx
from coexec.layout import Array


class Ncnn(Peer):
    """ncnn on the CPU in fp32. Its tensors have no batch axis: images come one at a time."""

    name = "ncnn"
    packages = ("ncnn", "pnnx")

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        import ncnn

        if any(x.ndim > 2 and x.shape[0] != 1 for x in feeds.values()):
            raise InputError("ncnn has no batch axis")
        net = ncnn.Net()
        net.opt.num_threads = threads
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
        with TemporaryDirectory() as folder:
            stem = pnnx(model, Path(folder))
            if net.load_param(f"{stem}.ncnn.param") or net.load_model(f"{stem}.ncnn.bin"):
                raise InputError("ncnn does not load what pnnx made of it")
        arrays = {f"in{i}": x[0] if x.ndim > 2 else x for i, x in enumerate(feeds.values())}
        shapes = {f"out{i}": shape for i, shape in enumerate(output_shapes(model).values())}

        def run() -> list[Array]:
            with net.create_extractor() as extractor:
                for name, x in arrays.items():
                    extractor.input(name, ncnn.Mat(x))
                results = []
                for name, shape in shapes.items():
                    status, result = extractor.extract(name)
                    if status:
                        raise RuntimeError(f"ncnn gave {status} for {name}")
                    results.append(np.asarray(result).reshape(shape))
                return results

        return run
