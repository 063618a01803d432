"""Model files for the libraries that read no ONNX: by their own converters, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import onnx
from onnx import ModelProto

from coexec.errors import InputError
from coexec.layout import Shape

LIMIT_S = 600.0
"""A converter that takes longer is stopped."""

MNN_CONVERT = "import sys, _tools; _tools.mnnconvert(sys.argv)"
"""What MNN's own `mnnconvert` command runs. The command itself also installs a package and reports its use."""


def pnnx(model: str | ModelProto, folder: Path) -> Path:
    """The stem of the files that pnnx writes into ``folder``: STEM.ncnn.param, STEM.ncnn.bin, STEM_pnnx.py, ..."""
    source = _saved(model, folder)
    spec = find_spec("pnnx")
    assert spec is not None and spec.submodule_search_locations  # a peer that needs it asked before
    program = Path(spec.submodule_search_locations[0], "pnnx")
    _convert([str(program), str(source), "fp16=0"], folder, folder / "model.ncnn.bin")
    return folder / "model"


def mnn(model: str | ModelProto, folder: Path) -> Path:
    """The model as an MNN file in ``folder``."""
    source, made = _saved(model, folder), folder / "model.mnn"
    arguments = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(made), "--bizCode", "coexec"]
    _convert([sys.executable, "-c", MNN_CONVERT, *arguments], folder, made)
    return made


def output_shapes(model: str | ModelProto) -> dict[str, Shape]:
    """Shape of each output of a model with static shapes, by name in order."""
    proto = onnx.load(model, load_external_data=False) if isinstance(model, str | os.PathLike) else model
    return {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in proto.graph.output}


def _saved(model: str | ModelProto, folder: Path) -> Path:
    """A copy in one file: converters write beside what they read."""
    target = folder / "model.onnx"
    proto = onnx.load(model) if isinstance(model, str | os.PathLike) else model
    onnx.save_model(proto, target)
    return target


def _convert(command: Sequence[str], folder: Path, made: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"its converter took more than {LIMIT_S:.0f} s") from error
    if done.returncode or not made.exists():
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise InputError(f"its converter failed ({done.returncode}): {lines[-1] if lines else 'no message'}")
