"""Layer files, and the suites of layers that come with the package (a JSON file each in this folder).

A layer file is a JSON list of
{"name", "op": "linear", "M", "K", "N"} or
{"name", "op": "conv2d", "N", "C_in", "H", "W", "C_out", "KH", "KW", "stride", "padding", "groups"};
stride and padding are an int or [h, w]; "activation" (a name) and "bias" (true or false) are optional.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from coexec.errors import InputError
from coexec.ops.activation import ACTIVATIONS, Activation
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

SUITES = ("linear", "conv")

MAX_ARRAY_BYTES = 2**32
"""Input, weight and output of a layer may have this size; more is taken for a mistake."""

PARAMETERS = {"clip": (0.0, 6.0), "leaky_relu": (0.01, 0.0)}
"""Parameters of the activations that have any, since a layer file only names them."""


@dataclass(frozen=True)
class NamedLayer:
    """A layer to measure and what to call it."""

    name: str
    op: Linear | Conv2d


def load_layers(name_or_path: str | os.PathLike[str]) -> list[NamedLayer]:
    """The layers of a suite that comes with the package, or of a layer file.

    Raises InputError with one line if there is no such suite or file, or if the file is damaged.
    """
    source = os.fspath(name_or_path)
    try:
        if source in SUITES:
            text = (files(__name__) / f"{source}.json").read_text(encoding="utf-8")
        else:
            text = Path(source).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"no layer file {source!r} here; the suites are {', '.join(SUITES)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InputError(f"cannot read the layer file {source!r}: {reason}") from error
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not a layer file: no JSON ({error})") from error
    return _layers(source, entries)


def _layers(source: str, entries: Any) -> list[NamedLayer]:
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{source} is not a layer file: it must hold a list of at least one layer")
    layers: list[NamedLayer] = []
    for number, entry in enumerate(entries, start=1):
        layer = _layer(f"{source}, layer {number}", entry)
        if any(layer.name == other.name for other in layers):
            raise InputError(f"{source}: two layers are called {layer.name!r}; give each its own name")
        layers.append(layer)
    return layers


def _layer(where: str, entry: Any) -> NamedLayer:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: a layer is an object with 'name', 'op' and sizes, not {json.dumps(entry)[:60]}")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        problem = "must be a text that is not empty" if "name" in entry else "is missing"
        raise InputError(f"{where}: 'name' {problem}")
    where = f"{where} ({name})"
    kind = entry.get("op")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{where}: 'op' must be one of {', '.join(KINDS)}, not {kind!r}")
    reader, required = KINDS[kind]
    for field in entry:
        if field not in (*required, *OPTIONAL):
            raise InputError(f"{where}: unknown field {field!r}; {kind} has {', '.join(required[2:])}")
    for field in required:
        if field not in entry:
            raise InputError(f"{where}: {field!r} is missing")
    return NamedLayer(name, reader(where, entry))


def _linear(where: str, entry: Mapping[str, Any]) -> Linear:
    m, k, n = (_size(where, entry, field) for field in ("M", "K", "N"))
    _check_bytes(where, (m * k, k * n, m * n))
    return Linear(m, k, n, bias=_bias(where, entry), activation=_activation(where, entry))


def _conv2d(where: str, entry: Mapping[str, Any]) -> Conv2d:
    n, c_in, h, w, c_out, kh, kw, groups = (
        _size(where, entry, field) for field in ("N", "C_in", "H", "W", "C_out", "KH", "KW", "groups")
    )
    stride, padding = _pair(where, entry, "stride", 1), _pair(where, entry, "padding", 0)
    if c_in % groups or c_out % groups:
        raise InputError(f"{where}: {groups} groups do not divide C_in {c_in} and C_out {c_out}")
    op = Conv2d(
        *(n, c_in, h, w, c_out, kh, kw),
        stride_h=stride[0],
        stride_w=stride[1],
        pad_top=padding[0],
        pad_left=padding[1],
        pad_bottom=padding[0],
        pad_right=padding[1],
        groups=groups,
        bias=_bias(where, entry),
        activation=_activation(where, entry),
    )
    if op.OH < 1 or op.OW < 1:
        raise InputError(f"{where}: the kernel {op.KH}x{op.KW} is larger than the padded input {op.H}x{op.W}")
    padded = (op.H + 2 * padding[0]) * (op.W + 2 * padding[1])
    weights = op.C_out * op.C_in // groups * op.KH * op.KW
    _check_bytes(where, (op.N * op.C_in * padded, weights, op.N * op.C_out * op.OH * op.OW))
    return op


KINDS: dict[str, tuple[Callable[[str, Mapping[str, Any]], Linear | Conv2d], tuple[str, ...]]] = {
    "linear": (_linear, ("name", "op", "M", "K", "N")),
    "conv2d": (
        _conv2d,
        ("name", "op", "N", "C_in", "H", "W", "C_out", "KH", "KW", "stride", "padding", "groups"),
    ),
}
"""Op -> its reader and the fields that it must have."""

OPTIONAL = ("bias", "activation")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _size(where: str, entry: Mapping[str, Any], field: str) -> int:
    value = entry[field]
    if not _whole(value, 1):
        raise InputError(f"{where}: {field!r} must be a whole number from 1, not {json.dumps(value)[:40]}")
    return int(value)


def _pair(where: str, entry: Mapping[str, Any], field: str, least: int) -> tuple[int, int]:
    value = entry[field]
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(_whole(v, least) for v in pair):
        raise InputError(
            f"{where}: {field!r} must be a whole number from {least}, or [h, w], not {json.dumps(value)[:40]}"
        )
    return int(pair[0]), int(pair[1])


def _bias(where: str, entry: Mapping[str, Any]) -> bool:
    value = entry.get("bias", False)
    if not isinstance(value, bool):
        raise InputError(f"{where}: 'bias' must be true or false, not {json.dumps(value)[:40]}")
    return value


def _activation(where: str, entry: Mapping[str, Any]) -> Activation:
    value = entry.get("activation", "none")
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise InputError(f"{where}: 'activation' must be one of {', '.join(ACTIVATIONS)}, not {json.dumps(value)[:40]}")
    return Activation(value, *PARAMETERS.get(value, (0.0, 0.0)))


def _check_bytes(where: str, elements: tuple[int, ...]) -> None:
    if max(elements) * 4 > MAX_ARRAY_BYTES:
        raise InputError(f"{where}: one of its arrays needs more than {MAX_ARRAY_BYTES >> 30} GiB; check the sizes")
