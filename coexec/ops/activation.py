"""Activations that conv2d and linear apply to their own result (fused), and that stand alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coexec.layout import Array


@dataclass(frozen=True)
class Activation:
    """``kind`` is a key of ACTIVATIONS; alpha and beta are its parameters (clip: low, high)."""

    kind: str = "none"
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", float(self.alpha))  # kernels tell ints from floats by type
        object.__setattr__(self, "beta", float(self.beta))

    @property
    def code(self) -> int:
        """Number of the kind: the kernels' -DACTIVATION and the predictors' feature."""
        return list(ACTIVATIONS).index(self.kind)

    def apply(self, x: Array) -> None:
        """Replace x (float) by its activation, in place."""
        ACTIVATIONS[self.kind](x, self)


NO_ACTIVATION = Activation()


def _none(x: Array, a: Activation) -> None:
    pass


def _relu(x: Array, a: Activation) -> None:
    np.maximum(x, 0, out=x)


def _clip(x: Array, a: Activation) -> None:
    np.clip(x, a.alpha, a.beta, out=x)


def _leaky_relu(x: Array, a: Activation) -> None:
    np.multiply(x, a.alpha, out=x, where=x < 0)


def _sigmoid(x: Array, a: Activation) -> None:
    with np.errstate(over="ignore"):
        np.negative(x, out=x)
        np.exp(x, out=x)
        x += 1
        np.reciprocal(x, out=x)


def _hard_swish(x: Array, a: Activation) -> None:
    x *= np.clip(x / 6 + 0.5, 0, 1)


def _silu(x: Array, a: Activation) -> None:
    gate = x.copy(order="K")
    _sigmoid(gate, a)
    x *= gate


def _gelu(x: Array, a: Activation) -> None:
    x *= 0.5 * (1 + erf(x * np.asarray(1 / math.sqrt(2), x.dtype)))


def _gelu_tanh(x: Array, a: Activation) -> None:
    inner = np.asarray(math.sqrt(2 / math.pi), x.dtype) * (x + np.asarray(0.044715, x.dtype) * x * x * x)
    x *= 0.5 * (1 + np.tanh(inner))


def _tanh(x: Array, a: Activation) -> None:
    np.tanh(x, out=x)


ACTIVATIONS: dict[str, Callable[[Array, Activation], None]] = {
    "none": _none,
    "relu": _relu,
    "clip": _clip,
    "leaky_relu": _leaky_relu,
    "sigmoid": _sigmoid,
    "hard_swish": _hard_swish,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "tanh": _tanh,
}


def erf(x: Array) -> Array:
    """Error function of x, to the precision of its dtype.

    float64: SciPy's. float32: a degree-13 odd rational approximation on the clamped argument (the
    form used by Eigen), |error| below 4e-7; NumPy has no erf and SciPy's is ten times slower.
    """
    if x.dtype != np.float32:
        from scipy.special import erf as scipy_erf

        return np.asarray(scipy_erf(x), x.dtype)
    c = np.clip(x, np.float32(-4), np.float32(4))
    c2 = c * c
    p = np.full_like(c2, -2.72614225801306e-10)
    for k in (
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    ):
        p *= c2
        p += np.float32(k)
    q = np.full_like(c2, -1.45660718464996e-05)
    for k in (-2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02):
        q *= c2
        q += np.float32(k)
    p *= c
    p /= q
    return p
