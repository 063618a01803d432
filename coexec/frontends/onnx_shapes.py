"""Makes every input of a model static, and lets ONNX infer what follows from that."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import onnx
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto

from coexec.errors import InputError, ModelError
from coexec.frontends.onnx_read import ReadModel, check_size, one_line, to_dtype

Dims = list[int | str | None]
"""Dimensions as the model states them: a number, a symbol, or None."""


def fix_shapes(read: ReadModel, input_shapes: Mapping[str, Sequence[int]] | None) -> ModelProto:
    """The model with static inputs and inferred shapes.

    Raises InputError for an entry of ``input_shapes`` that does not fit the model, ModelError for
    dimensions that stay open or are damaged, and for shapes that contradict one another.
    """
    proto = ModelProto()
    proto.CopyFrom(read.proto)
    values = {value.name: value for value in proto.graph.input if value.name in read.open_inputs}
    if input_shapes is not None and not isinstance(input_shapes, Mapping):
        raise InputError(f"input_shapes must map input names to shapes, not {type(input_shapes).__name__}")
    given = {name: _given_shape(name, shape) for name, shape in (input_shapes or {}).items()}
    for name in given:
        if name not in values:
            raise InputError(f"input_shapes names {name!r}, the model's inputs are {', '.join(values) or '(none)'}")
    dims = {name: _dims(value) for name, value in values.items()}
    symbols = _symbols(dims, given)
    for name, value in values.items():
        shape = given[name] if name in given else _resolve(name, dims[name], symbols)
        _set_shape(value, shape)
    # Declared output shapes may still hold symbols or another batch size.
    for value in proto.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except Exception as error:  # InferenceError, and C++ exceptions of other types
        raise ModelError(f"{read.source}: shapes do not fit together: {one_line(error)}") from error


def _given_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError as error:
        raise InputError(f"input_shapes[{name!r}] must be a sequence of whole numbers, not {shape!r}") from error
    if any(d < 0 for d in dims):
        raise InputError(f"input_shapes[{name!r}] is {dims}: dimensions must not be negative")
    return dims


def _dims(value: ValueInfoProto) -> Dims | None:
    """None when even the rank is open."""
    kind: TypeProto = value.type
    if not kind.HasField("tensor_type"):
        raise ModelError(f"input {value.name!r} is no tensor ({kind.WhichOneof('value')}), which is not supported")
    if kind.tensor_type.elem_type == TensorProto.UNDEFINED:
        raise ModelError(f"input {value.name!r} has no data type, which is not supported")
    if not kind.tensor_type.HasField("shape"):
        return None
    dims: Dims = []
    for dim in kind.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or None)
    shape = [d for d in dims if isinstance(d, int)]
    if any(d < 0 for d in shape):
        raise ModelError(f"input {value.name!r} has shape {_show(dims)}: dimensions must not be negative")
    return dims


def _symbols(dims: Mapping[str, Dims | None], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Symbol -> value, as the given shapes fix them; checks the given shapes on the way."""
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        stated = dims[name]
        if stated is None:
            continue
        fits = len(stated) == len(shape) and all(
            d == size for d, size in zip(stated, shape, strict=True) if isinstance(d, int)
        )
        if not fits:
            raise InputError(f"input_shapes[{name!r}] is {shape}, but the model fixes {_show(stated)}")
        for d, size in zip(stated, shape, strict=True):
            if isinstance(d, str) and symbols.setdefault(d, size) != size:
                raise InputError(f"input_shapes gives dimension {d!r} both {symbols[d]} and {size} (at {name!r})")
    return symbols


def _resolve(name: str, dims: Dims | None, symbols: Mapping[str, int]) -> tuple[int, ...]:
    if dims is None:
        raise ModelError(f"input {name!r} has an open shape: pass input_shapes={{{name!r}: (...)}}")
    known = [symbols.get(d, d) if isinstance(d, str) else d for d in dims]
    shape = tuple(d for d in known if isinstance(d, int))
    if len(shape) < len(known):
        example = ", ".join(str(d) if isinstance(d, int) else "1" for d in known)
        comma = "," if len(known) == 1 else ""
        raise ModelError(
            f"input {name!r} has open dimensions {_show(known)}: "
            f"fix them, for example input_shapes={{{name!r}: ({example}{comma})}}"
        )
    return shape


def _show(dims: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in dims) + ")"


def _set_shape(value: ValueInfoProto, shape: tuple[int, ...]) -> None:
    tensor = value.type.tensor_type
    what = f"input {value.name!r}"
    check_size(what, shape, to_dtype(tensor.elem_type, what).itemsize)
    del tensor.shape.dim[:]
    tensor.shape.SetInParent()
    for size in shape:
        tensor.shape.dim.add().dim_value = size
