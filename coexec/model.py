"""A network that is ready to run: what ``partition`` and ``load`` return."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coexec.errors import InputError, PlanError
from coexec.executor import Executor, Span
from coexec.graph import Graph
from coexec.layout import Array, Shape
from coexec.ops.reference_op import ReferenceOp
from coexec.plan import Plan, check_plan

ONNX_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "float16",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
}


@dataclass(frozen=True)
class Port:
    """An input or output: its name, shape and ONNX type ("tensor(float)")."""

    name: str
    shape: Shape
    type: str


class Model:
    """Runs one network by one plan. Calls from several threads take turns.

    Attributes:
        graph: the network after folding and fusion.
        plan: what runs where; ``print(model.plan)`` shows it.
    """

    def __init__(self, graph: Graph, plan: Plan, executor: Executor) -> None:
        self.graph = graph
        self.executor = executor
        self._plan = plan
        self._slow = {node.name for node in graph.nodes if isinstance(node.op, ReferenceOp)}
        """Nodes that ONNX's reference evaluator runs, until the first run has told their share."""
        self._sync = executor.sync.name if executor.sync else ""
        executor.load(plan)

    def __repr__(self) -> str:
        return (
            f"<coexec.Model {self.graph.name} on {self._plan.resources_text}; {len(self._plan.layers)} planned layers>"
        )

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        """Run by another plan from now on; PlanError, and nothing changes, if it is not for what is open here."""
        if not isinstance(plan, Plan):
            raise InputError(f"a plan is a coexec Plan, not {type(plan).__name__}; Plan.load(path) reads a file")
        check_plan(plan, self.graph)
        for what, wanted, here in (
            ("device", plan.device, self._plan.device),
            ("device", plan.device_name, self._plan.device_name),
            ("compute units", plan.compute_units, self._plan.compute_units),
            ("CPU threads", plan.cpu_threads, self._plan.cpu_threads),
            ("sync", plan.sync or self._sync, self._sync),
        ):
            if wanted != here:
                raise PlanError(
                    f"the plan is for {what} {wanted!r}, this model is open with {here!r}; use coexec.load(model, plan)"
                )
        self.executor.load(plan)
        self._plan = plan

    def get_inputs(self) -> list[Port]:
        """Inputs in the order in which ``model(...)`` takes them."""
        return [_port(self.graph, name) for name in self.graph.inputs]

    def get_outputs(self) -> list[Port]:
        """Outputs in the order in which they are returned."""
        return [_port(self.graph, name) for name in self.graph.outputs]

    def run(self, output_names: Sequence[str] | None, feed: Mapping[str, Array]) -> list[Array]:
        """Run on ``feed`` (input name -> array of its exact dtype and shape).

        Returns the named outputs (all if None), as new arrays. Raises InputError for a wrong name, dtype
        or shape, DeviceError or SyncTimeout if the device fails.
        """
        if isinstance(output_names, str) or not isinstance(output_names, Sequence | None):
            raise InputError(f"output names are a list of names, or None for all, not {output_names!r}")
        if not isinstance(feed, Mapping):
            raise InputError(f"the inputs are a dict, name -> array, not {type(feed).__name__}")
        names = list(self.graph.outputs) if output_names is None else list(output_names)
        for name in names:
            if name not in self.graph.outputs:
                raise InputError(f"the model has no output {name!r}; its outputs are: {', '.join(self.graph.outputs)}")
        outputs = self._first_run(feed) if self._slow else self.executor.run(feed)
        return [outputs[name] for name in names]

    def __call__(self, *inputs: Array) -> Any:
        """Run on arrays in the order of ``get_inputs()``; one output is returned as it is, several as a list."""
        names = ", ".join(self.graph.inputs)
        if len(inputs) != len(self.graph.inputs):
            raise InputError(f"the model takes {len(self.graph.inputs)} inputs ({names}), not {len(inputs)}")
        if any(isinstance(value, Mapping) for value in inputs):
            raise InputError(f"call the model with arrays ({names}); model.run(None, {{name: array}}) takes a dict")
        outputs = self.run(None, dict(zip(self.graph.inputs, inputs, strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs

    def _first_run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run, and warn once of what the reference evaluator takes of the time."""
        spans: list[Span] = []
        outputs = self.executor.run(feed, spans)
        slow_us = sum(s.end_us - s.start_us for s in spans if s.node in self._slow)
        share = slow_us / max(spans[-1].end_us, 1e-9)
        warnings.warn(f"{self.graph.notes[0]}: {share:.0%} of the run's time", stacklevel=4)
        self._slow = set()
        return outputs


def _port(graph: Graph, name: str) -> Port:
    spec = graph.spec(name)
    assert spec is not None
    return Port(name, spec.shape, f"tensor({ONNX_TYPES.get(spec.dtype.name, spec.dtype.name)})")
