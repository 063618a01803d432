"""Which side runs what is not split, on devices whose costs are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from random_networks import TRAITS
from random_ops import F4

from coexec.costs import OpCosts
from coexec.graph import Graph, Node, Tensor
from coexec.kernels.variant import GpuTraits
from coexec.layout import Layout
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.base import DeviceOp, Op
from coexec.ops.concat import Concat
from coexec.ops.conv2d import Conv2d
from coexec.ops.identity import Identity
from coexec.ops.pool import Pool
from coexec.ops.window import Window
from coexec.plan import Side
from coexec.planner import Choice, Resources, Step, place_others

SHAPE = (1, 4, 6, 6)
CONV = Conv2d(1, 4, 6, 6, 4, 1, 1)
POOL = Pool("max", Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))
RELU = Activate(Activation("relu"))
OPS: dict[str, Op] = {"conv": CONV, "pool": POOL, "relu": RELU, "same": Identity()}
CUTS = {"cpu": 0, "both": 2, "gpu": 4}
USE = Resources("sim:0", "simulated", TRAITS, cpu_threads=1)


@dataclass(frozen=True)
class Fixed:
    """Every op that is not split takes the same time on either side."""

    cpu: float
    gpu: float
    hand_over: float
    name: str = "fixed"

    def op_us(self, graph: Graph, node: Node) -> float:
        return self.cpu

    def kernel_us(self, op: DeviceOp, traits: GpuTraits) -> float:
        return self.gpu

    def sync_us(self) -> float:
        return self.hand_over

    def slowdown(self) -> float:
        raise AssertionError("nothing is split here")

    def turn_us(self) -> float:
        raise AssertionError("layers may be split here")


def chain(text: str) -> tuple[Graph, dict[str, Choice]]:
    """Ops one after another: "conv@gpu pool" is a layer that the GPU runs alone, then a pool, p1."""
    nodes, choices, constants = [], {}, {"w": np.zeros((4, 4, 1, 1), np.float32)}
    for i, word in enumerate(text.split()):
        kind, _, side = word.partition("@")
        inputs = (f"t{i}", "w") if kind == "conv" else (f"t{i}",)
        nodes.append(Node(f"{kind[0]}{i}", OPS[kind], inputs, (f"t{i + 1}",)))
        if side:
            choices[f"{kind[0]}{i}"] = Choice("channel", CUTS[side])
    names = [f"t{i}" for i in range(len(nodes) + 1)]
    tensors = {name: Tensor(name, SHAPE, F4, Layout.channels_last(4)) for name in names}
    return Graph("chain", tuple(nodes), tensors, constants, ("t0",), (names[-1],)), choices


def sides(text: str, costs: OpCosts | None, use: Resources = USE) -> str:
    """Sides of the ops that have work and are not split, in order."""
    graph, choices = chain(text)
    placed = place_others(graph, choices, costs, use)
    working = [n.name for n in graph.nodes if n.name not in choices and n.name not in graph.placement.free]
    assert list(placed) == working
    if costs is not None:
        own = {"cpu": costs.op_us(graph, graph.nodes[0]), "gpu": costs.kernel_us(CONV, TRAITS)}
        assert all(step.option.us == own[side_of(step)] for step in placed.values())
    return " ".join(side_of(step) for step in placed.values())


def side_of(step: Step) -> Side:
    (side,) = step.option.sides
    return side


CASES: Sequence[tuple[str, OpCosts | None, str]] = [
    # The cheaper side where nothing has to be handed over.
    ("pool", Fixed(cpu=5, gpu=4, hand_over=100), "gpu"),
    ("pool", Fixed(cpu=4, gpu=5, hand_over=100), "cpu"),
    ("conv@both pool conv@both", Fixed(cpu=5, gpu=4, hand_over=100), "gpu"),
    ("conv@both pool conv@both", Fixed(cpu=4, gpu=5, hand_over=100), "cpu"),
    # To the other side and back are two hand-overs, one where the network begins or ends.
    ("conv@cpu pool conv@cpu", Fixed(cpu=10, gpu=3, hand_over=3), "gpu"),
    ("conv@cpu pool conv@cpu", Fixed(cpu=10, gpu=3, hand_over=4), "cpu"),
    ("conv@cpu pool", Fixed(cpu=10, gpu=3, hand_over=4), "gpu"),
    ("pool conv@cpu", Fixed(cpu=10, gpu=3, hand_over=8), "cpu"),
    ("conv@gpu pool conv@gpu", Fixed(cpu=3, gpu=10, hand_over=3), "cpu"),
    ("conv@gpu pool conv@gpu", Fixed(cpu=3, gpu=10, hand_over=4), "gpu"),
    ("conv@gpu pool conv@cpu", Fixed(cpu=3, gpu=4, hand_over=50), "cpu"),
    # A chain stays where it began, unless all of it together pays for the hand-over.
    ("conv@gpu pool pool pool", Fixed(cpu=3, gpu=4, hand_over=4), "gpu gpu gpu"),
    ("conv@gpu pool pool pool", Fixed(cpu=3, gpu=4, hand_over=2), "cpu cpu cpu"),
    ("conv@cpu pool pool pool", Fixed(cpu=4, gpu=3, hand_over=4), "cpu cpu cpu"),
    ("conv@cpu pool pool pool", Fixed(cpu=6, gpu=3, hand_over=2), "gpu gpu gpu"),
    # What no kernel computes is the CPU side's, and counts for its neighbours.
    ("conv@gpu relu conv@gpu", Fixed(cpu=100, gpu=1, hand_over=50), "cpu"),
    ("relu pool conv@both", Fixed(cpu=4, gpu=3, hand_over=2), "cpu cpu"),
    # What has no work passes on what it is given, and what is wanted of it.
    ("conv@gpu same pool", Fixed(cpu=3, gpu=4, hand_over=2), "gpu"),
    ("conv@cpu same same pool", Fixed(cpu=4, gpu=3, hand_over=2), "cpu"),
    ("pool same same conv@cpu", Fixed(cpu=4, gpu=3, hand_over=2), "cpu"),
    ("pool same conv@gpu", Fixed(cpu=3, gpu=4, hand_over=2), "gpu"),
    # Without costs, fewer hand-overs.
    ("conv@cpu pool conv@cpu", None, "cpu"),
    ("conv@gpu pool conv@gpu", None, "gpu"),
    ("conv@gpu pool pool same pool", None, "gpu gpu gpu"),
]


@pytest.mark.parametrize(("text", "costs", "expected"), CASES, ids=str)
def test_sides(text: str, costs: OpCosts | None, expected: str) -> None:
    assert sides(text, costs) == expected


def test_without_a_device_all_is_the_cpu_side() -> None:
    use = replace(USE, device="", traits=None)
    assert sides("conv@cpu pool pool", Fixed(cpu=100, gpu=1, hand_over=0), use) == "cpu cpu"


@pytest.mark.parametrize(
    ("first", "second", "expected"), [("cpu", "gpu", "gpu"), ("gpu", "gpu", "gpu"), ("cpu", "cpu", "cpu")]
)
def test_a_join_without_work_lies_on_the_sides_of_its_parts(first: str, second: str, expected: str) -> None:
    """A pool of both sides' results has a hand-over either way, so that its own time decides."""
    names = ("x", "a", "b")
    tensors = {name: Tensor(name, SHAPE, F4, Layout.channels_last(4)) for name in names}
    tensors |= {name: Tensor(name, (1, 8, 6, 6), F4, Layout.channels_last(4)) for name in ("j", "y")}
    nodes = (
        Node("first", CONV, ("x", "w"), ("a",)),
        Node("second", CONV, ("x", "w"), ("b",)),
        Node("join", Concat(1), ("a", "b"), ("j",)),
        Node("pool", POOL, ("j",), ("y",)),
    )
    graph = Graph("join", nodes, tensors, {"w": np.zeros((4, 4, 1, 1), np.float32)}, ("x",), ("y",))
    choices = {"first": Choice("channel", CUTS[first]), "second": Choice("channel", CUTS[second])}
    placed = place_others(graph, choices, Fixed(cpu=5, gpu=4, hand_over=3), USE)
    assert {name: side_of(step) for name, step in placed.items()} == {"pool": expected}
