"""Kernels that a device computes wrongly are found before a run uses them, and left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coexec import device, kernels
from coexec.device import Session
from coexec.errors import DeviceError
from coexec.executor import Executor
from coexec.experiments.conformance import Link
from coexec.graph import Graph, Node, Tensor
from coexec.layout import Array, Layout
from coexec.ops.base import SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.planner import Resources, assemble, share_choices
from coexec.sync import open_sync

F4 = np.dtype(np.float32)
CONV = Conv2d(1, 32, 20, 20, 32, 3, 3, 1, 1, 1, 1, 1, 1)
FAULTS = {
    # kernel -> what its source says, and what a driver makes of it
    "conv2d_winograd": ("inputs[i * C_in + k]", "inputs[i * C_in + k / 2 * 2]"),
    "conv2d_direct": ("a[i][k]", "a[i][0]"),
    "linear_tile": ("a[i][k]", "a[i][0]"),
}


def one_layer(op: SplitOp) -> Graph:
    shapes, rng = op.array_shapes, np.random.default_rng(0)
    tensors = {r: Tensor(r, shapes[r], F4, Layout.channels_last(len(shapes[r]))) for r in ("x", "y")}
    weight = rng.standard_normal(shapes["weight"], np.float32)
    return Graph("one", (Node("layer", op, ("x", "weight"), ("y",)),), tensors, {"weight": weight}, ("x",), ("y",))


def run_on_gpu(op: SplitOp, link: Link) -> tuple[Array, Array]:
    """The result with a session of its own, and the right one."""
    graph, sync = one_layer(op), open_sync(Session(link.info, 1), link.sync)
    use = Resources("", "", sync.session.traits, 1, link.sync)
    executor = Executor(graph, sync, 1)
    x = np.random.default_rng(1).standard_normal(graph.tensors["x"].shape, np.float32)
    executor.load(assemble(graph, share_choices(graph, "channel", 1.0), None, use))
    y = np.empty(op.array_shapes["y"])
    arrays, view = op.canonical([x, graph.constants["weight"], None, None], y)
    view[...] = op.reference(arrays)
    return executor.run({"x": x})["y"], y


def break_kernel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said, meant = FAULTS[name]

    def source(asked: str) -> str:
        text = kernels.source(asked)
        if asked != name:
            return text
        assert said in text
        return text.replace(said, meant)

    monkeypatch.setattr(device, "source", source)


def test_a_wrong_kernel_is_left_out(opencl_link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernel(monkeypatch, "conv2d_winograd")
    with pytest.warns(UserWarning, match="conv2d_winograd gives wrong numbers"):
        got, expected = run_on_gpu(CONV, opencl_link)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "op"), [("linear_tile", Linear(20, 30, 40)), ("conv2d_direct", Conv2d(1, 9, 8, 8, 5, 1, 1))]
)
def test_without_another_kernel_it_is_an_error(
    opencl_link: Link, monkeypatch: pytest.MonkeyPatch, name: str, op: Any
) -> None:
    break_kernel(monkeypatch, name)
    with (
        pytest.warns(UserWarning, match=f"{name} gives wrong numbers"),
        pytest.raises(DeviceError, match=r"no kernel for .* gives right numbers on this device"),
    ):
        run_on_gpu(op, opencl_link)


def test_a_kernel_that_writes_nothing_is_found(opencl_link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "source", lambda name: kernels.source(name).replace("m0 + i < M", "m0 + i < 0"))
    with pytest.warns(UserWarning, match="it writes nothing"), pytest.raises(DeviceError):
        run_on_gpu(Linear(20, 30, 40), opencl_link)


def test_the_model_inputs_stay(opencl_link: Link) -> None:
    """Loading a plan tries kernels on the model's own memory; what was fed before is still there."""
    graph, sync = one_layer(CONV), open_sync(Session(opencl_link.info, 1), opencl_link.sync)
    executor = Executor(graph, sync, 1)
    x = np.random.default_rng(1).standard_normal(graph.tensors["x"].shape, np.float32)
    executor.tensors.view("x")[...] = x
    use = Resources("", "", sync.session.traits, 1, opencl_link.sync)
    executor.load(assemble(graph, share_choices(graph, "channel", 1.0), None, use))
    np.testing.assert_array_equal(executor.tensors.view("x"), x)
