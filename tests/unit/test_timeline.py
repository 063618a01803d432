"""The predicted timeline against a schedule worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coexec.graph import Graph, Node, Tensor
from coexec.layout import Layout
from coexec.ops.linear import Linear
from coexec.plan import Costs, Plan, Task
from coexec.timeline import chrome_trace, predicted_spans

OP = Linear(4, 8, 8)
SYNC_US = 10.0


def graph() -> Graph:
    """Two linear layers in a row."""
    f4 = np.dtype(np.float32)
    tensors = {name: Tensor(name, (4, 8), f4, Layout.plain(2)) for name in ("x", "a", "b")}
    nodes = (Node("A", OP, ("x", "w", "", ""), ("a",)), Node("B", OP, ("a", "w", "", ""), ("b",)))
    return Graph("pair", nodes, tensors, {"w": np.zeros((8, 8), np.float32)}, ("x",), ("b",))


def plan(*tasks: Task) -> Plan:
    costs = {"A": Costs(80.0, 100.0, SYNC_US, 110.0), "B": Costs(50.0, 30.0, SYNC_US, 60.0)}
    units = {"A": ("linear", 8), "B": ("linear", 8)}
    return Plan("pair", "", "some:0", "", 1, 1, "", tasks, units, costs, 0.17, "test", {}, {}, "", "")


def task(side: Any, node: str, wait_for: int) -> Task:
    start, stop = (0, 4) if side == "gpu" else (4, 8)
    return Task(side, node, "channel", start, stop, "", wait_for)


class NoOtherOps:
    name = "none"

    def op_us(self, graph: Graph, node: Node) -> float:
        raise AssertionError(f"{node.name} is split")


# (side, node, what it waits for) -> (start, end), microseconds.
BOTH_SPLIT = [
    (("gpu", "A", 0), (0, 100)),
    (("cpu", "A", 0), (0, 80)),
    (("gpu", "B", 1), (100, 130)),  # the CPU's A and the hand-over end at 90, before the GPU's own A
    (("cpu", "B", 1), (110, 160)),  # the GPU's A ends at 100, the hand-over at 110
]
IN_TURN = [(("gpu", "A", 0), (0, 100)), (("cpu", "B", 1), (110, 160))]


@pytest.mark.parametrize("schedule", [BOTH_SPLIT, IN_TURN], ids=["both split", "in turn"])
def test_spans(schedule: list[Any]) -> None:
    made = plan(*(task(*given) for given, _ in schedule))
    spans = predicted_spans(graph(), made, NoOtherOps())
    assert [(s.start_us, s.end_us) for s in spans] == [times for _, times in schedule]


def test_chrome_trace() -> None:
    made = plan(*(task(*given) for given, _ in IN_TURN))
    events = chrome_trace(made, predicted_spans(graph(), made, NoOtherOps()))["traceEvents"]
    timed = [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events if e["ph"] == "X"]
    assert timed == [("A", 0, 100, 1), ("wait", 0, 110, 0), ("B", 110, 50, 0)]
    assert {e["tid"]: e["args"]["name"].split()[0] for e in events if e["ph"] == "M"} == {0: "CPU", 1: "GPU"}
