"""Which workloads a profile measures: an endless, seeded sequence whose every beginning is a fair sample.

Kinds of workload take turns. Within each, shapes come from a space-filling (Sobol) sequence over the ranges
of real networks, or from the layers of common networks in shuffled order. Half of the layers are cut as the
planner would cut them, and each side then gets its part: fewer channels, or rows with their halo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coexec.kernels.variant import GpuTraits
from coexec.ops.activation import Activation
from coexec.ops.base import Axis, SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear
from coexec.planner import Resources, aligned_cuts
from coexec.profiling.heldout import held_out
from coexec.profiling.networks import network_layers

TURNS = (
    "network", "linear", "dense", "pointwise", "depthwise", "network", "linear", "dense", "grouped", "pointwise",
)  # fmt: skip
"""Order in which the sources take turns."""

MIN_FLOPS, MAX_FLOPS = 2e4, 4e9
MAX_BYTES = 96 << 20
MAX_PATCH_ROW_BYTES = 32 << 20
"""One output row of im2col patches; a CPU routine gathers at least so much."""

ACTIVATIONS = (
    ("none", 0.40), ("relu", 0.70), ("clip", 0.78), ("gelu", 0.86), ("silu", 0.92), ("hard_swish", 0.96),
    ("leaky_relu", 0.97), ("sigmoid", 0.98), ("gelu_tanh", 0.99), ("tanh", 1.0),
)  # fmt: skip
"""Activation and the cumulated share of workloads with it or one before it."""


class Point(NamedTuple):
    """One point of the space-filling sequence; every coordinate lies in [0, 1)."""

    size: float
    aspect: float
    c_in: float
    c_out: float
    roundness: float
    kernel: float
    stride: float
    padding: float
    groups: float
    bias: float
    residual: float
    activation: float
    cut: float
    where: float
    compute_units: float
    threads: float


@dataclass(frozen=True)
class Workload:
    """What one step of a profile measures: each side's own op, with so many compute units and threads.

    Attributes:
        sample: number in the sequence.
        gpu, cpu: the whole layer on both sides, or the part of each.
    """

    sample: int
    gpu: SplitOp
    cpu: SplitOp
    compute_units: int
    threads: int


def workloads(
    traits: GpuTraits, compute_units: Sequence[int], threads: Sequence[int], start: int = 0, seed: int = 0
) -> Iterator[Workload]:
    """The sequence from number ``start``; numbers whose workload is too large or held out are left out."""
    sample = start
    while True:
        made = workload(sample, traits, compute_units, threads, seed)
        if made is not None:
            yield made
        sample += 1


def workload(
    sample: int, traits: GpuTraits, compute_units: Sequence[int], threads: Sequence[int], seed: int = 0
) -> Workload | None:
    """Number ``sample`` of the sequence; None if it is too small or large to be measured, or held out."""
    source = TURNS[sample % len(TURNS)]
    rank = TURNS[: sample % len(TURNS)].count(source)
    number = sample // len(TURNS) * TURNS.count(source) + rank
    point = _point(seed, source, number)
    layer = _network_layer(seed, number) if source == "network" else SOURCES[source](point)
    layer = _finish(layer, point)
    if held_out(layer) or not _measurable(layer):
        return None
    gpu, cpu = _parts(layer, point, traits)
    if any(held_out(part) or not _measurable(part) for part in (gpu, cpu)):
        return None
    return Workload(sample, gpu, cpu, _level(compute_units, point.compute_units), _level(threads, point.threads))


def levels(most: int) -> tuple[int, ...]:
    """Numbers of cores to measure with: 1, 2, 4 and so on, and all."""
    return tuple(dict.fromkeys([*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]))


def _level(values: Sequence[int], u: float) -> int:
    """One of ``values``; the last (all cores, where no layer is split) half as often as the others."""
    return values[min(int(u * (len(values) - 0.5)), len(values) - 1)]


@cache
def _shift(seed: int, source: str) -> npt.NDArray[np.float64]:
    """Random shift modulo 1 that gives each source a sequence of its own."""
    return np.random.default_rng([seed, *source.encode()]).random(len(Point._fields))


@cache
def _block(index: int) -> npt.NDArray[np.float64]:
    from scipy.stats import qmc

    engine = qmc.Sobol(len(Point._fields), scramble=False)
    if index:
        engine.fast_forward(index * 512)
    return np.asarray(engine.random(512))


def _point(seed: int, source: str, number: int) -> Point:
    return Point(*((_block(number // 512)[number % 512] + _shift(seed, source)) % 1.0).tolist())


def _network_layer(seed: int, number: int) -> SplitOp:
    layers = network_layers()
    order = np.random.default_rng([seed, number // len(layers)]).permutation(len(layers))
    return layers[int(order[number % len(layers)])]


def _log(u: float, low: float, high: float) -> float:
    """Log-uniform between the bounds."""
    return float(low * (high / low) ** u)


def _channels(u: float, roundness: float, high: int = 2048) -> int:
    """One in eight from 1 to 16, else log-uniform from 16; in part rounded to 8 or 32 as networks do."""
    value = _log(u * 8, 1, 16) if u < 0.125 else _log((u - 0.125) / 0.875, 16, high)
    step = 8 if roundness < 0.35 else 32 if roundness < 0.7 else 1
    return max(1, round(value / step) * step if value >= step else round(value))


def _linear(p: Point) -> Linear:
    m = 1 if p.size < 0.08 else round(_log(p.size, 1, 4096))
    return Linear(max(1, m), _channels(p.c_in, p.roundness, 4096), _channels(p.c_out, p.groups, 4096))


def _conv(p: Point, c_in: int, c_out: int, kh: int, kw: int, stride: int, groups: int = 1) -> Conv2d:
    """Sizes, dilation and padding from the point; mostly padded to keep the size."""
    dilation = 2 if p.padding > 0.9 and max(kh, kw) > 1 else 1
    pads = (dilation * (kh - 1) // 2, dilation * (kw - 1) // 2) if p.padding < 0.85 else (0, 0)
    reach = dilation * (max(kh, kw) - 1) + 1
    height = max(round(_log(p.size, 2, 320)), reach)
    width = height if p.aspect < 0.7 else max(round(height * _log((p.aspect - 0.7) / 0.3, 0.5, 2)), reach)
    return Conv2d(
        1, c_in, height, width, c_out, kh, kw, stride, stride, *pads, *pads, dilation, dilation, groups=groups
    )


def _dense(p: Point) -> Conv2d:
    kh, kw = _kernel(p.kernel)
    return _conv(p, _channels(p.c_in, p.roundness), _channels(p.c_out, p.groups), kh, kw, _stride(p.stride))


def _pointwise(p: Point) -> Conv2d:
    stride = 1 if p.stride < 0.85 else 2
    return _conv(p, _channels(p.c_in, p.roundness), _channels(p.c_out, p.groups), 1, 1, stride)


def _depthwise(p: Point) -> Conv2d:
    kernel = 3 if p.kernel < 0.6 else 5 if p.kernel < 0.85 else 7
    channels = max(2, _channels(p.c_in, p.roundness, 1536))
    return _conv(p, channels, channels, kernel, kernel, _stride(p.stride), channels)


def _grouped(p: Point) -> Conv2d:
    groups = round(_log(p.groups, 2, 64))
    per_group = [max(1, round(_log(u, 2, 128))) for u in (p.c_in, p.c_out)]
    kernel = 3 if p.kernel < 0.7 else 1 if p.kernel < 0.85 else 5
    return _conv(p, groups * per_group[0], groups * per_group[1], kernel, kernel, _stride(p.stride), groups)


SOURCES: dict[str, Callable[[Point], SplitOp]] = {
    "linear": _linear,
    "dense": _dense,
    "pointwise": _pointwise,
    "depthwise": _depthwise,
    "grouped": _grouped,
}


def _kernel(u: float) -> tuple[int, int]:
    """3x3 in most cases, else 5x5, 7x7, long and thin, or any other size up to 11."""
    common = ((0.60, 3, 3), (0.72, 5, 5), (0.80, 7, 7), (0.84, 1, 7), (0.88, 7, 1), (0.90, 1, 3), (0.92, 3, 1))
    for bound, kh, kw in common:
        if u < bound:
            return kh, kw
    other = ((2, 2), (4, 4), (6, 6), (9, 9), (11, 11), (3, 5))
    return other[int((u - 0.92) / 0.08 * len(other))]


def _stride(u: float) -> int:
    return 1 if u < 0.7 else 2 if u < 0.93 else 3 if u < 0.96 else 4


def _finish(layer: Any, p: Point) -> SplitOp:
    """With the bias, residual and activation of the point."""
    kind = next(name for name, bound in ACTIVATIONS if p.activation < bound)
    low_high = (0.0, 6.0) if kind == "clip" else (0.1, 0.0) if kind == "leaky_relu" else (0.0, 0.0)
    finished: SplitOp = replace(
        layer, bias=p.bias < 0.9, residual=p.residual < 0.15, activation=Activation(kind, *low_high)
    )
    return finished


def _parts(layer: SplitOp, p: Point, traits: GpuTraits) -> tuple[SplitOp, SplitOp]:
    """The whole layer for both sides, or each side's part at a cut that the planner could choose."""
    if p.cut < 0.5:
        return layer, layer
    axis: Axis = "channel" if p.cut < 0.8 else "row"
    cuts = aligned_cuts(layer, axis, Resources("", "", traits, 1))
    if not cuts:
        return layer, layer
    cut = cuts[int(p.where * len(cuts))]
    return layer.part(axis, 0, cut).op, layer.part(axis, cut, layer.units(axis)).op


def _measurable(op: SplitOp) -> bool:
    """Neither trivial nor so large that one measurement takes seconds."""
    if isinstance(op, Conv2d) and (min(op.OH, op.OW) < 1 or _patch_row_bytes(op) > MAX_PATCH_ROW_BYTES):
        return False
    matmul = op.matmul(op.columns())
    return bool(MIN_FLOPS <= matmul.flops[0] <= MAX_FLOPS and matmul.traffic_bytes[0] <= MAX_BYTES)


def _patch_row_bytes(op: Conv2d) -> int:
    return 4 * op.OW * op.KH * op.KW * op.C_in
