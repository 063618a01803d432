"""GPU side: kernels with their packed weights and arguments, tried before they are trusted."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from coexec.graph import Node
from coexec.kernel_trial import Trial
from coexec.launch import launch as launches_of
from coexec.plan import Task
from coexec.sync import Launch, Sync
from coexec.tensors import Tensors


@dataclass(frozen=True)
class BoundKernel:
    """A part's program with all arguments but those of the run's numbering."""

    program: Any
    name: str
    arguments: list[Any]
    global_size: tuple[int, ...]

    def launch(self, sync: Sync, number: int, wait_for: int) -> Launch:
        """The ``number``-th launch of a run."""
        import pyopencl as cl

        kernel = cl.Kernel(self.program, self.name)
        launch = Launch(kernel, self.global_size, number, wait_for)
        # Not set_args: pyopencl generates code for it, and keeps that in a database on disk.
        for index, argument in enumerate([*self.arguments, *sync.control_arguments(launch)]):
            kernel.set_arg(index, argument)
        return launch


class KernelBinder:
    """Binds tasks of the GPU side; parts that were bound before are kept."""

    def __init__(self, tensors: Tensors, sync: Sync) -> None:
        self._tensors, self._sync = tensors, sync
        self._nodes: dict[str, Node] = {node.name: node for node in tensors.graph.nodes}
        self._bound: dict[tuple[Any, ...], BoundKernel] = {}

    def launch(self, task: Task, number: int) -> Launch:
        """The task as the ``number``-th launch of a run; DeviceError if no kernel does it right."""
        key = (task.node, task.axis, task.start, task.stop, task.implementation)
        if key not in self._bound:
            self._bound[key] = self._trusted(task)
        return self._bound[key].launch(self._sync, number, task.wait_for)

    def _trusted(self, task: Task) -> BoundKernel:
        """The task's kernel, or another of its kind if that one is known or found to be wrong on this device."""
        session, wanted = self._sync.session, task.implementation or None
        while True:
            bound = self._pack(task, wanted if wanted not in session.failed else None)
            problem = self._problem(task, bound)
            if problem is None:
                return bound
            session.failed[bound.name] = problem
            warnings.warn(
                f"{session.info.id}: kernel {bound.name} gives wrong numbers ({problem}) and is not used", stacklevel=2
            )

    def _problem(self, task: Task, bound: BoundKernel) -> str | None:
        """What is wrong with a kernel that was not tried before."""
        session, tensors = self._sync.session, self._tensors
        if bound.program in session.trusted:
            return None
        node, (op, arrays, output) = self._nodes[task.node], tensors.part(task)
        fed = [tensors.view(name) for name in node.inputs if name in tensors.graph.inputs]
        kept = [view.copy() for view in fed]
        trial = Trial(op, arrays, output)
        trial.fill()
        inputs = [
            (tensors.memory(node.inputs[port]), array)
            for port, array in enumerate(arrays)
            if array is not None and port not in op.constants
        ]
        self._sync.try_out(bound.launch(self._sync, 1, 0), inputs, (tensors.memory(node.outputs[0]), output))
        problem = trial.problem()
        for view, content in zip(fed, kept, strict=True):
            view[...] = content
        if problem is None:
            session.trusted.add(bound.program)
        return problem

    def _pack(self, task: Task, implementation: str | None) -> BoundKernel:
        session, tensors, node = self._sync.session, self._tensors, self._nodes[task.node]
        op, arrays, output = tensors.part(task)
        variant, tile = launches_of(op.kind, op.columns(), session.traits, implementation, session.failed).one()
        arguments = variant.arguments(
            op,
            tile,
            [
                None if array is None or port in op.constants else tensors.placed(node.inputs[port], array)
                for port, array in enumerate(arrays)
            ],
            [self._sync.constant(array) for array in variant.pack(op, tile, arrays)],
            tensors.placed(node.outputs[0], output),
            session.scratch(tile.scratch_bytes),
        )
        options = {**variant.options(op, tile), "COEXEC_SYNC": int(self._sync.in_kernel)}
        program = session.build(variant.name, options)
        return BoundKernel(program, variant.name, [_typed(a) for a in arguments], tile.global_size)


def _typed(argument: Any) -> Any:
    if isinstance(argument, bool | int | np.integer):
        return np.int32(argument)
    if isinstance(argument, float):
        return np.float32(argument)
    return argument
