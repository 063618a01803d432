"""Runs the command line as users do, in a process of its own, and what its tests feed it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

NO_OPENCL = {"OCL_ICD_VENDORS": "/nonexistent"}
COMMAND = (sys.executable, "-m", "coexec")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def problems(self) -> list[str]:
        """Lines on stderr that are not warnings."""
        return [line for line in self.err.splitlines() if not line.startswith("warning: ")]

    @property
    def document(self) -> Any:
        """The only JSON document on stdout; the command must have succeeded."""
        assert self.code == 0, self.err
        return json.loads(self.out)


def coexec(*arguments: str | Path, opencl: bool = False, setup: str = "") -> Result:
    """Run ``coexec ARGUMENTS``; without OpenCL unless asked for; after ``setup`` (Python) in the same process."""
    command = COMMAND if not setup else (sys.executable, "-c", f"{setup}\nfrom coexec.__main__ import main\nmain()")
    done = subprocess.run(
        [*command, *map(str, arguments)], env=environment(opencl), capture_output=True, text=True, timeout=300
    )
    return Result(done.returncode, done.stdout, done.stderr)


def environment(opencl: bool) -> Mapping[str, str]:
    """This process's environment, with all OpenCL drivers hidden unless they are asked for."""
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return kept if opencl else {**kept, **NO_OPENCL}


def small_model(channels: int = 16, size: int = 20) -> onnx.ModelProto:
    """Conv, Relu, Conv with stride, GlobalAveragePool, Flatten, Gemm: "input" -> "output" (1, 10)."""
    rng = np.random.default_rng(channels)

    def weight(name: str, *shape: int) -> TensorProto:
        scale = (2 / np.prod(shape[1:])) ** 0.5
        return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["output"], name="fc", transB=1),
    ]
    made = [weight("w1", channels, 3, 3, 3), weight("b1", channels), weight("w2", 2 * channels, channels, 3, 3)]
    made += [weight("w3", 10, 2 * channels), weight("b3", 10)]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 10])],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def small_input(size: int = 20) -> Array:
    return np.random.default_rng(3).standard_normal((1, 3, size, size)).astype(np.float32)


def expected_output(model: Path, x: Array) -> Array:
    """What onnxruntime computes."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["output"], {"input": x})[0])
