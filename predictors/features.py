"""What the predictors know of a part: its shape, its work, and how it will be launched.

One function for kernels, on either side, and one for NumPy's routines turn columns (one row per part) into features;
training and prediction call the same. A kernel's dispatch features come from `coexec.launch`, which also lays out the
real launches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import numpy as np

from coexec.backends.cpu import im2col_rows, winograd_tile
from coexec.costs import Floats
from coexec.errors import ProfileError
from coexec.kernels import LAYER_KERNELS
from coexec.kernels.variant import GpuTraits, Tiling
from coexec.launch import Launches, launch
from coexec.ops.base import Ints
from coexec.ops.conv2d import Conv2d, output_height, output_width
from coexec.ops.linear import Linear
from coexec.ops.split_ops import SPLIT_OPS
from coexec.ops.winograd import tiles

VERSION = 3
"""To be raised when a feature of an old name means something new."""

Form = Literal["kernel", "routine"]
"""Of an implementation: what its features are computed by."""

WORK_TERMS: dict[Form, tuple[str, ...]] = {
    "kernel": (
        *("busiest_flops", "busiest_outputs", "tile_flops", "traffic_bytes", "packed_bytes", "work_groups", "waves"),
        *("finish_bytes", "curve_bytes", "transform_bytes"),
    ),
    "routine": (
        *("flops_per_thread", "flops", "traffic_bytes", "gathered_bytes", "matmuls", "tap_calls", "tap_bytes"),
        *("output_bytes", "finish_bytes", "curve_bytes", "winograd_flops", "winograd_bytes"),
    ),
}
"""Features of which a part's time is, roughly, a sum with fixed rates (and a constant)."""

CURVES_FROM = 4
"""Activations from this code on evaluate a curve (exp, tanh, erf) per element."""

Features = dict[str, Floats]
"""Feature name -> one value per part."""

_PROBES = {"linear": Linear(8, 8, 8), "conv2d": Conv2d(1, 8, 8, 8, 8, 3, 3)}


def kernel_features(kind: str, columns: Mapping[str, Ints], launches: Launches) -> Features:
    """Features of parts that kernels compute, launched as ``launches`` says."""
    features = _shape_features(kind, columns)
    traits, tiling = launches.traits, launches.tiling
    groups, waves = launches.work_groups, launches.waves
    zeros = np.zeros(len(launches))
    for define in ("MR", "NV", "VW", "WM"):
        features[define] = _floats(tiling.defines.get(define, zeros))
    per_group = tiling.tile_flops / np.maximum(groups, 1)
    features |= {
        "kernel": _floats(launches.variant),
        "compute_units": zeros + traits.compute_units,
        "global_0": _floats(tiling.global_size[:, 0]),
        "global_1": _floats(tiling.global_size[:, 1]),
        "panels_first": _floats(tiling.arguments.get("panels_first", zeros)),
        "work_groups": _floats(groups),
        "waves": _floats(waves),
        "tail_fill": groups / np.maximum(waves * traits.compute_units, 1),
        "tile_flops": _floats(tiling.tile_flops),
        "work_group_flops": per_group,
        "busiest_flops": per_group * waves,
        "busiest_outputs": per_group * waves / (2 * features["depth"]),
        "padding_ratio": tiling.tile_flops / np.maximum(features["flops"], 1),
        "packed_bytes": _floats(tiling.packed_bytes),
        "transform_bytes": _floats(tiling.scratch_bytes) * _blocks(tiling),
    }
    return features


def _blocks(tiling: Tiling) -> Floats:
    """How often the scratch of a launch is filled."""
    tiles, block = (_floats(tiling.arguments.get(n, np.ones(len(tiling.packed_bytes)))) for n in ("tiles", "block"))
    return np.ceil(tiles / np.maximum(block * tiling.global_size[:, 0], 1))


def routine_features(kind: str, columns: Mapping[str, Ints], threads: int) -> Features:
    """Features of parts that NumPy computes with so many threads."""
    features = _shape_features(kind, columns)
    rows, channels, depth = features["rows"], features["channels"], features["depth"]
    zeros = np.zeros(len(rows))
    gathered, blocks, tap_calls = _cpu_conv_work(columns) if kind == "conv2d" else (zeros, zeros + 1, zeros)
    features |= {
        "threads": zeros + threads,
        "flops_per_thread": features["flops"] / threads,
        "matmuls": blocks * features["groups"],
        "tap_bytes": 4 * tap_calls * features.get("output_width", zeros) * channels,
        "rows_mod_16": rows % 16,
        "channels_mod_16": channels % 16,
        "depth_mod_16": depth % 16,
        "gathered_bytes": gathered,
        "blocks": blocks,
        "tap_calls": tap_calls,
        "rows_per_block": rows / np.maximum(blocks, 1),
        **(_cpu_winograd_work(columns) if kind == "conv2d" else {"winograd_flops": zeros, "winograd_bytes": zeros}),
        "cache_bytes": 4 * (depth * channels + np.minimum(rows, 256) * (depth + channels)),
    }
    return features


def matrix(features: Features, names: tuple[str, ...]) -> Floats:
    """Features as float64 [parts, names]."""
    return np.stack([_floats(features[name]) for name in names], axis=1)


def work_matrix(form: Form, features: Features) -> Floats:
    """[parts, 1 + terms]: a column of ones and the WORK_TERMS of the form."""
    rows = matrix(features, WORK_TERMS[form])
    return np.concatenate([np.ones((len(rows), 1)), rows], axis=1)


@cache
def feature_names(form: Form, kind: str) -> tuple[str, ...]:
    """Names, in the order of the models' columns, of the features of a kind of op."""
    if kind not in _PROBES:
        raise ProfileError(f"no features are known for {kind}")
    columns = _PROBES[kind].columns()
    if form == "routine":
        return tuple(routine_features(kind, columns, 1))
    return tuple(kernel_features(kind, columns, launch(kind, columns, GpuTraits(1, 8, 16, True))))


def form_of(implementation: str) -> Form:
    """Kernels have one form of features on both sides."""
    return "kernel" if implementation in LAYER_KERNELS else "routine"


def features_hash(form: Form, kind: str) -> str:
    """Tells whether a model was trained on the features that this version computes."""
    text = f"{VERSION} {form} {kind} {' '.join(feature_names(form, kind))} {' '.join(WORK_TERMS[form])}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shape_features(kind: str, c: Mapping[str, Ints]) -> Features:
    matmul = SPLIT_OPS[kind].matmul(c)
    own = {name: _floats(getattr(matmul, name)) for name in ("rows", "depth", "channels", "groups")}
    own |= OWN_FEATURES[kind](c) if kind in OWN_FEATURES else {}
    work, moved = _floats(matmul.flops), _floats(matmul.traffic_bytes)
    activation = c.get("activation", np.zeros(len(work), np.int64))
    output_bytes = 4 * own["rows"] * own["channels"]
    steps = c["bias"] + c["residual"] + (activation > 0)
    return own | {
        "output_bytes": output_bytes,
        "finish_bytes": output_bytes * steps,
        "curve_bytes": output_bytes * (activation >= CURVES_FROM),
        "weight_bytes": 4 * own["depth"] * own["channels"],
        "bias": _floats(c["bias"]),
        "residual": _floats(c["residual"]),
        "activation": _floats(activation),
        "flops": work,
        "traffic_bytes": moved,
        "intensity": work / np.maximum(moved, 1),
    }


def _conv2d_features(c: Mapping[str, Ints]) -> Features:
    """What a convolution has beside the matrix product that it amounts to."""
    oh, ow = output_height(c), output_width(c)
    per_group = c["C_in"] // c["groups"]
    padded = c["pad_top"] + c["pad_bottom"] + c["pad_left"] + c["pad_right"]
    return {
        "output_height": _floats(oh),
        "output_width": _floats(ow),
        "input_bytes": _floats(4 * c["N"] * c["H"] * c["W"] * c["C_in"]),
        "channels_in": _floats(per_group),
        "channels_per_group": _floats(c["C_out"] // c["groups"]),
        "kernel_height": _floats(c["KH"]),
        "kernel_width": _floats(c["KW"]),
        "stride_height": _floats(c["stride_h"]),
        "stride_width": _floats(c["stride_w"]),
        "dilation": _floats(c["dilation_h"] * c["dilation_w"]),
        "padding": _floats(padded),
    }


OWN_FEATURES: dict[str, Callable[[Mapping[str, Ints]], Features]] = {"conv2d": _conv2d_features}
"""Kind of op -> features of its own."""


def _cpu_conv_work(c: Mapping[str, Ints]) -> tuple[Floats, Floats, Floats]:
    """Bytes of patches that im2col gathers, matmuls it makes, and calls of the depthwise routine."""
    oh, ow = output_height(c), output_width(c)
    row_bytes = 4 * ow * c["KH"] * c["KW"] * c["C_in"]
    rows = im2col_rows(c)
    pointwise = (c["KH"] == 1) & (c["KW"] == 1) & (c["stride_h"] == 1) & (c["stride_w"] == 1)
    gathered = np.where(pointwise, 0, row_bytes * oh * c["N"])
    blocks = np.where(pointwise, c["N"], c["N"] * -(-oh // rows))
    return _floats(gathered), _floats(blocks), _floats(c["N"] * oh * c["KH"] * c["KW"])


def _cpu_winograd_work(c: Mapping[str, Ints]) -> Features:
    """What numpy_winograd multiplies, and moves through its transforms."""
    m = winograd_tile(c)
    products = tiles(c, m) * (m + 2) ** 2
    return {
        "winograd_flops": _floats(2 * products * c["C_in"] * c["C_out"]),
        "winograd_bytes": _floats(8 * products * (c["C_in"] + c["C_out"])),
    }


def _floats(values: Ints | Floats) -> Floats:
    return np.asarray(values, np.float64)
