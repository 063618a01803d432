"""Launch geometry: which kernel, which ND-range, which tiles, for one part or for thousands.

This is the only place that decides them. The executor launches what it returns for one row; the
predictors' features are computed from what it returns for all candidates of a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coexec.errors import DeviceError
from coexec.kernels import KERNELS
from coexec.kernels.variant import GpuTraits, KernelVariant, Tile, Tiling, ceil_div
from coexec.ops.base import Ints


@dataclass(frozen=True)
class Launches:
    """What would be launched for each candidate.

    Attributes:
        variants: the kernel variants of this kind, in table order.
        variant: index into ``variants`` per candidate.
        tiling: the chosen variant's tiling per candidate; defines that it has not are 0.
    """

    variants: tuple[KernelVariant, ...]
    variant: Ints
    tiling: Tiling
    traits: GpuTraits

    def __len__(self) -> int:
        return len(self.variant)

    def names(self) -> list[str]:
        """Kernel name per candidate."""
        return [self.variants[i].name for i in self.variant]

    def one(self, index: int = 0) -> tuple[KernelVariant, Tile]:
        """Variant and tile of one candidate, ready to be launched."""
        return self.variants[int(self.variant[index])], self.tiling.row(index)

    @property
    def work_groups(self) -> Ints:
        return np.asarray(np.prod(self.tiling.global_size, axis=1), np.int64)

    @property
    def waves(self) -> Ints:
        """Rounds in which the compute units work the groups off."""
        return ceil_div(self.work_groups, self.traits.compute_units)


def launch(
    kind: str,
    columns: Mapping[str, Ints],
    traits: GpuTraits,
    implementation: str | None = None,
    without: Collection[str] = (),
) -> Launches:
    """Launches of every row of ``columns`` (ops of one kind) on a device with ``traits``.

    ``implementation`` names the kernel variant to use; None takes the first that supports and suits the row, but
    for those ``without`` which it has to be done.
    """
    variants = tuple(variant for variant in KERNELS[kind] if variant.name not in without)
    rows = len(next(iter(columns.values())))
    chosen = np.full(rows, -1, np.int64)
    for i, variant in enumerate(variants):
        if implementation is None:
            chosen[(chosen < 0) & variant.supports(columns, traits) & variant.suits(columns, traits)] = i
        elif implementation == variant.name:
            chosen[variant.supports(columns, traits)] = i
    if np.any(chosen < 0) and without:
        raise DeviceError(f"no kernel for {kind} gives right numbers on this device; use another, or device='cpu'")
    if np.any(chosen < 0):
        raise DeviceError(f"no kernel {implementation or 'at all'} takes this {kind}; leave the implementation out")
    tilings = [v.tiling(columns, traits) if np.any(chosen == i) else None for i, v in enumerate(variants)]
    return Launches(variants, chosen, _select(tilings, chosen), traits)


def _select(tilings: Sequence[Tiling | None], chosen: Ints) -> Tiling:
    used = [(i, t) for i, t in enumerate(tilings) if t is not None]
    if len(used) == 1:
        return used[0][1]

    def merge(arrays: list[Ints | None]) -> Ints:
        out = np.zeros_like(next(a for a in arrays if a is not None))
        for (i, _), array in zip(used, arrays, strict=True):
            if array is not None:
                out[chosen == i] = array[chosen == i]
        return out

    def merged(columns: list[dict[str, Ints]]) -> dict[str, Ints]:
        names = dict.fromkeys(name for c in columns for name in c)
        return {name: merge([c.get(name) for c in columns]) for name in names}

    parts = [t for _, t in used]
    return Tiling(
        merged([t.defines for t in parts]),
        merge([t.global_size for t in parts]),
        merged([t.arguments for t in parts]),
        merge([t.tile_flops for t in parts]),
        merge([t.packed_bytes for t in parts]),
        merge([t.scratch_bytes for t in parts]),
    )
