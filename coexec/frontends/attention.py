"""Attention that a model spells out: softmax(scale * q @ k) @ v becomes one Attention."""

from __future__ import annotations

from coexec.frontends.patterns import function, scalar
from coexec.frontends.program import Program, Rewrite
from coexec.graph import Node
from coexec.ops.attention import Attention
from coexec.ops.matmul import MatMul
from coexec.ops.softmax import Softmax


def fuse_attention(node: Node, program: Program) -> Rewrite | None:
    """MatMul of a Softmax over the last axis of a (scaled) MatMul, all of four axes with equal batch and heads."""
    if not isinstance(node.op, MatMul):
        return None
    weights = program.private_maker(node.inputs[0])
    if weights is None or not isinstance(weights.op, Softmax) or weights.op.log:
        return None
    scaled = _scaled(weights.inputs[0], program)
    if scaled is None:
        return None
    scale, scores, scaling = scaled
    names = (*scores.inputs, node.inputs[1])
    if any(name not in program.specs for name in names):  # a constant factor is a Linear's weight
        return None
    q, k, v = (program.specs[name].shape for name in names)
    if len(q) != 4 or len(k) != 4 or len(v) != 4 or not q[:2] == k[:2] == v[:2] or weights.op.axes != (3,):
        return None
    if 0 in (*q, *k, *v):  # a softmax over nothing
        return None
    op = Attention(B=q[0], H=q[1], T=q[2], S=k[3], D=q[3], E=v[3], scale=scale)
    return Rewrite((scores, *scaling, weights, node), Node(node.name, op, names, node.outputs))


def _scaled(name: str, program: Program) -> tuple[float, Node, tuple[Node, ...]] | None:
    """The MatMul that makes a tensor, the number by which its product was multiplied, and the nodes of that."""
    node = program.private_maker(name)
    if node is None:
        return None
    if isinstance(node.op, MatMul):
        return 1.0, node, ()
    if function(node) not in ("mul", "div"):
        return None
    for number, source in (node.inputs, node.inputs[::-1]):
        value, product = scalar(number, program), program.private_maker(source)
        if value and product is not None and isinstance(product.op, MatMul):
            if function(node) == "mul":
                return value, product, (node,)
            if source == node.inputs[0]:
                return 1 / value, product, (node,)
    return None
