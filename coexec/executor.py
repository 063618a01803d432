"""Runs a plan: binds every task once to its arrays, then runs them, many times.

It knows tasks, not layers. The GPU side's tasks are launches on an in-order queue; the CPU side's are
routines on the calling thread; either waits for the other only where its task says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import threadpoolctl

from coexec.backends.cpu import Scratch, variant_for
from coexec.dependencies import boxes, overlap
from coexec.device import Session
from coexec.errors import DeviceError, InputError
from coexec.graph import Graph
from coexec.kernels.variant import Placed
from coexec.launch import launch as launches_of
from coexec.layout import Array
from coexec.ops.base import Box, SplitOp
from coexec.plan import Plan, Task
from coexec.sync import Launch, Memory, Sync


@dataclass(frozen=True)
class Step:
    """A bound task: a launch for the GPU side, or a routine for the CPU side."""

    task: Task
    number: int
    launch: Launch | None
    routine: Callable[[], None] | None


@dataclass(frozen=True)
class Span:
    """When a CPU task ran and how long it had waited before, in microseconds from the run's start."""

    node: str
    wait_us: float
    start_us: float
    end_us: float


class Executor:
    """One graph's memory and bound tasks on one session (None: CPU only).

    Tensors are allocated once. ``load`` takes a plan; plans and parts that were bound before are kept, so that
    changing between plans binds and packs nothing again.
    """

    def __init__(self, graph: Graph, sync: Sync | None, cpu_threads: int) -> None:
        self.graph = graph
        self.sync = sync
        self.cpu_threads = cpu_threads
        self._turn = sync.session.turn if sync else threading.RLock()
        self._nodes = {node.name: node for node in graph.nodes}
        self._memories: dict[str, Memory] = {}
        self._views: dict[str, Array] = {}
        for name, tensor in graph.tensors.items():
            memory = sync.allocate(tensor.nbytes) if sync else _host_memory(tensor.nbytes)
            self._memories[name] = memory
            typed = memory.host[: tensor.nbytes].view(tensor.dtype)
            self._views[name] = tensor.layout.view(typed, tensor.shape)
        self._scratch = Scratch()
        self._routines: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._kernels: dict[tuple[Any, ...], _BoundKernel] = {}
        self._threads = threadpoolctl.ThreadpoolController()
        self._bound: dict[tuple[Task, ...], tuple[list[Step], list[Launch]]] = {}
        self._steps: list[Step] = []
        self._launches: list[Launch] = []

    @property
    def session(self) -> Session | None:
        return self.sync.session if self.sync else None

    def view(self, name: str) -> Array:
        """The tensor's own memory, in logical order."""
        return self._views[name]

    def memory(self, name: str) -> Memory:
        """The allocation that holds the tensor, on the host and on the device."""
        return self._memories[name]

    def load(self, plan: Plan) -> None:
        """Make this the plan of the runs that follow."""
        with self._turn:
            if plan.tasks not in self._bound:
                self._bound[plan.tasks] = self._bind(plan)
            self._steps, self._launches = self._bound[plan.tasks]

    def _bind(self, plan: Plan) -> tuple[list[Step], list[Launch]]:
        steps: list[Step] = []
        launches: list[Launch] = []
        cpu_count = 0
        for task in plan.tasks:
            if task.side == "gpu":
                launch = self._bind_launch(task, len(launches) + 1)
                launches.append(launch)
                steps.append(Step(task, launch.number, launch, None))
            else:
                cpu_count += 1
                steps.append(Step(task, cpu_count, None, self._bind_routine(task)))
        if self.sync is not None and not self.sync.in_kernel:
            _add_copies(self.graph, steps, self._memories, self._views)
        return steps, launches

    def run(self, feeds: Mapping[str, Array], record: list[Span] | None = None) -> dict[str, Array]:
        """Feed, run and return copies of the outputs. Checks names, dtypes and shapes (InputError).

        ``record`` gets a Span per CPU task.
        """
        check_feeds(self.graph, feeds)
        with self._turn:
            for name in self.graph.inputs:
                np.copyto(self._views[name], feeds[name])
            self.run_loaded(record)
            return {name: self._output(name) for name in self.graph.outputs}

    def run_loaded(self, record: list[Span] | None = None) -> None:
        """Run on what is in the input tensors already. The outputs are left in their tensors."""
        with self._turn, self._threads.limit(limits=self.cpu_threads, user_api="blas"), self._cores():
            sync = self.sync if self._launches else None
            if sync is None:
                self._run_steps(None, record)
                return
            sync.require_usable()
            try:
                sync.begin(self._launches)
                self._run_steps(sync, record)
            except BaseException:
                sync.give_up(self)
                raise
            sync.end()

    def _run_steps(self, sync: Sync | None, record: list[Span] | None) -> None:
        clock = time.perf_counter
        begin = clock()
        for step in self._steps:
            if step.launch is not None:
                assert sync is not None
                sync.launch(step.launch)
                continue
            assert step.routine is not None
            arrived = clock()
            if step.task.wait_for:
                assert sync is not None
                sync.wait(step.task.wait_for)
            started = clock()
            step.routine()
            if sync is not None:
                sync.done(step.number)
            if record is not None:
                times = ((started - arrived) * 1e6, (started - begin) * 1e6, (clock() - begin) * 1e6)
                record.append(Span(step.task.node, *times))
        if sync is not None:
            sync.wait(len(self._launches))

    def _cores(self) -> AbstractContextManager[Any]:
        return self.sync.session.cores(self.cpu_threads) if self.sync and self._launches else nullcontext()

    def _output(self, name: str) -> Array:
        if name in self._views:
            return np.array(self._views[name], order="C")
        return np.array(self.graph.constants[name])

    def _value(self, name: str) -> Array | None:
        if not name:
            return None
        return self._views[name] if name in self._views else self.graph.constants[name]

    def _part_arrays(self, task: Task) -> tuple[Any, list[Array | None], Array]:
        """The part's op and its canonical arrays."""
        node = self._nodes[task.node]
        op = node.op
        assert isinstance(op, SplitOp)
        output = self._views[node.outputs[0]]
        inputs, canonical_output = op.canonical([self._value(name) for name in node.inputs], output)
        part = op.part(task.axis, task.start, task.stop)
        arrays = [
            array if box is None or array is None else array[box]
            for array, box in zip(inputs, part.inputs, strict=True)
        ]
        return part.op, arrays, canonical_output[part.output]

    def _bind_routine(self, task: Task) -> Callable[[], None]:
        key = (task.node, task.axis, task.start, task.stop, task.implementation)
        if key not in self._routines:
            node = self._nodes[task.node]
            if self.graph.can_split(node):
                op, arrays, output = self._part_arrays(task)
                variant = variant_for(op, task.implementation or None)
                self._routines[key] = variant.bind(op, arrays, output, self._scratch)
            else:
                inputs = [self._value(name) for name in node.inputs]
                outputs = [self._views[name] for name in node.outputs if name]
                self._routines[key] = partial(node.op.run, inputs, outputs)
        return self._routines[key]

    def _bind_launch(self, task: Task, number: int) -> Launch:
        if self.sync is None:
            raise DeviceError(f"the plan puts {task.node!r} on a GPU, but the model was loaded without a device")
        key = (task.node, task.axis, task.start, task.stop, task.implementation)
        if key not in self._kernels:
            self._kernels[key] = self._pack(task)
        launch = self._kernels[key].launch(self.sync, number, task.wait_for)
        program = self._kernels[key].program
        if program not in self.sync.session.warm:
            self.sync.warm(launch)
            self.sync.session.warm.add(program)
        return launch

    def _pack(self, task: Task) -> _BoundKernel:
        assert self.sync is not None
        op, arrays, output = self._part_arrays(task)
        variant, tile = launches_of(op.kind, op.columns(), self.sync.session.traits, task.implementation or None).one()
        x, weight, bias, residual = arrays
        assert x is not None and weight is not None
        packed, padded_bias = variant.pack(op, tile, weight, bias)
        node = self._nodes[task.node]
        x_placed = self._place(node.inputs[0], x)
        y_placed = self._place(node.outputs[0], output)
        r_placed = y_placed if residual is None else self._place(node.inputs[3], residual)
        arguments = variant.arguments(
            op,
            tile,
            x_placed,
            self.sync.constant(packed),
            self.sync.constant(padded_bias),
            r_placed,
            y_placed,
        )
        options = {**variant.options(op, tile), "COEXEC_SYNC": int(self.sync.in_kernel)}
        program = self.sync.session.build(variant.name, options)
        return _BoundKernel(program, variant.name, [_typed(a) for a in arguments], tile.global_size)

    def _place(self, name: str, array: Array) -> Placed:
        memory = self._memories[name]
        size = array.itemsize
        assert array.shape[-1] <= 1 or array.strides[-1] == size, f"kernels read {name} with its channels side by side"
        offset = (int(array.ctypes.data) - memory.address) // size
        return Placed(memory.argument, offset, tuple(s // size for s in array.strides), array.shape)


@dataclass(frozen=True)
class _BoundKernel:
    """A part's program with all arguments but those of the run's numbering."""

    program: Any
    name: str
    arguments: list[Any]
    global_size: tuple[int, ...]

    def launch(self, sync: Sync, number: int, wait_for: int) -> Launch:
        import pyopencl as cl

        kernel = cl.Kernel(self.program, self.name)
        launch = Launch(kernel, self.global_size, number, wait_for)
        kernel.set_args(*self.arguments, *sync.control_arguments(launch))
        return launch


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> None:
    """Raise InputError unless ``feeds`` holds exactly the graph's inputs with their dtypes and shapes."""
    expected = ", ".join(graph.inputs)
    for name in feeds:
        if name not in graph.inputs:
            raise InputError(f"the model has no input {name!r}; its inputs are: {expected}")
    for name in graph.inputs:
        if name not in feeds:
            raise InputError(f"input {name!r} is missing; the model's inputs are: {expected}")
        tensor, value = graph.tensors[name], feeds[name]
        if not isinstance(value, np.ndarray):
            raise InputError(f"input {name!r} must be a NumPy array, not {type(value).__name__}")
        if value.dtype != tensor.dtype:
            raise InputError(f"input {name!r} must have dtype {tensor.dtype}, not {value.dtype}; use .astype()")
        if value.shape != tensor.shape:
            raise InputError(f"input {name!r} must have shape {tensor.shape}, not {value.shape}")


def _add_copies(graph: Graph, steps: list[Step], memories: Mapping[str, Memory], views: Mapping[str, Array]) -> None:
    """Give each launch the regions to copy in before and out after, where sides have separate memories."""
    nodes = {node.name: node for node in graph.nodes}
    host_only: dict[str, list[Box]] = {name: [_whole(graph, name)] for name in graph.inputs}
    read_by_host = {name for step in steps if step.launch is None for name in nodes[step.task.node].inputs} | set(
        graph.outputs
    )
    for step in steps:
        reads, writes = boxes(graph, nodes[step.task.node], step.task)
        if step.launch is None:
            for name, box in writes:
                host_only.setdefault(name, []).append(box)
            continue
        for name, box in reads:
            shape = graph.tensors[name].shape
            needed = [b for b in host_only.get(name, ()) if overlap(b, box, shape)]
            step.launch.uploads.extend((memories[name], views[name][b]) for b in needed)
            host_only[name] = [b for b in host_only.get(name, ()) if b not in needed]
        for name, box in writes:
            if name in read_by_host:
                step.launch.downloads.append((memories[name], views[name][box]))


def _whole(graph: Graph, name: str) -> Box:
    return (slice(None),) * len(graph.tensors[name].shape)


def _host_memory(nbytes: int) -> Memory:
    buffer = np.zeros(max(nbytes, 64) + 64, np.uint8)
    return Memory(buffer[-buffer.ctypes.data % 64 :], None)


def _typed(argument: Any) -> Any:
    if isinstance(argument, bool | int | np.integer):
        return np.int32(argument)
    if isinstance(argument, float):
        return np.float32(argument)
    return argument
