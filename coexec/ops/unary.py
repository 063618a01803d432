"""Elementwise functions of one input that no kernel fuses (those are in activation.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coexec.layout import Array
from coexec.ops.activation import erf
from coexec.ops.base import ArraySpec, Op
from coexec.ops.operands import required


@dataclass(frozen=True)
class Unary(Op):
    """``function`` is a key of UNARY; alpha and beta are its parameters, where it has any."""

    function: str
    alpha: float = 0.0
    beta: float = 0.0

    kind: ClassVar[str] = "unary"

    @property
    def elementwise(self) -> bool:
        return True

    def infer(self, inputs: Sequence[ArraySpec | None]) -> tuple[ArraySpec, ...]:
        x = required(inputs, 0, self.function)
        return (ArraySpec(x.shape, np.dtype(np.bool_) if self.function in PREDICATES else x.dtype),)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        # Infinities and NaN are results here, not news.
        with np.errstate(all="ignore"):
            UNARY[self.function](required(inputs, 0, self.function), outputs[0], self)


Compute = Callable[[Array, Array, Unary], None]


def _ufunc(ufunc: Any) -> Compute:
    def compute(x: Array, y: Array, op: Unary) -> None:
        ufunc(x, out=y)

    return compute


def _erf(x: Array, y: Array, op: Unary) -> None:
    y[...] = erf(x)


def _elu(x: Array, y: Array, op: Unary) -> None:
    """x, or alpha * (exp(x) - 1) below 0."""
    np.minimum(x, 0, out=y)
    np.expm1(y, out=y)
    y *= op.alpha
    np.copyto(y, x, where=x > 0)


def _selu(x: Array, y: Array, op: Unary) -> None:
    """beta (ONNX: gamma) times elu."""
    _elu(x, y, op)
    y *= op.beta


def _celu(x: Array, y: Array, op: Unary) -> None:
    np.minimum(x, 0, out=y)
    y /= op.alpha
    np.expm1(y, out=y)
    y *= op.alpha
    np.copyto(y, x, where=x > 0)


def _hard_sigmoid(x: Array, y: Array, op: Unary) -> None:
    np.multiply(x, op.alpha, out=y)
    y += op.beta
    np.clip(y, 0, 1, out=y)


def _softplus(x: Array, y: Array, op: Unary) -> None:
    np.logaddexp(x, 0, out=y)


def _softsign(x: Array, y: Array, op: Unary) -> None:
    np.abs(x, out=y)
    y += 1
    np.divide(x, y, out=y)


def _mish(x: Array, y: Array, op: Unary) -> None:
    np.logaddexp(x, 0, out=y)
    np.tanh(y, out=y)
    y *= x


def _swish(x: Array, y: Array, op: Unary) -> None:
    """x * sigmoid(alpha * x)."""
    np.multiply(x, -op.alpha, out=y)
    np.exp(y, out=y)
    y += 1
    np.divide(x, y, out=y)


def _thresholded_relu(x: Array, y: Array, op: Unary) -> None:
    y[...] = 0
    np.copyto(y, x, where=x > op.alpha)


def _shrink(x: Array, y: Array, op: Unary) -> None:
    """x - beta above alpha (ONNX: lambd), x + beta below -alpha, else 0."""
    y[...] = 0
    np.copyto(y, (x - op.beta).astype(y.dtype), where=x > op.alpha)
    np.copyto(y, (x + op.beta).astype(y.dtype), where=x < -op.alpha)


def _is_inf(x: Array, y: Array, op: Unary) -> None:
    """alpha: whether negative infinity counts, beta: whether positive does."""
    np.isinf(x, out=y)
    if not op.alpha:
        y &= x > 0
    if not op.beta:
        y &= x < 0


UNARY: dict[str, Compute] = {
    "abs": _ufunc(np.abs),
    "neg": _ufunc(np.negative),
    "exp": _ufunc(np.exp),
    "log": _ufunc(np.log),
    "sqrt": _ufunc(np.sqrt),
    "erf": _erf,
    "reciprocal": _ufunc(np.reciprocal),
    "floor": _ufunc(np.floor),
    "ceil": _ufunc(np.ceil),
    "round": _ufunc(np.rint),
    "sign": _ufunc(np.sign),
    "not": _ufunc(np.logical_not),
    "bitwise_not": _ufunc(np.invert),
    "sin": _ufunc(np.sin),
    "cos": _ufunc(np.cos),
    "tan": _ufunc(np.tan),
    "asin": _ufunc(np.arcsin),
    "acos": _ufunc(np.arccos),
    "atan": _ufunc(np.arctan),
    "sinh": _ufunc(np.sinh),
    "cosh": _ufunc(np.cosh),
    "asinh": _ufunc(np.arcsinh),
    "acosh": _ufunc(np.arccosh),
    "atanh": _ufunc(np.arctanh),
    "is_nan": _ufunc(np.isnan),
    "is_inf": _is_inf,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "hard_sigmoid": _hard_sigmoid,
    "softplus": _softplus,
    "softsign": _softsign,
    "mish": _mish,
    "swish": _swish,
    "thresholded_relu": _thresholded_relu,
    "shrink": _shrink,
}

PREDICATES = frozenset({"is_nan", "is_inf"})
