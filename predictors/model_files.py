"""The trained files of a profile folder: predictors.json and one LightGBM text file per model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coexec.errors import ProfileError
from coexec.predictors.features import WORK_TERMS, feature_names, features_hash
from coexec.profiling.profile_files import SCHEMA, check_schema, read_json, read_text, write_json, write_text

PREDICTORS = "predictors.json"
MIN_POINTS = 20
"""Fewer measurements of an implementation than this make no model."""


@dataclass(frozen=True)
class ModelReport:
    """What became of one implementation's measurements.

    Attributes:
        points: measurements used.
        mape: mean |predicted - measured| / measured on parts that the model was not trained on.
        within_10pct: share of those predicted within 10 %.
        note: why there is no model; "" if there is one (mape and within_10pct are None without).
        parameters: LightGBM parameters that differ from its own defaults.
        work_us: microseconds of the constant and per unit of each of the side's WORK_TERMS.
    """

    processor: str
    op: str
    implementation: str
    points: int
    mape: float | None
    within_10pct: float | None
    note: str
    parameters: Mapping[str, Any]
    work_us: tuple[float, ...] = ()

    @property
    def file(self) -> str:
        return f"{self.processor}_{self.implementation}.txt"


def save_models(folder: Path, models: Sequence[tuple[ModelReport, str | None]], environment: Mapping[str, Any]) -> None:
    """Write each model's text and, last, the list that names them with their hashes."""
    entries = []
    for report, text in models:
        entry = asdict(report)
        if text is not None:
            write_text(folder / report.file, text)
            entry |= {"file": report.file, "sha256": _sha256(text)}
        entries.append(entry)
    sides = sorted({(report.processor, report.op) for report, _ in models})
    features = {
        f"{side} {kind}": {
            "hash": features_hash(side, kind),
            "names": list(feature_names(side, kind)),
            "work_terms": list(WORK_TERMS[side]),
        }
        for side, kind in sides
    }
    write_json(folder / PREDICTORS, {"schema": SCHEMA, **environment, "features": features, "models": entries})


def load_models(folder: Path) -> list[tuple[ModelReport, str | None]]:
    """Reports and model texts; ProfileError if anything is missing, damaged or of other features."""
    path = folder / PREDICTORS
    if not path.is_file() and folder.is_dir():
        raise ProfileError(f"{folder} has no {PREDICTORS}: train it by `coexec train {folder}`")
    data = read_json(path)
    check_schema(path, data)
    try:
        for name, entry in data["features"].items():
            side, kind = name.split(" ")
            if side not in ("cpu", "gpu") or entry["hash"] != features_hash(side, kind):
                raise ProfileError(
                    f"{path}: the {name} predictors were trained on other features than this version computes; "
                    f"train again by `coexec train {folder}`"
                )
        return [(_report(entry), _text(folder, entry)) for entry in data["models"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileError(
            f"{path} is damaged ({type(error).__name__}: {error}); train again by `coexec train {folder}`"
        ) from error


def _report(entry: Mapping[str, Any]) -> ModelReport:
    report = ModelReport(**{name: entry[name] for name in ModelReport.__dataclass_fields__})
    numbers = [float(v) for v in (report.mape or 0.0, *report.work_us)]
    terms = 1 + len(WORK_TERMS[report.processor])
    if not all(math.isfinite(v) and v >= 0 for v in numbers) or len(report.work_us) not in (0, terms):
        raise ValueError(f"the numbers of {report.implementation} make no sense")
    return report


def _text(folder: Path, entry: Mapping[str, Any]) -> str | None:
    if "file" not in entry:
        return None
    name = str(entry["file"])
    if Path(name).name != name:
        raise ValueError(f"file {name!r} is not in the profile's folder")
    text = read_text(folder / name)
    if _sha256(text) != entry["sha256"]:
        raise ProfileError(
            f"{folder / name} is not the file that {PREDICTORS} names; train again by `coexec train {folder}`"
        )
    return text


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
