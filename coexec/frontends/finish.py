"""From the fused program to a checked Graph: drop what nothing needs, choose layouts, copy where they clash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from coexec.frontends.program import Program
from coexec.graph import Graph, Node, Tensor, assign_layouts
from coexec.layout import Layout
from coexec.ops.base import ArraySpec
from coexec.ops.linear import Linear
from coexec.ops.reference_op import ReferenceOp
from coexec.ops.relayout import Relayout


def finish(program: Program, name: str) -> Graph:
    """The Graph of a program, checked."""
    nodes = _live(program)
    nodes, specs = _separate_rows(nodes, program)
    layouts = assign_layouts(_used_specs(specs, nodes, program.inputs), nodes)
    graph = Graph(
        name=name,
        nodes=tuple(nodes),
        tensors={key: Tensor(key, specs[key].shape, specs[key].dtype, layout) for key, layout in layouts.items()},
        constants={key: program.constants[key] for node in nodes for key in node.inputs if key in program.constants},
        inputs=program.inputs,
        outputs=program.outputs,
        notes=_notes(nodes),
    )
    graph.check()
    return graph


def _live(program: Program) -> list[Node]:
    """The nodes that some output depends on."""
    needed, live = set(program.outputs), []
    for node in reversed(list(program.nodes())):
        if needed.intersection(node.outputs):
            live.append(node)
            needed.update(node.inputs)
    return live[::-1]


def _used_specs(specs: dict[str, ArraySpec], nodes: Iterable[Node], inputs: Iterable[str]) -> dict[str, ArraySpec]:
    made = [name for node in nodes for name in node.outputs if name]
    return {name: specs[name] for name in (*inputs, *made)}


def _separate_rows(nodes: list[Node], program: Program) -> tuple[list[Node], dict[str, ArraySpec]]:
    """Copy nodes around each Linear whose tensors others want channels last.

    A Linear sees its tensors as a matrix whose rows are the innermost axis; with channels last that would
    need a copy, which is made explicit here so that it is planned, timed and seen.
    """
    layouts = assign_layouts(program.specs, nodes)
    specs, placed, copies = dict(program.specs), [], {}

    def rows(name: str) -> str:
        """The name of ``name``'s row-major twin."""
        twin = f"{name}:rows"
        while twin in specs or twin in program.constants:
            twin += "'"
        specs[twin] = specs[name]
        return twin

    def clashes(name: str) -> bool:
        return name in layouts and layouts[name] != Layout.plain(len(specs[name].shape))

    for node in nodes:
        if not isinstance(node.op, Linear):
            placed.append(node)
            continue
        inputs = list(node.inputs)
        for port, name in enumerate(inputs):
            if not clashes(name):
                continue
            if name not in copies:
                copies[name] = rows(name)
                placed.append(Node(f"Relayout:{copies[name]}", Relayout(), (name,), (copies[name],)))
            inputs[port] = copies[name]
        output = node.outputs[0]
        target = rows(output) if clashes(output) else output
        placed.append(Node(node.name, node.op, tuple(inputs), (target,)))
        if target != output:
            copies[output] = target
            placed.append(Node(f"Relayout:{output}", Relayout(), (target,), (output,)))
    return placed, specs


def _notes(nodes: Iterable[Node]) -> tuple[str, ...]:
    counts = Counter(node.op.op_type for node in nodes if isinstance(node.op, ReferenceOp))
    if not counts:
        return ()
    listed = ", ".join(f"{op} x{count}" for op, count in sorted(counts.items()))
    return (f"run by ONNX's reference implementation, slow: {listed}",)
