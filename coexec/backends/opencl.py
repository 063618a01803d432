"""Kernels with their packed weights and arguments, tried before they are trusted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from coexec.device import Session
from coexec.graph import Node
from coexec.kernel_trial import Trial
from coexec.kernels.variant import Placed
from coexec.launch import launch as launches_of
from coexec.layout import Array
from coexec.plan import Task
from coexec.sync import Launch, Memory
from coexec.sync.base import Region
from coexec.tensors import Tensors


class Target(Protocol):
    """Where kernels run: an open device, and how they reach memory there. `Sync` says what the methods do."""

    @property
    def session(self) -> Session: ...

    @property
    def in_kernel(self) -> bool: ...

    def argument(self, memory: Memory) -> Any: ...

    def constant(self, array: Array) -> Any: ...

    def control_arguments(self, launch: Launch) -> list[Any]: ...

    def try_out(self, launch: Launch, inputs: Sequence[Region], output: Region) -> None: ...


@dataclass(frozen=True)
class BoundKernel:
    """A part's program with all arguments but those of the run's numbering."""

    program: Any
    name: str
    arguments: list[Any]
    global_size: tuple[int, ...]

    def launch(self, target: Target, number: int = 1, wait_for: int = 0) -> Launch:
        """The ``number``-th launch of a run."""
        import pyopencl as cl

        kernel = cl.Kernel(self.program, self.name)
        launch = Launch(kernel, self.global_size, number, wait_for)
        # Not set_args: pyopencl generates code for it, and keeps that in a database on disk.
        for index, argument in enumerate([*self.arguments, *target.control_arguments(launch)]):
            kernel.set_arg(index, argument)
        return launch


class KernelBinder:
    """Binds tasks to kernels of one device; parts that were bound before are kept."""

    def __init__(self, tensors: Tensors, target: Target) -> None:
        self._tensors, self._target = tensors, target
        self._nodes: dict[str, Node] = {node.name: node for node in tensors.graph.nodes}
        self._bound: dict[tuple[Any, ...], BoundKernel] = {}

    def launch(self, task: Task, number: int = 1) -> Launch:
        """The task as the ``number``-th launch of a run; DeviceError if no kernel does it right."""
        key = (task.node, task.axis, task.start, task.stop, task.implementation)
        if key not in self._bound:
            self._bound[key] = self._trusted(task)
        return self._bound[key].launch(self._target, number, task.wait_for)

    def _trusted(self, task: Task) -> BoundKernel:
        """The task's kernel, or another of its kind if that one is known or found to be wrong on this device."""
        session, wanted = self._target.session, task.implementation or None
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
        session, tensors = self._target.session, self._tensors
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
        self._target.try_out(bound.launch(self._target), inputs, (tensors.memory(node.outputs[0]), output))
        problem = trial.problem()
        for view, content in zip(fed, kept, strict=True):
            view[...] = content
        if problem is None:
            session.trusted.add(bound.program)
        return problem

    def _pack(self, task: Task, implementation: str | None) -> BoundKernel:
        target, tensors, node = self._target, self._tensors, self._nodes[task.node]
        session = target.session

        def placed(name: str, array: Array) -> Placed:
            return tensors.placed(name, array, target.argument(tensors.memory(name)))

        op, arrays, output = tensors.part(task)
        variant, tile = launches_of(op.kind, op.columns(), session.traits, implementation, session.failed).one()
        arguments = variant.arguments(
            op,
            tile,
            [
                None if array is None or port in op.constants else placed(node.inputs[port], array)
                for port, array in enumerate(arrays)
            ],
            [target.constant(array) for array in variant.pack(op, tile, arrays)],
            placed(node.outputs[0], output),
            session.scratch(tile.scratch_bytes),
        )
        options = {**variant.options(op, tile), "COEXEC_SYNC": int(target.in_kernel)}
        program = session.build(variant.name, options)
        return BoundKernel(program, variant.name, [_typed(a) for a in arguments], tile.global_size)


def _typed(argument: Any) -> Any:
    if isinstance(argument, bool | int | np.integer):
        return np.int32(argument)
    if isinstance(argument, float):
        return np.float32(argument)
    return argument
