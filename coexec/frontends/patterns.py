"""Activations that a model spells out in several nodes: SiLU, HardSwish, GELU (erf and tanh forms).

All are products of x, a gate of x and a number, so a pattern is matched on the factors of a product,
whatever the order and the grouping of its multiplications and divisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from coexec.frontends.program import Program, Rewrite
from coexec.graph import Node
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.elementwise import Elementwise
from coexec.ops.unary import Unary

TOLERANCE = 1e-5
"""Relative; exporters round the constants of these formulas to float32 or to five digits."""


def function(node: Node | None) -> str:
    """Name of an elementwise node's function ("mul", "erf", "sigmoid", ...), "" for other nodes."""
    if node is None:
        return ""
    if isinstance(node.op, (Elementwise, Unary)):
        return node.op.function
    return node.op.activation.kind if isinstance(node.op, Activate) else ""


@dataclass(frozen=True)
class Product:
    """scale * product of ``factors`` (tensor names), and the nodes that compute it."""

    scale: float
    factors: tuple[str, ...]
    nodes: tuple[Node, ...] = ()


def scalar(name: str, program: Program) -> float | None:
    """The value of a constant that is one number of at most one axis, so that it never adds axes."""
    value = program.constants.get(name)
    if value is None or value.size != 1 or value.dtype.kind != "f":
        return None
    return float(value.reshape(-1)[0])


def product(name: str, program: Program, root: bool = False) -> Product:
    """Take a tensor apart into factors, as far as the tensors in between may vanish."""
    number = scalar(name, program)
    if number is not None:
        return Product(number, ())
    node = program.maker(name) if root else program.private_maker(name)
    whole = Product(1.0, (name,))
    if node is None or node.outputs != (name,):
        return whole
    if function(node) == "mul":
        a, b = (product(n, program) for n in node.inputs)
        return Product(a.scale * b.scale, a.factors + b.factors, (node, *a.nodes, *b.nodes))
    if function(node) == "div":
        divisor = scalar(node.inputs[1], program)
        if divisor:
            a = product(node.inputs[0], program)
            return Product(a.scale / divisor, a.factors, (node, *a.nodes))
    if function(node) == "pow":
        exponent = scalar(node.inputs[1], program)
        if exponent in (2.0, 3.0):
            a = product(node.inputs[0], program)
            return Product(a.scale**exponent, a.factors * int(exponent), (node, *a.nodes))
    return whole


def is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE)


@dataclass(frozen=True)
class Sum:
    """number + tensor, made by ``node``."""

    number: float
    tensor: str
    node: Node


def add_number(name: str, program: Program) -> Sum | None:
    """Whether a tensor that may vanish is a number plus a tensor."""
    node = program.private_maker(name)
    if node is None or function(node) != "add":
        return None
    for number, tensor in (node.inputs, node.inputs[::-1]):
        value = scalar(number, program)
        if value is not None and tensor not in program.constants:
            return Sum(value, tensor, node)
    return None


# Gates: tensor name, x, program -> (factor the gate carries, nodes it is made of), or None -----------

Gate = Callable[[str, str, Program], "tuple[float, tuple[Node, ...]] | None"]


def _sigmoid(name: str, x: str, program: Program) -> tuple[float, tuple[Node, ...]] | None:
    node = program.private_maker(name)
    if node is None or function(node) != "sigmoid" or node.inputs[0] != x:
        return None
    return 1.0, (node,)


def _hard_sigmoid(name: str, x: str, program: Program) -> tuple[float, tuple[Node, ...]] | None:
    """HardSigmoid(1/6, 1/2), or clip(x + 3, 0, 6), which is six times as large."""
    node = program.private_maker(name)
    if node is None:
        return None
    if isinstance(node.op, Unary) and node.op.function == "hard_sigmoid" and node.inputs[0] == x:
        return (1.0, (node,)) if is_close(node.op.alpha, 1 / 6) and is_close(node.op.beta, 0.5) else None
    if isinstance(node.op, Activate) and node.op.activation == Activation("clip", 0.0, 6.0):
        shifted = add_number(node.inputs[0], program)
        if shifted is not None and is_close(shifted.number, 3.0) and shifted.tensor == x:
            return 6.0, (node, shifted.node)
    return None


def _erf_gate(name: str, x: str, program: Program) -> tuple[float, tuple[Node, ...]] | None:
    """1 + erf(x / sqrt(2))."""
    total = add_number(name, program)
    if total is None or not is_close(total.number, 1.0):
        return None
    node = program.private_maker(total.tensor)
    if node is None or function(node) != "erf":
        return None
    inner = product(node.inputs[0], program)
    if inner.factors != (x,) or not is_close(inner.scale, 1 / math.sqrt(2)):
        return None
    return 1.0, (total.node, node, *inner.nodes)


def _tanh_gate(name: str, x: str, program: Program) -> tuple[float, tuple[Node, ...]] | None:
    """1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)), the bracket also as x * (1 + 0.044715 x^2)."""
    total = add_number(name, program)
    if total is None or not is_close(total.number, 1.0):
        return None
    node = program.private_maker(total.tensor)
    if node is None or function(node) != "tanh":
        return None
    inner = product(node.inputs[0], program)
    if not is_close(inner.scale, math.sqrt(2 / math.pi)):
        return None
    bracket = _cubic(inner.factors, x, program)
    return None if bracket is None else (1.0, (total.node, node, *inner.nodes, *bracket))


def _cubic(factors: tuple[str, ...], x: str, program: Program) -> tuple[Node, ...] | None:
    """Nodes of x + 0.044715 x^3, given its factors."""
    if len(factors) == 1:
        node = program.private_maker(factors[0])
        if node is None or function(node) != "add" or x not in node.inputs:
            return None
        other, power = node.inputs[1 - node.inputs.index(x)], 3
    elif len(factors) == 2 and x in factors:
        total = add_number(factors[1 - factors.index(x)], program)
        if total is None or not is_close(total.number, 1.0):
            return None
        node, other, power = total.node, total.tensor, 2
    else:
        return None
    term = product(other, program)
    fits = term.factors == (x,) * power and is_close(term.scale, 0.044715)
    return (node, *term.nodes) if fits else None


@dataclass(frozen=True)
class Gated:
    """scale * x * gate(x) is ``activation``."""

    activation: Activation
    gate: Gate
    scale: float


GATED = (
    Gated(Activation("silu"), _sigmoid, 1.0),
    Gated(Activation("hard_swish"), _hard_sigmoid, 1.0),
    Gated(Activation("gelu"), _erf_gate, 0.5),
    Gated(Activation("gelu_tanh"), _tanh_gate, 0.5),
)


def gated_activation(node: Node, program: Program) -> Rewrite | None:
    """x * gate(x) in several nodes -> one Activate."""
    if function(node) not in ("mul", "div"):
        return None
    whole = product(node.outputs[0], program, root=True)
    if len(whole.factors) != 2:
        return None
    spec = program.specs[node.outputs[0]]
    for x, gate in (whole.factors, whole.factors[::-1]):
        for form in GATED if program.specs.get(x) == spec else ():
            found = form.gate(gate, x, program)
            if found is not None and is_close(whole.scale * found[0], form.scale):
                fused = Node(node.name, Activate(form.activation), (x,), node.outputs)
                return Rewrite((*whole.nodes, *found[1]), fused)
    return None
