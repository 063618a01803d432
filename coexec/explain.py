"""Why a layer is cut as it is: what the alternatives should cost, by the planner's own evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from coexec.costs import CostSource
from coexec.graph import Graph
from coexec.ops.base import Axis
from coexec.plan import Plan
from coexec.planner import Evaluated, Resources, evaluate


def explain(graph: Graph, plan: Plan, costs: CostSource, use: Resources) -> list[dict[str, Any]]:
    """One row per split node: the plan's choice, both sides alone, and the best cut along each axis.

    All times in microseconds; None where there is no such alternative.
    """
    chosen = {row.name: row for row in plan.layers}
    rows = []
    for layer in evaluate(graph, costs, use):
        choice = chosen[layer.node.name]
        rows.append(
            {
                "name": layer.node.name,
                "op": layer.op.kind,
                "shape": layer.op.shape_text,
                "axis": choice.axis,
                "cut": choice.cut,
                "units": choice.units,
                "predicted_us": choice.predicted_us,
                "cpu_only_us": _at(layer, 0),
                "gpu_only_us": _at(layer, layer.op.units("channel")),
                "best_channel": _best(layer, "channel"),
                "best_row": _best(layer, "row"),
                "candidates": len(layer.cuts),
            }
        )
    return rows


def _at(layer: Evaluated, cut: int) -> float | None:
    """Microseconds of one side alone: cut 0, or all channels."""
    found = [i for i, (axis, c) in enumerate(zip(layer.axes, layer.cuts, strict=True)) if (axis, c) == ("channel", cut)]
    return float(layer.total_us[found[0]]) if found else None


def _best(layer: Evaluated, axis: Axis) -> dict[str, Any] | None:
    """The best cut along an axis that gives both sides a part."""
    units = layer.op.units(axis)
    inner = [i for i, (a, c) in enumerate(zip(layer.axes, layer.cuts, strict=True)) if a == axis and 0 < c < units]
    if not inner:
        return None
    choice = layer.choice(inner[int(np.argmin(layer.total_us[inner]))])
    return {
        "cut": choice.cut,
        "units": units,
        "cpu_us": choice.costs.cpu_us,
        "gpu_us": choice.costs.gpu_us,
        "sync_us": choice.costs.sync_us,
        "predicted_us": choice.costs.predicted_us,
    }
