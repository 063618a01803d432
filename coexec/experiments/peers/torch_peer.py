"""PyTorch, which reads no ONNX itself: pnnx writes the model as a module."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from onnx import ModelProto

from coexec.experiments.peers.base import Peer, Run
from coexec.experiments.peers.convert import pnnx
from coexec.layout import Array


class Torch(Peer):
    """Eager PyTorch on the CPU. The module is Python that pnnx makes of the model, and is run as such."""

    name = "torch"
    packages = ("torch", "pnnx")

    def load_model(self, model: str | ModelProto, feeds: Mapping[str, Array], threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        with TemporaryDirectory() as folder:
            net = _module(Path(f"{pnnx(model, Path(folder))}_pnnx.py")).eval()
        arrays = list(feeds.values())

        def run() -> list[Array]:
            with torch.inference_mode():
                results = net(*map(torch.from_numpy, arrays))
            return [r.numpy() for r in (results if isinstance(results, tuple) else (results,))]

        return run


def _module(path: Path) -> Any:
    spec = spec_from_file_location("coexec_pnnx_model", path)
    assert spec is not None and spec.loader is not None
    source = module_from_spec(spec)
    spec.loader.exec_module(source)
    return source.Model()
