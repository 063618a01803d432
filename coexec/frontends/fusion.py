"""Fuses layers: what follows a convolution or matrix product becomes part of it.

Conv2d and Linear compute activation(product + bias + residual). RULES bring a network into that form;
each is a pure function of a node and its surroundings. A tensor vanishes only if exactly one node reads
it and the model does not give it out; those that remain are the graph's tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coexec.frontends.attention import fuse_attention
from coexec.frontends.patterns import function, gated_activation
from coexec.frontends.program import Program, Rewrite, Rule
from coexec.graph import Node
from coexec.layout import Array
from coexec.ops.activate import Activate
from coexec.ops.activation import Activation
from coexec.ops.batch_norm import BatchNorm
from coexec.ops.conv2d import Conv2d
from coexec.ops.gather import Gather, Pick
from coexec.ops.linear import Linear

NONE = Activation()


def fuse(program: Program) -> None:
    """Apply all rules to the program, in place."""
    with np.errstate(all="ignore"):  # overflow in a model's own constants is no news here
        program.fuse(RULES)


# What can take other nodes in ------------------------------------------------------------------------


@dataclass(frozen=True)
class Taker:
    """A Conv2d or Linear with constant weights and no activation yet: it can take something in."""

    node: Node
    op: Conv2d | Linear

    def with_ports(self, op: Conv2d | Linear, ports: dict[int, str], outputs: tuple[str, ...]) -> Node:
        """The node with another op, some inputs exchanged (1 weight, 2 bias, 3 residual), other outputs."""
        inputs = [*self.node.inputs, "", "", ""][:4]
        for port, name in ports.items():
            inputs[port] = name
        while not inputs[-1]:
            inputs.pop()
        return Node(self.node.name, op, tuple(inputs), outputs)


def _taker(name: str, program: Program) -> Taker | None:
    """The layer that makes ``name``, if it can take in the only node that reads it."""
    node = program.private_maker(name)
    if node is None or not isinstance(node.op, (Conv2d, Linear)) or node.op.activation != NONE:
        return None
    constant = all(port in program.constants for port in node.inputs[1:3] if port)
    return Taker(node, node.op) if constant else None


# scale * x + shift per channel -----------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """scale * source + shift, float64 per channel; None stands for 1 and 0."""

    source: str
    scale: Array | None
    shift: Array | None


def _per_channel(name: str, program: Program, source: str, axis: int) -> Array | None:
    """A constant as one value per channel of ``source`` (its axis ``axis``), if it is that."""
    value, shape = program.constants.get(name), program.specs[source].shape
    if value is None or value.dtype.kind != "f" or value.ndim > len(shape):
        return None
    aligned = (1,) * (len(shape) - value.ndim) + value.shape
    if any(size != 1 for i, size in enumerate(aligned) if i != axis) or aligned[axis] not in (1, shape[axis]):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (shape[axis],))


def _batch_norm(node: Node, source: str, axis: int, program: Program) -> Affine | None:
    assert isinstance(node.op, BatchNorm)
    values = [program.constants.get(name) for name in node.inputs[1:5]]
    if axis != 1 or node.op.training or any(value is None for value in values):
        return None
    gamma, beta, mean, variance = (np.asarray(value, np.float64) for value in values)
    scale = gamma / np.sqrt(variance + node.op.epsilon)
    shift = beta - mean * scale
    # A negative variance is the model's own fault, which must not spread to the weights.
    return Affine(source, scale, shift) if np.isfinite(scale + shift).all() else None


Combine = Callable[[Array], "tuple[Array | None, Array | None]"]
COMBINE: dict[tuple[str, int], Combine] = {
    # (function, position of the source among its inputs) -> scale and shift made of the constant
    ("add", 0): lambda c: (None, c),
    ("add", 1): lambda c: (None, c),
    ("sub", 0): lambda c: (None, -c),
    ("sub", 1): lambda c: (-np.ones_like(c), c),
    ("mul", 0): lambda c: (c, None),
    ("mul", 1): lambda c: (c, None),
    ("div", 0): lambda c: (1 / c, None) if c.all() else (None, None),
}


def _affine(node: Node, port: int, axis: int, program: Program) -> Affine | None:
    """The node as an affine map of its input ``port``."""
    source = node.inputs[port]
    if isinstance(node.op, BatchNorm):
        return _batch_norm(node, source, axis, program) if port == 0 else None
    combine = COMBINE.get((function(node), port))
    if combine is None or len(node.inputs) != 2 or program.specs[source] != program.specs[node.outputs[0]]:
        return None
    constant = _per_channel(node.inputs[1 - port], program, source, axis)
    if constant is None:
        return None
    scale, shift = combine(constant)
    return None if scale is None and shift is None else Affine(source, scale, shift)


def fold_affine(node: Node, program: Program) -> Rewrite | None:
    """BatchNormalization, or Add, Sub, Mul, Div by constants per channel, into the layer before it."""
    for port, name in enumerate(node.inputs[:2]):
        before = _taker(name, program)
        if before is None:
            continue
        axis = 1 if isinstance(before.op, Conv2d) else len(program.specs[name].shape) - 1
        affine = _affine(node, port, axis, program)
        if affine is not None and not (before.op.residual and affine.scale is not None):
            return _absorb(before, node, affine, program)
    return None


def _absorb(before: Taker, node: Node, affine: Affine, program: Program) -> Rewrite:
    """Weights and bias of ``before`` with the affine map worked in, computed in float64."""
    op, inputs, name = before.op, before.node.inputs, before.node.name
    weight = program.constants[inputs[1]]
    has_bias = len(inputs) > 2 and inputs[2] != ""
    bias = program.constants[inputs[2]].astype(np.float64) if has_bias else np.zeros(())
    ports: dict[int, str] = {}
    constants: dict[str, Array] = {}
    if affine.scale is not None:
        scale = affine.scale.reshape(-1, 1, 1, 1) if isinstance(op, Conv2d) else affine.scale
        ports[1] = program.fresh(f"{name}:weight")
        constants[ports[1]] = (weight * scale).astype(weight.dtype)
        bias = bias * affine.scale
    if affine.shift is not None or has_bias:
        shift = 0 if affine.shift is None else affine.shift
        ports[2] = program.fresh(f"{name}:bias")
        constants[ports[2]] = np.asarray(bias + shift, weight.dtype)
        op = replace(op, bias=True)
    return Rewrite((before.node, node), before.with_ports(op, ports, node.outputs), constants)


def fold_affine_into_norm(node: Node, program: Program) -> Rewrite | None:
    """Mul or Add by constants per channel into the BatchNormalization before it (Caffe's Scale layer)."""
    for port, name in enumerate(node.inputs[:2]):
        before = program.private_maker(name)
        if before is None or not isinstance(before.op, BatchNorm) or before.op.training:
            continue
        gamma, beta = (program.constants.get(n) for n in before.inputs[1:3])
        affine = _affine(node, port, 1, program)
        if affine is None or gamma is None or beta is None:
            continue
        scale = 1.0 if affine.scale is None else affine.scale
        shift = 0.0 if affine.shift is None else affine.shift
        names = [program.fresh(f"{before.name}:{part}") for part in ("scale", "bias")]
        values = [(gamma * scale).astype(gamma.dtype), (beta * scale + shift).astype(beta.dtype)]
        inputs = (before.inputs[0], *names, *before.inputs[3:])
        fused = Node(before.name, before.op, inputs, node.outputs)
        return Rewrite((before, node), fused, dict(zip(names, values, strict=True)))
    return None


# Residual and activation -----------------------------------------------------------------------------


def fuse_residual(node: Node, program: Program) -> Rewrite | None:
    """Add of two tensors of one shape into the product among them that comes later in the order."""
    if function(node) not in ("add", "sum") or len(node.inputs) != 2:
        return None
    spec = program.specs[node.outputs[0]]
    if any(program.specs.get(name) != spec for name in node.inputs):
        return None
    found = ((_taker(name, program), other) for name, other in (node.inputs, node.inputs[::-1]))
    candidates = [(taker, other) for taker, other in found if taker is not None and not taker.op.residual]
    if not candidates:
        return None
    before, other = max(candidates, key=lambda c: program.place(c[0].node))
    op = replace(before.op, residual=True)
    return Rewrite((before.node, node), before.with_ports(op, {3: other}, node.outputs))


def fuse_activation(node: Node, program: Program) -> Rewrite | None:
    """An activation into the layer before it."""
    before = _taker(node.inputs[0], program) if isinstance(node.op, Activate) else None
    if before is None:
        return None
    assert isinstance(node.op, Activate)
    op = replace(before.op, activation=node.op.activation)
    return Rewrite((before.node, node), before.with_ports(op, {}, node.outputs))


def pick_known_index(node: Node, program: Program) -> Rewrite | None:
    """Gather at one index that is a constant: nothing but a view."""
    if not isinstance(node.op, Gather) or node.inputs[1] not in program.constants:
        return None
    index, size = program.constants[node.inputs[1]], program.specs.get(node.inputs[0])
    if index.ndim or size is None:
        return None
    length = size.shape[node.op.axis]
    if not -length <= int(index) < length:
        return None  # the run says so
    picked = Pick(node.op.axis, int(index) % length)
    return Rewrite((node,), Node(node.name, picked, node.inputs[:1], node.outputs))


RULES: tuple[Rule, ...] = (
    gated_activation,
    fold_affine,
    fold_affine_into_norm,
    fuse_residual,
    fold_affine,  # a bias that comes after the residual
    fuse_activation,
    fuse_attention,
    pick_known_index,
)
