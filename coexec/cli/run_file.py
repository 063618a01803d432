"""Runs a model on the arrays of a file, as `coexec run` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from coexec.api import best_plan, build, choose_device
from coexec.arguments import read_graph
from coexec.cli.npz import check_names, load_arrays, save_arrays
from coexec.errors import InputError
from coexec.executor import check_feeds
from coexec.graph import Graph
from coexec.plan import Plan


def run_file(
    model: str,
    plan: str | None,
    inputs: str | None,
    outputs: str | None,
    repeat: int = 5,
    device: str | None = None,
    profile: str | None = None,
    shapes: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of `coexec run --json`: latency of ``repeat`` runs after one that warms up, output shapes.

    Args:
        model: ONNX file or name in ``coexec.zoo``.
        plan: plan file; None plans now, for ``device`` and by ``profile``.
        inputs, outputs: .npz files to read and to write (None: nothing is written).
        shapes: sizes of open inputs, as "name=1x3x224x224".

    Raises:
        CoexecError: with one line; ``outputs`` is then as it was.
    """
    if plan is not None and (device is not None or profile is not None):
        raise InputError("--plan says what runs where; leave out --device and --profile, or --plan")
    made = None if plan is None else Plan.load(plan)
    open_shapes = None if made is None else made.input_shapes
    graph = read_graph(model, shapes, {"--output": outputs}, [plan, inputs], open_shapes)
    if outputs is not None:
        check_names(outputs, graph.outputs)
    if inputs is None:
        raise InputError(f"--input FILE.npz is missing; the model's inputs are: {_ports(graph)}")
    feeds = load_arrays(inputs)
    check_feeds(graph, feeds)
    if made is not None:
        ready = build(graph, made)
    else:
        ready = build(graph, best_plan(graph, choose_device(device), profile=profile))
    results = ready.executor.run(feeds)
    times_ms = []
    for _ in range(repeat):
        start = time.perf_counter()
        results = ready.executor.run(feeds)
        times_ms.append((time.perf_counter() - start) * 1e3)
    if outputs is not None:
        save_arrays(outputs, results)
    return {
        "latency_ms": float(np.median(times_ms)),
        "runs": repeat,
        "outputs": {name: list(array.shape) for name, array in results.items()},
        "written": outputs,
    }


def _ports(graph: Graph) -> str:
    """Inputs with dtype and shape."""
    tensors = [graph.tensors[name] for name in graph.inputs]
    return ", ".join(f"{t.name} ({t.dtype} {'x'.join(map(str, t.shape)) or 'scalar'})" for t in tensors) or "none"
