"""Elementwise functions of several broadcast inputs, comparisons and logic included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from coexec.errors import ModelError
from coexec.layout import Array
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import broadcast

Compute = Callable[[Sequence[Array], Array], None]


@dataclass(frozen=True)
class Function:
    """``compute`` writes the result; ``result`` says of which dtype it is: bool, or an input's."""

    compute: Compute
    result: Literal["bool"] | int = 0


@dataclass(frozen=True)
class Elementwise(Op):
    """``function`` is a key of FUNCTIONS; inputs broadcast against each other as in NumPy."""

    function: str

    kind: ClassVar[str] = "elementwise"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        specs = [spec for spec in inputs if spec is not None]
        if not specs:
            raise ModelError(f"{self.function}: has no inputs")
        shape = broadcast([spec.shape for spec in specs], self.function)
        result = FUNCTIONS[self.function].result
        return (ArraySpec(shape, np.dtype(np.bool_) if result == "bool" else specs[result].dtype),)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        arrays = [array for array in inputs if array is not None]
        # Infinities and NaN are results here, not news.
        with np.errstate(all="ignore"):
            FUNCTIONS[self.function].compute(arrays, outputs[0])


def _fold(ufunc: np.ufunc) -> Compute:
    """The ufunc of two inputs, or applied again for each further one."""

    def compute(inputs: Sequence[Array], out: Array) -> None:
        if len(inputs) == 1:
            out[...] = inputs[0]
            return
        ufunc(inputs[0], inputs[1], out=out)
        for other in inputs[2:]:
            ufunc(out, other, out=out)

    return compute


def _mean(inputs: Sequence[Array], out: Array) -> None:
    _fold(np.add)(inputs, out)
    out *= np.asarray(1 / len(inputs), out.dtype)


def _div(inputs: Sequence[Array], out: Array) -> None:
    a, b = inputs
    if out.dtype.kind not in "iu":
        np.divide(a, b, out=out)
        return
    np.floor_divide(a, b, out=out)
    if out.dtype.kind == "i":
        # ONNX rounds towards zero, NumPy down.
        np.add(out, 1, out=out, where=(np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))


def _pow(inputs: Sequence[Array], out: Array) -> None:
    base, exponent = inputs
    constant = exponent.reshape(-1)[0].item() if exponent.size == 1 else None
    if constant == 2:
        np.multiply(base, base, out=out)
    elif constant == 0.5 and out.dtype.kind == "f":
        np.sqrt(base, out=out)
    elif out.dtype.kind in "iu":
        # NumPy has no negative powers of integers; float64 is exact as far as ONNX promises anything.
        exponent = exponent.astype(np.float64) if (exponent < 0).any() else exponent
        np.copyto(out, np.power(base, exponent), casting="unsafe")
    else:
        np.power(base, exponent.astype(out.dtype, copy=False), out=out)


def _prelu(inputs: Sequence[Array], out: Array) -> None:
    x, slope = inputs
    out[...] = x
    np.multiply(x, slope, out=out, where=x < 0)


def _where(inputs: Sequence[Array], out: Array) -> None:
    condition, chosen, other = inputs
    out[...] = other
    np.copyto(out, chosen, where=condition)


def _ufunc(ufunc: np.ufunc, result: Literal["bool"] | int = 0) -> Function:
    return Function(lambda inputs, out: _call(ufunc, inputs, out), result)


def _call(ufunc: Any, inputs: Sequence[Array], out: Array) -> None:
    ufunc(*inputs, out=out)


FUNCTIONS: dict[str, Function] = {
    "add": _ufunc(np.add),
    "sub": _ufunc(np.subtract),
    "mul": _ufunc(np.multiply),
    "div": Function(_div),
    "pow": Function(_pow),
    "mod": _ufunc(np.mod),
    "fmod": _ufunc(np.fmod),
    "sum": Function(_fold(np.add)),
    "mean": Function(_mean),
    "max": Function(_fold(np.maximum)),
    "min": Function(_fold(np.minimum)),
    "prelu": Function(_prelu),
    "where": Function(_where, 1),
    "and": _ufunc(np.logical_and, "bool"),
    "or": _ufunc(np.logical_or, "bool"),
    "xor": _ufunc(np.logical_xor, "bool"),
    "equal": _ufunc(np.equal, "bool"),
    "less": _ufunc(np.less, "bool"),
    "less_or_equal": _ufunc(np.less_equal, "bool"),
    "greater": _ufunc(np.greater, "bool"),
    "greater_or_equal": _ufunc(np.greater_equal, "bool"),
    "bitwise_and": _ufunc(np.bitwise_and),
    "bitwise_or": _ufunc(np.bitwise_or),
    "bitwise_xor": _ufunc(np.bitwise_xor),
    "shift_left": _ufunc(np.left_shift),
    "shift_right": _ufunc(np.right_shift),
}
