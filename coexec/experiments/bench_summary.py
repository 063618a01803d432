"""What the rows of a benchmark say together: the best peer of each, ratios, geometric means. JSON values in and out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coexec.experiments.peers import PEERS, REFERENCE
from coexec.experiments.setting import geometric_mean

Row = dict[str, Any]

DIFFERENCE = 1e-3
"""Results that are further from the reference's, relative to the largest value, get a note."""


def against_best(times: Mapping[str, float | None], unit: str, **ours: float | None) -> Row:
    """The fastest fp32 peer of a row, its time, and its time over each of ``ours``: above 1, ours is faster.

    All are None where no fp32 peer ran; a ratio also where its time is None.
    """
    rivals = {name: time for name, time in times.items() if time is not None and PEERS[name].fp32}
    best = min(rivals, key=lambda name: rivals[name], default=None)
    time = rivals.get(best or "")
    ratios = {name: time / own if time is not None and own is not None else None for name, own in ours.items()}
    return {"best_peer": best, f"best_peer_{unit}": time, **ratios}


def summary(layers: Sequence[Row], models: Sequence[Row]) -> list[Row]:
    """Per op, over all layers and over all models: rows, geometric means of their ratios, and the smallest ratio."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in layers:
        groups[row["op"]].append({**row, "title": row["name"]})
    if len(groups) > 1:
        groups["all layers"] = [row for group in groups.values() for row in group]
    if models:
        groups["models"] = [{**row, "title": row["model"]} for row in models]
    return [{"of": name, **_together(rows)} for name, rows in groups.items()]


def _together(rows: Sequence[Row]) -> Row:
    compared = [row for row in rows if row["ratio"] is not None]
    smallest = min(compared, key=lambda row: row["ratio"], default=None)
    return {
        "rows": len(compared),
        "ratio": _mean(row["ratio"] for row in compared),
        "smallest": smallest and smallest["ratio"],
        "smallest_in": smallest and smallest["title"],
        "cpu_ratio": _mean(row.get("cpu_ratio") for row in compared),
        "gpu_ratio": _mean(row.get("gpu_ratio") for row in compared),
        "split_ratio": _mean(row.get("split_ratio") for row in compared),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean; None unless there is a value in every row."""
    found = list(values)
    known = [value for value in found if value is not None]
    return geometric_mean(known) if known and len(known) == len(found) else None


def difference_notes(rows: Sequence[Row]) -> list[str]:
    """A line for each peer whose results are not quite the reference's: how far they are at worst, and where."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        for name, difference in row["differences"].items():
            if difference is not None and not difference <= DIFFERENCE:
                found[name].append((difference, row.get("name") or row["model"]))
    notes = []
    for name, places in found.items():
        worst, where = max(places)
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        notes.append(f"{name}: results differ from {REFERENCE}'s by up to {worst:.1e} of the largest, in {where}{more}")
    return notes
