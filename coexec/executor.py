"""Runs a plan: binds every task once to its arrays, then runs them, many times.

It knows tasks, not layers. The GPU side's tasks are launches on an in-order queue; the CPU side's are
routines that the calling thread runs, of NumPy or a kernel; either waits for the other only where its task says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import threadpoolctl

from coexec.backends.cpu import Scratch, variant_for
from coexec.backends.cpu_kernels import CpuKernelBinder, cpu_queue
from coexec.backends.opencl import KernelBinder
from coexec.device import Session, turns
from coexec.errors import DeviceError, InputError
from coexec.graph import Graph
from coexec.layout import Array, copy_into
from coexec.ops.base import SplitOp
from coexec.plan import Plan, Task, runs_kernel
from coexec.sync import Launch, Sync
from coexec.tensors import Tensors, host_memory
from coexec.transfers import add_copies


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

    Tensors are allocated once; intermediate ones share memory, unless ``keep_all`` wants every tensor of a run to
    be there after it. ``load`` takes a plan; plans and parts that were bound before are kept, so that
    changing between plans binds and packs nothing again.
    """

    def __init__(self, graph: Graph, sync: Sync | None, cpu_threads: int, keep_all: bool = False) -> None:
        self.graph = graph
        self.sync = sync
        self.cpu_threads = cpu_threads
        self._turn = threading.RLock()
        self.tensors = Tensors(graph, sync.allocate if sync else host_memory, keep_all)
        self._nodes = {node.name: node for node in graph.nodes}
        self._kernels = KernelBinder(self.tensors, sync) if sync else None
        self._cpu_kernels: CpuKernelBinder | None = None
        self._scratch = Scratch()
        self._routines: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._threads = threadpoolctl.ThreadpoolController()
        self._bound: dict[tuple[Task, ...], tuple[list[Step], list[Launch]]] = {}
        self._steps: list[Step] = []
        self._launches: list[Launch] = []

    @property
    def session(self) -> Session | None:
        return self.sync.session if self.sync else None

    def load(self, plan: Plan) -> None:
        """Make this the plan of the runs that follow."""
        with self._turn:
            if plan.cpu_device and self._cpu_kernels is None:
                self._cpu_kernels = CpuKernelBinder(self.tensors, cpu_queue(plan.cpu_device, self.cpu_threads))
        with self._turns():
            if plan.tasks not in self._bound:
                with self._threads.limit(limits=self.cpu_threads, user_api="blas"):
                    self._bound[plan.tasks] = self._bind(plan)
            self._steps, self._launches = self._bound[plan.tasks]

    def _bind(self, plan: Plan) -> tuple[list[Step], list[Launch]]:
        steps: list[Step] = []
        launches: list[Launch] = []
        cpu_count = 0
        for task in plan.tasks:
            if task.side == "gpu":
                if self._kernels is None:
                    raise DeviceError(f"the plan puts {task.node!r} on a GPU, but the model has no device")
                launch = self._kernels.launch(task, len(launches) + 1)
                launches.append(launch)
                steps.append(Step(task, launch.number, launch, None))
            else:
                cpu_count += 1
                steps.append(Step(task, cpu_count, None, self._bind_routine(task)))
            self.graph.let_go()  # both sides have packed copies of the weights
        if self.sync is not None and not self.sync.in_kernel:
            add_copies(self.tensors, [(step.task, step.launch) for step in steps])
        return steps, launches

    def run(self, feeds: Mapping[str, Array], record: list[Span] | None = None) -> dict[str, Array]:
        """Feed, run and return copies of the outputs. Checks names, dtypes and shapes (InputError).

        ``record`` gets a Span per CPU task.
        """
        check_feeds(self.graph, feeds)
        with self._turns():
            for name in self.graph.inputs:
                copy_into(self.tensors.view(name), feeds[name])
            self.run_loaded(record)
            return {name: self.tensors.result(name) for name in self.graph.outputs}

    def run_loaded(self, record: list[Span] | None = None) -> None:
        """Run on what is in the input tensors already. The outputs are left in their tensors."""
        # Asked before the calling thread is kept to its own cores, of which it counts only those.
        in_turn = self.sync is not None and self.sync.session.takes_turns(self.cpu_threads)
        with self._turns(), self._threads.limit(limits=self.cpu_threads, user_api="blas"), self._cores():
            sync = self.sync if self._launches else None
            if sync is None:
                self._run_steps(None, record)
                return
            sync.require_usable()
            try:
                sync.begin(self._launches, in_turn)
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

    @contextmanager
    def _turns(self) -> Iterator[None]:
        """Nothing else uses this executor or its devices while inside."""
        with self._turn, turns(self.session, self._cpu_kernels.queue.session if self._cpu_kernels else None):
            yield

    def _cores(self) -> AbstractContextManager[Any]:
        return self.sync.session.cores(self.cpu_threads) if self.sync and self._launches else nullcontext()

    def _bind_routine(self, task: Task) -> Callable[[], None]:
        key = (task.node, task.axis, task.start, task.stop, task.implementation)
        if key not in self._routines:
            node = self._nodes[task.node]
            if runs_kernel(task):
                if self._cpu_kernels is None:
                    raise DeviceError(f"the plan runs {task.node!r} by a kernel, but names no device for it")
                self._routines[key] = self._cpu_kernels.routine(task)
            elif self.graph.can_split(node):
                op, arrays, output = self.tensors.part(task)
                assert isinstance(op, SplitOp)
                variant = variant_for(op, task.implementation or None)
                self._routines[key] = variant.bind(op, arrays, output, self._scratch)
            else:
                inputs = [self.tensors.value(name) for name in node.inputs]
                outputs = [self.tensors.view(name) for name in node.outputs if name]
                self._routines[key] = partial(node.op.run, inputs, outputs)
        return self._routines[key]


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
