"""Decisions that a refactor must not change: the plans of small zoo models by the built-in estimate.

An intended change rewrites the file in the same commit: ``python tests/golden/test_plans.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coexec import zoo
from coexec.api import load_graph
from coexec.costs import Estimate
from coexec.kernels.variant import GpuTraits
from coexec.planner import Resources, make_plan

GOLDEN = Path(__file__).with_name("plans.json")
MODELS = {"resnet18": 224, "mobilenet_v2": 224, "squeezenet": 224, "inception_v3": 299}
TRAITS = {
    "one AVX-512 core": GpuTraits(compute_units=1, vector_width=16, vector_registers=32, cpu=True),
    "four NEON cores": GpuTraits(compute_units=4, vector_width=4, vector_registers=32, cpu=True),
}


def decisions(model: str, traits: GpuTraits) -> dict[str, list[str | int]]:
    """Per layer: axis, cut, units, kernel and CPU routine; and the tasks' waits as one text."""
    graph = load_graph(zoo.build(model, image_size=MODELS[model]))
    plan = make_plan(graph, Estimate(), Resources("pocl:0", "a device", traits, cpu_threads=1))
    rows: dict[str, list[str | int]] = {
        layer.name: [layer.axis, layer.cut, layer.units, layer.gpu_impl, layer.cpu_impl] for layer in plan.layers
    }
    rows["waits"] = [" ".join(f"{task.side[0]}{task.wait_for}" for task in plan.tasks)]
    return rows


@pytest.mark.parametrize("machine", TRAITS)
@pytest.mark.parametrize("model", MODELS)
def test_plan_is_as_it_was(model: str, machine: str) -> None:
    expected = json.loads(GOLDEN.read_text())[model][machine]
    assert decisions(model, TRAITS[machine]) == expected


if __name__ == "__main__":
    plans = {m: {name: decisions(m, traits) for name, traits in TRAITS.items()} for m in MODELS}
    lines = json.dumps(plans, indent=1)
    GOLDEN.write_text(lines + "\n")
