"""coexec: run each layer of a neural network on the CPU and on an OpenCL GPU at once.

``coexec.partition(model)`` is all that most people need. Names are loaded when they are first used, so
that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coexec.api import load, load_graph, partition
    from coexec.errors import (
        CoexecError,
        DeviceError,
        InputError,
        ModelError,
        PlanError,
        ProfileError,
        SyncTimeout,
    )
    from coexec.model import Model
    from coexec.plan import Plan

__version__ = "0.1.0"

_HOME = {
    "partition": "api",
    "load": "api",
    "load_graph": "api",
    "Model": "model",
    "Plan": "plan",
    "CoexecError": "errors",
    "DeviceError": "errors",
    "InputError": "errors",
    "ModelError": "errors",
    "PlanError": "errors",
    "ProfileError": "errors",
    "SyncTimeout": "errors",
}
_MODULES = ("zoo", "onnx_backend", "predictors", "kernels", "profiles")

__all__ = [
    "CoexecError",
    "DeviceError",
    "InputError",
    "Model",
    "ModelError",
    "Plan",
    "PlanError",
    "ProfileError",
    "SyncTimeout",
    "load",
    "load_graph",
    "partition",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"coexec.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"coexec.{name}")
    raise AttributeError(f"module 'coexec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
