"""Runs every kernel on a device once, in a process of its own; what comes out must not depend on the cache's state.

``python kernels_once.py DEVICE`` prints one JSON object: results by kernel (largest relative error, hash), how many
programs were compiled, and whether the driver keeps compiled programs itself.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

from coexec import kernel_cache
from coexec.device import Session, find_device
from coexec.executor import Executor
from coexec.graph import Graph, Node, Tensor
from coexec.kernels import KERNELS
from coexec.layout import Array, Layout
from coexec.measure import random_constants
from coexec.ops.activation import Activation
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.plan import Plan, Task
from coexec.sync import Sync, open_sync

RELU = Activation("relu")
OPS = (
    Linear(13, 64, 129, bias=True),
    Conv2d(1, 32, 14, 14, 40, 3, 3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1, bias=True, activation=RELU),
    Conv2d(1, 32, 9, 9, 32, 3, 3, groups=32, bias=True),
)


def compiled() -> list[Any]:
    """A list to which every program is added that is compiled from now on."""
    found: list[Any] = []
    build = kernel_cache._quiet_build

    def counting(program: Any, options: Any) -> Any:
        if getattr(program, "_source", None) is not None:
            found.append(program)
        return build(program, options)

    kernel_cache._quiet_build = counting
    return found


def run(op: Linear | Conv2d, kernel: str, sync: Sync) -> tuple[float, str]:
    """The largest error over the largest value, and the hash of the result."""
    shapes = op.array_shapes
    constants = random_constants(shapes, seed=3)
    tensors = {
        name: Tensor(name, shapes[name], np.dtype(np.float32), Layout.channels_last(len(shapes[name])))
        for name in ("x", "y")
    }
    node = Node("layer", op, ("x", "weight", "bias"), ("y",))
    executor = Executor(Graph("one", (node,), tensors, constants, ("x",), ("y",)), sync, 1)
    task = Task("gpu", "layer", "none", 0, 1, kernel, 0)
    executor.load(Plan("one", "", "", "", 0, 1, "", (task,), {}, {}, 0.0, "", {}, {}, "", ""))
    x: Array = np.random.default_rng(5).standard_normal(shapes["x"], np.float32)
    y = executor.run({"x": x})["y"]
    arrays, output = op.canonical([x, constants["weight"], constants["bias"]], y)
    expected = op.reference(arrays)
    return float(np.abs(output - expected).max() / np.abs(expected).max()), hashlib.sha256(y.tobytes()).hexdigest()


def main(device: str) -> None:
    programs = compiled()
    info = find_device(device)
    assert info is not None
    sync = open_sync(Session(info, 1), "events")
    results = {
        f"{kernel.name} {op.shape_text}": run(op, kernel.name, sync)
        for op in OPS
        for kernel in KERNELS[op.kind]
        if kernel.supports(op.columns(), sync.session.traits)[0]
    }
    own = kernel_cache.keeps_programs_itself(info.handle)
    print(json.dumps({"results": results, "compiled": len(programs), "driver_keeps": own}))


if __name__ == "__main__":
    main(sys.argv[1])
