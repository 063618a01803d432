"""A network as coexec sees it: tensors with static shapes, nodes in execution order, constants."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array, Layout, Shape
from coexec.memory import Memory, lay_out
from coexec.ops.base import ArraySpec, DeviceOp, Op, SplitOp
from coexec.placement import Placement, place_tensors, works_on


@dataclass(frozen=True)
class Tensor:
    """A value that the run computes or is fed; constants are not tensors."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    layout: Layout

    @property
    def nbytes(self) -> int:
        return self.layout.size(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Node:
    """One layer. ``inputs`` name tensors or constants, "" is an absent optional input."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A checked, static network.

    Attributes:
        name: what the model calls itself.
        nodes: in an order in which every input exists before its use.
        tensors: name -> Tensor, of graph inputs and node outputs.
        constants: name -> array (weights and other fixed inputs), logical ONNX order.
        inputs, outputs: names, in the order in which users feed and receive them.
        notes: what users should know of it.
        let_go: gives memory of constants back, as far as they can be read again where they came from.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)
    let_go: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    def spec(self, name: str) -> ArraySpec | None:
        """Shape and dtype of a tensor or constant; None for an absent input."""
        if not name:
            return None
        if name in self.tensors:
            return ArraySpec(self.tensors[name].shape, self.tensors[name].dtype)
        constant = self.constants[name]
        return ArraySpec(constant.shape, constant.dtype)

    def input_shapes(self) -> dict[str, Shape]:
        """Shapes of the inputs, logical."""
        return {name: self.tensors[name].shape for name in self.inputs}

    def split_nodes(self) -> list[Node]:
        """The nodes that can be cut: a SplitOp in fp32 whose weights are constants, and only they.

        One with nothing to compute or to sum over (an axis of size 0) is left to the CPU side like any other op.
        """
        return [node for node in self.nodes if self.can_split(node)]

    def distinct_layers(self) -> dict[SplitOp, list[str]]:
        """The ops of the split nodes, each with the names of the nodes that have it."""
        distinct: dict[SplitOp, list[str]] = {}
        for node in self.split_nodes():
            assert isinstance(node.op, SplitOp)
            distinct.setdefault(node.op, []).append(node.name)
        return distinct

    def can_split(self, node: Node) -> bool:
        """Whether it is one of ``split_nodes``."""
        return isinstance(self.device_ops.get(node.name), SplitOp)

    @cached_property
    def device_ops(self) -> dict[str, DeviceOp]:
        """What kernels compute of the nodes that either side can run, by name of the node."""
        found = {}
        for node in self.nodes:
            op = self.kernel_op(node)
            if op is not None and works_on(self, node, op, self.placement.places):
                found[node.name] = op
        return found

    @cached_property
    def placement(self) -> Placement:
        """Which tensors share memory."""
        return place_tensors(self)

    @cached_property
    def memory(self) -> Memory:
        """Where its intermediate tensors lie in one block of memory."""
        return lay_out(self)

    def kernel_op(self, node: Node) -> DeviceOp | None:
        """What kernels would compute of a node: in fp32, of the constants and tensors that they expect."""
        specs = [self.spec(name) for name in node.inputs]
        known = [spec for spec in (*specs, *map(self.spec, node.outputs)) if spec is not None]
        if any(0 in spec.shape or spec.dtype != np.float32 for spec in known):
            return None
        op = node.op.for_device(specs)
        if op is None:
            return None
        held = {port: name in self.constants for port, name in enumerate(node.inputs) if name}
        return op if all(is_held == (port in op.constants) for port, is_held in held.items()) else None

    def signature(self) -> str:
        """Hash of structure, shapes and constants' shapes: tells whether a plan belongs to this model."""
        digest = hashlib.sha256()
        for node in self.nodes:
            specs = [self.spec(name) for name in node.inputs]
            shapes = [None if s is None else (s.shape, str(s.dtype)) for s in specs]
            digest.update(repr((node.name, repr(node.op), shapes, node.outputs)).encode())
        return digest.hexdigest()[:16]

    def check(self) -> None:
        """Raise ModelError unless names, order, shapes and dtypes fit together."""
        known = set(self.inputs) | set(self.constants)
        for node in self.nodes:
            missing = [name for name in node.inputs if name and name not in known]
            if missing:
                raise ModelError(f"node {node.name!r} reads {missing[0]!r}, which nothing before it makes")
            inferred = node.op.infer([self.spec(name) for name in node.inputs])
            for name, spec in zip(node.outputs, inferred, strict=False):
                if name and (self.tensors[name].shape != spec.shape or self.tensors[name].dtype != spec.dtype):
                    raise ModelError(
                        f"node {node.name!r}: {name!r} is {spec.dtype} {spec.shape} by its op, "
                        f"{self.tensors[name].dtype} {self.tensors[name].shape} in the graph"
                    )
            known.update(node.outputs)
        for name in self.outputs:
            if name not in known:
                raise ModelError(f"output {name!r} is made by no node")


def assign_layouts(specs: Mapping[str, ArraySpec], nodes: Iterable[Node]) -> dict[str, Layout]:
    """One layout per tensor: channels last where a spatial op reads or writes it, else row major.

    Elementwise ops spread the choice to what they are connected with, so that a chain of spatial and
    elementwise layers never converts; it is converted once, at the graph's edges.
    """
    nodes = list(nodes)
    group: dict[str, str] = {name: name for name in specs}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for node in nodes:
        if node.op.elementwise or node.op.spatial:
            names = [n for n in (*node.inputs, *node.outputs) if n in specs]
            same = [n for n in names if len(specs[n].shape) == len(specs[names[0]].shape)]
            for name in same[1:]:
                group[root(name)] = root(same[0])
    last = {root(n) for node in nodes if node.op.spatial for n in (*node.inputs, *node.outputs) if n in specs}
    return {
        name: Layout.channels_last(len(spec.shape)) if root(name) in last else Layout.plain(len(spec.shape))
        for name, spec in specs.items()
    }
