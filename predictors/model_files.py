"""The trained files of a profile folder: predictors.json and one LightGBM text file per model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from coexec.documents import Count, Duration, read_bytes
from coexec.errors import ProfileError
from coexec.plan import Side
from coexec.predictors.features import WORK_TERMS, Form, feature_names, features_hash, form_of
from coexec.profiling.profile_files import (
    SCHEMA,
    Kind,
    Name,
    fits_implementation,
    known_implementations,
    read_json,
    write_json,
    write_text,
)

PREDICTORS = "predictors.json"
MIN_POINTS = 20
"""Fewer measurements of an implementation than this make no model."""

Whole = Annotated[int, Meta(ge=-(2**31), le=2**31)]
Number = Whole | Annotated[float, Meta(ge=-1e12, le=1e12)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]


@dataclass(frozen=True)
class ModelReport:
    """What became of one implementation's measurements.

    Attributes:
        points: measurements used.
        mape: mean |predicted - measured| / measured on parts that the model was not trained on.
        within_10pct: share of those predicted within 10 %.
        note: why there is no model; "" if there is one (mape and within_10pct are None without).
        parameters: LightGBM parameters that differ from its own defaults.
        work_us: microseconds of the constant and per unit of each of the form's WORK_TERMS.
    """

    processor: Side
    op: Kind
    implementation: Name
    points: Count
    mape: Annotated[float, Meta(ge=0, le=1e6)] | None
    within_10pct: Annotated[float, Meta(ge=0, le=1)] | None
    note: str
    parameters: Mapping[str, Number]
    work_us: tuple[Duration, ...] = ()

    @property
    def model_file(self) -> str:
        """Name of the file with the model, if there is one."""
        return f"{self.processor}_{self.implementation}.txt"


@dataclass(frozen=True)
class _Entry(ModelReport):
    """A report as it stands in predictors.json."""

    file: str | None = None
    sha256: Sha256 | None = None


@dataclass(frozen=True)
class _FeatureList:
    """What models of one form and kind of op were trained on."""

    hash: str
    names: tuple[str, ...]
    work_terms: tuple[str, ...]


@dataclass(frozen=True)
class _Trained:
    """predictors.json; the annotations are its schema."""

    trained: str
    measurements_sha256: Sha256
    trials: Count
    seed: Whole
    versions: Mapping[str, str]
    features: Mapping[str, _FeatureList]
    models: tuple[_Entry, ...]


def save_models(folder: Path, models: Sequence[tuple[ModelReport, str | None]], environment: Mapping[str, Any]) -> None:
    """Write each model's text and, last, the list that names them with their hashes."""
    entries = []
    for report, text in models:
        entry = asdict(report)
        if text is not None:
            write_text(folder / report.model_file, text)
            entry |= {"file": report.model_file, "sha256": _sha256(text.encode())}
        entries.append(entry)
    forms = sorted({(form_of(report.implementation), report.op) for report, _ in models})
    features = {f"{form} {kind}": asdict(_features(form, kind)) for form, kind in forms}
    write_json(folder / PREDICTORS, {"schema": SCHEMA, **environment, "features": features, "models": entries})


def load_models(folder: Path) -> list[tuple[ModelReport, str | None]]:
    """Reports and model texts; ProfileError if anything is missing, damaged or of other features."""
    path, again = folder / PREDICTORS, f"train again by `coexec train {folder}`"
    if not path.exists():
        raise ProfileError(f"{folder} has no {PREDICTORS}: train it by `coexec train {folder}`")
    data = read_json(path, _Trained, again)
    for report in data.models:
        form = form_of(report.implementation)
        if data.features.get(f"{form} {report.op}") != _features(form, report.op):
            raise ProfileError(
                f"{path}: the predictors of the {report.op} {form}s were trained on other features than this version "
                f"computes; {again}"
            )
        problem = _problem(report)
        if problem:
            raise ProfileError(f"{path} is damaged ({report.processor} {report.implementation}: {problem}); {again}")
    names = [report.model_file for report in data.models]
    if len(set(names)) < len(names):
        raise ProfileError(f"{path} is damaged (an implementation is in it twice); {again}")
    return [(report, _text(folder, report, again)) for report in data.models]


def _problem(report: _Entry) -> str:
    """Why this entry cannot be; "" if it can."""
    if not fits_implementation(report.processor, report.op, report.implementation):
        return f"it computes no {report.op} there"
    if report.file is None:
        return "there are rates but no model" if report.work_us or report.sha256 else ""
    if report.file != report.model_file:
        return f"its file is {report.file!r}, not {report.model_file!r}"
    if report.implementation not in known_implementations(report.processor):
        return "this version has no such implementation"
    terms = 1 + len(WORK_TERMS[form_of(report.implementation)])
    if report.sha256 is None or report.mape is None or report.within_10pct is None or len(report.work_us) != terms:
        return f"a model has a sha256, a mape, a within_10pct and {terms} rates"
    return ""


def _features(form: Form, kind: Kind) -> _FeatureList:
    """What this version computes."""
    return _FeatureList(features_hash(form, kind), feature_names(form, kind), WORK_TERMS[form])


def _text(folder: Path, report: _Entry, again: str) -> str | None:
    if report.file is None:
        return None
    path = folder / report.file
    content = read_bytes(path, f"{path} (is that a profile folder?)", ProfileError)
    if _sha256(content) != report.sha256:
        raise ProfileError(f"{path} is not the file that {PREDICTORS} names; {again}")
    return content.decode(errors="replace")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
