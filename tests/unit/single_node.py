"""ONNX models of one node for tests: built, run elsewhere, and run through coexec's converters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from coexec.api import partition
from coexec.errors import InputError, ModelError
from coexec.frontends.onnx_node import OnnxNode
from coexec.frontends.onnx_ops import convert
from coexec.layout import Array, Layout
from coexec.ops.base import ArraySpec
from coexec.ops.linear import Linear


@dataclass(frozen=True)
class Case:
    """One node with values for its inputs.

    ``constants``: positions of the inputs that the converter gets as constants. ``outputs``: how many,
    or their names ("" where absent). ``reference``: "ort", or "onnx" where onnxruntime lacks the op.
    """

    name: str
    op_type: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    constants: tuple[int, ...] = ()
    outputs: int | tuple[str, ...] = 1
    reference: str = "ort"
    rtol: float = 1e-5
    atol: float = 1e-6

    def __str__(self) -> str:
        return f"{self.op_type}-{self.name}-{self.opset}"

    def model(self) -> onnx.ModelProto:
        names = [f"x{i}" if x is not None else "" for i, x in enumerate(self.inputs)]
        outputs = [f"y{i}" for i in range(self.outputs)] if isinstance(self.outputs, int) else list(self.outputs)
        node = helper.make_node(self.op_type, names, outputs, name="tested", **self.attributes)
        fed = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, self.inputs, strict=True)
            if x is not None
        ]
        made = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
        graph = helper.make_graph([node], "one", fed, made)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def expected(self) -> list[Array]:
        """What another implementation computes, for the outputs that have names."""
        feed = {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None}
        if self.reference == "onnx":
            return [np.asarray(y) for y in ReferenceEvaluator(self.model()).run(None, feed)]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(self.model().SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feed))


def whole_model(case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The case as a model for load_onnx, its constants as initializers, and what to feed it."""
    model = case.model()
    types = {v.name: v.type for v in onnx.shape_inference.infer_shapes(model).graph.output}
    for value in model.graph.output:
        value.type.tensor_type.elem_type = types[value.name].tensor_type.elem_type or onnx.TensorProto.FLOAT
    constants = {f"x{i}": case.inputs[i] for i in case.constants if i < len(case.inputs)}
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in constants.items() if x is not None)
    feed = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None and i not in case.constants}
    return model, feed


def run_onnxruntime(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    """All outputs by onnxruntime, without its own rewriting of the graph."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))


def run_or_refuse(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | str:
    """All outputs by coexec on the CPU, or the one line with which it refuses the model or its values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return partition(model, device="cpu", cpu_threads=1).run(None, feed)
    except (ModelError, InputError) as error:
        assert "\n" not in str(error)
        return str(error)


def assert_like_others_or_refused(
    model: onnx.ModelProto, feed: Mapping[str, Array], rtol: float = 1e-4, atol: float = 1e-4
) -> None:
    """What coexec runs, onnxruntime runs with the same result, or ONNX's reference evaluator where it will not.

    Both refuse some inputs without elements; a result without elements needs no comparison.
    """
    outputs = run_or_refuse(model, feed)
    if isinstance(outputs, str):
        return
    try:
        expected = run_onnxruntime(model, feed)
    except Exception:  # onnxruntime documents no types for what it refuses
        if not any(y.size for y in outputs):
            return
        expected = [np.asarray(y) for y in ReferenceEvaluator(model).run(None, dict(feed))]
    assert_same(outputs, expected, rtol, atol)


def onnx_node(model: onnx.ModelProto, inputs: Sequence[Array | None], constants: Sequence[int]) -> OnnxNode:
    """The model's only node as converters get it; ``constants``: the inputs whose values they see."""
    (proto,) = model.graph.node
    known: list[Array | None] = [x if x is not None and index in constants else None for index, x in enumerate(inputs)]
    return OnnxNode(
        name=proto.name or f"{proto.op_type}_{proto.output[0]}",
        op_type=proto.op_type,
        domain=proto.domain,
        opset=next(o.version for o in model.opset_import if o.domain == proto.domain),
        attributes={a.name: _attribute(a) for a in proto.attribute},
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        specs=tuple(None if x is None else ArraySpec(x.shape, x.dtype) for x in inputs),
        constants=tuple(known),
        output_specs=(None,) * len(proto.output),
    )


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def run_node(node: OnnxNode, inputs: Sequence[Array | None], layout: str) -> list[Array]:
    """Convert and run on poisoned outputs; the outputs that have names, as the op wrote them.

    ``layout`` is one of LAYOUTS; what lies between and around the elements of an array must keep its bits.
    """
    converted = convert(node)
    values = {name: None if x is None else np.asarray(x) for name, x in zip(node.inputs, inputs, strict=True)}
    arrays = [values[s] if isinstance(s, str) and s else None if isinstance(s, str) else s for s in converted.inputs]
    specs = converted.op.infer([None if a is None else ArraySpec(a.shape, a.dtype) for a in arrays])
    # A Linear's rows are the leading axes together.
    place = LAYOUTS["rows apart" if layout != "row major" and isinstance(converted.op, Linear) else layout]
    placed = [None if a is None else place(a) for a in arrays]
    outputs = [place(poisoned(s)) for s in specs]
    before = [None if a is None else whole_memory(a).tobytes() for a in placed]
    around = [memory_around(y) for y in outputs]
    converted.op.run(placed, outputs)
    assert before == [None if a is None else whole_memory(a).tobytes() for a in placed], "the op changed its input"
    assert around == [memory_around(y) for y in outputs], "the op wrote beside its output"
    return [y for y, name in zip(outputs, node.outputs, strict=False) if name]


def poisoned(spec: ArraySpec) -> Array:
    """An array whose every element is wrong: NaN, or all bits set, or True."""
    if spec.dtype.kind == "f":
        return np.full(spec.shape, np.nan, spec.dtype)
    if spec.dtype.kind in "iu":
        return np.full(spec.shape, np.iinfo(spec.dtype).max, spec.dtype)
    return np.ones(spec.shape, spec.dtype)


def channels_last(array: Array) -> Array:
    """The same values channels last with unused room between pixels (rank 1 and 2: as they are)."""
    if array.ndim < 3:
        return array.copy()
    order = Layout.channels_last(array.ndim).order
    larger = filler((*(array.shape[axis] for axis in order[:-1]), array.shape[1] + 3), array.dtype)
    view = larger[..., : array.shape[1]].transpose(np.argsort(order).astype(int))
    view[...] = array
    return view


def slice_of_larger(array: Array) -> Array:
    """The same values as a box of a larger array, the axes in reverse order."""
    return placed_in(array, tuple(range(array.ndim))[::-1])


def rows_apart(array: Array) -> Array:
    """The same values row major, with unused room between rows of the innermost axis."""
    if array.ndim < 2:
        return array.copy()
    larger = filler((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    larger[..., 1 : array.shape[-1] + 1] = array
    return larger[..., 1 : array.shape[-1] + 1]


def placed_in(array: Array, order: tuple[int, ...]) -> Array:
    larger = filler(tuple(array.shape[axis] + 3 for axis in order), array.dtype)
    box: Any = (*(slice(1, array.shape[axis] + 1) for axis in order), ...)
    view = larger[box].transpose(np.argsort(order).astype(int))
    view[...] = array
    return view


def filler(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory full of what no op makes."""
    return poisoned(ArraySpec(shape, dtype))


def whole_memory(view: Array) -> Array:
    """The array that owns the memory."""
    while view.base is not None:
        view = view.base
    return view


def memory_around(view: Array) -> bytes:
    """What lies in the memory outside of a view."""
    owner = whole_memory(view)
    if owner is view:
        return b""
    outside = np.ones(owner.shape, bool)
    offset = view.ctypes.data - owner.ctypes.data
    np.lib.stride_tricks.as_strided(
        outside.reshape(-1)[offset // owner.itemsize :], view.shape, [s // owner.itemsize for s in view.strides]
    )[...] = False
    return owner[outside].tobytes()


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "row major": np.array,
    "channels last": channels_last,
    "rows apart": rows_apart,
    "slice of larger": slice_of_larger,
}
"""How arrays of tests lie in memory."""


def assert_same(outputs: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same number of outputs, dtypes, shapes and values (NaN equals NaN)."""
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected, strict=True):
        if want.dtype.kind in "UT":
            want = want.astype(object)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "V":  # bfloat16, float8...: compared as what they stand for
            got, want = got.astype(np.float32), want.astype(np.float32)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(got, want)
