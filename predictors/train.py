"""Trains a profile's latency predictors: one `LatencyModel` per side, kind and implementation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coexec.backends.cpu import CPU_BY_NAME
from coexec.costs import Floats
from coexec.errors import ProfileError
from coexec.kernels import LAYER_KERNELS
from coexec.kernels.variant import Bools
from coexec.launch import launch
from coexec.ops.base import stack_columns
from coexec.predictors.features import (
    WORK_TERMS,
    Features,
    feature_names,
    form_of,
    kernel_features,
    matrix,
    routine_features,
    work_matrix,
)
from coexec.predictors.latency import fit
from coexec.predictors.model_files import MIN_POINTS, ModelReport, save_models
from coexec.profiling.profile_files import (
    DEVICE,
    MEASUREMENTS,
    DeviceRecord,
    Measurement,
    bad_line,
    known_implementations,
    read_measurements,
)

Indices = npt.NDArray[np.int64]

FOLDS = 5
DEFAULTS: dict[str, Any] = {
    "num_boost_round": 150,
    "learning_rate": 0.08,
    "num_leaves": 15,
    "min_data_in_leaf": 4,
    "lambda_l2": 0.5,
    "feature_fraction": 0.7,
}
"""Parameters without tuning: small, since a profile has tens to some thousands of points per model."""


@dataclass(frozen=True)
class TrainProgress:
    """How far a training is: models done and in all, and what is being trained."""

    done: int
    models: int
    name: str


@dataclass(frozen=True)
class TrainReport:
    """What a training made, per implementation."""

    folder: Path
    models: tuple[ModelReport, ...]

    def to_json(self) -> dict[str, Any]:
        """As `coexec train --json` prints it."""
        names = ("processor", "op", "implementation", "mape", "within_10pct", "points", "note")
        return {"models": [{name: getattr(m, name) for name in names} for m in self.models], "ablation": []}


@dataclass(frozen=True)
class Table:
    """The measurements of one implementation.

    Rows of one group have nearly the same shape and never stand on both sides of a split.
    """

    features: Floats
    work: Floats
    measured_us: Floats
    groups: Indices


def train(
    folder: str | os.PathLike[str],
    trials: int = 0,
    storage: str | None = None,
    seed: int = 0,
    progress: Callable[[TrainProgress], None] | None = None,
) -> TrainReport:
    """Train on a profile's measurements and store the models in its folder.

    ``trials`` > 0 tunes each model by so many Optuna trials, kept in ``storage`` (an Optuna URL such as
    "sqlite:///study.db"; None: in memory), where a later call goes on. The same data, seed and versions
    give the same models. Raises ProfileError for a missing package, bad data, or too few points.
    """
    path = Path(folder)
    if trials < 0:
        raise ProfileError(f"trials is {trials}; it must be 0 or more")
    pandas = _needed("pandas")
    _needed("sklearn.model_selection")
    device = DeviceRecord.load(path)
    measurements = read_measurements(path)
    frame = pandas.DataFrame(
        {
            "side": [m.side for m in measurements],
            "kind": [m.kind for m in measurements],
            "implementation": [m.implementation for m in measurements],
            "key": [_key(m) for m in measurements],
        }
    ).drop_duplicates()
    models: list[tuple[ModelReport, str | None]] = []
    grouped = list(frame.groupby(["side", "kind", "implementation"], sort=True))
    for done, ((side, _, implementation), rows) in enumerate(grouped):
        if progress is not None:
            progress(TrainProgress(done, len(grouped), f"{side} {implementation}"))
        own = [measurements[i] for i in rows.index]
        models.append(_train_one(device, own, _Tuning(trials, storage, seed)))
    if all(text is None for _, text in models):
        most = max((report.points for report, _ in models), default=0)
        raise ProfileError(
            f"{path / MEASUREMENTS} has too few measurements ({most} of one implementation at most, {MIN_POINTS} "
            f"needed); measure more by `coexec profile --resume`"
        )
    save_models(path, models, _environment(path, trials, seed))
    return TrainReport(path, tuple(report for report, _ in models))


@dataclass(frozen=True)
class _Tuning:
    trials: int
    storage: str | None
    seed: int


def _train_one(
    device: DeviceRecord, measurements: Sequence[Measurement], tuning: _Tuning
) -> tuple[ModelReport, str | None]:
    """Report and model text of one implementation; no text if there are too few points."""
    side, kind, implementation = measurements[0].side, measurements[0].kind, measurements[0].implementation

    def report(mape: float | None, within: float | None, note: str, parameters: Mapping[str, Any]) -> ModelReport:
        return ModelReport(side, kind, implementation, len(measurements), mape, within, note, parameters)

    if implementation not in known_implementations(side):
        return report(None, None, "this version has no such implementation", {}), None
    if len(measurements) < MIN_POINTS:
        note = f"{len(measurements)} points, {MIN_POINTS} needed: measure more by `coexec profile --resume`"
        return report(None, None, note, {}), None
    table = make_table(device, measurements)
    parameters = dict(DEFAULTS)
    if tuning.trials:
        parameters |= _tune(f"{side} {implementation}", table, tuning)
    off = np.abs(cross_predict(table, parameters, tuning.seed) / table.measured_us - 1)
    names = feature_names(form_of(implementation), kind)
    model = fit(table.features, table.work, table.measured_us, parameters, tuning.seed, names)
    made = report(round(float(off.mean()), 5), round(float((off <= 0.1).mean()), 5), "", parameters)
    return replace(made, work_us=tuple(model.work_us.tolist())), model.booster.model_to_string()


def make_table(device: DeviceRecord, measurements: Sequence[Measurement]) -> Table:
    """Features and targets of measurements of one implementation, in their order."""
    side, kind, implementation = measurements[0].side, measurements[0].kind, measurements[0].implementation
    form = form_of(implementation)
    names = feature_names(form, kind)
    features = np.empty((len(measurements), len(names)))
    work = np.empty((len(measurements), 1 + len(WORK_TERMS[form])))
    workers = np.array([m.threads if side == "cpu" else m.compute_units for m in measurements])
    for count in np.unique(workers):
        mine = np.flatnonzero(workers == count)
        made = _features(device, [measurements[int(i)] for i in mine], int(count))
        features[mine] = matrix(made, names)
        work[mine] = work_matrix(form, made)
    measured = np.array([m.median_us for m in measurements])
    return Table(features, work, measured, _groups(features, names))


def _features(device: DeviceRecord, measurements: Sequence[Measurement], workers: int) -> Features:
    """Features of measurements of one implementation that had so many compute units or threads."""
    side, kind, implementation = measurements[0].side, measurements[0].kind, measurements[0].implementation
    columns = stack_columns([m.columns for m in measurements])
    if form_of(implementation) == "routine":
        _check_supported(measurements, CPU_BY_NAME[implementation].supports(columns))
        return routine_features(kind, columns, workers)
    own = device.cpu_kernels
    traits = device.traits(workers) if side == "gpu" else own.traits(workers) if own else None
    if traits is None:
        problem = f"{DEVICE} names nothing that runs kernels on the CPU side with {workers} threads"
        raise bad_line(measurements[0].where, problem)
    _check_supported(measurements, LAYER_KERNELS[implementation].supports(columns, traits))
    return kernel_features(kind, columns, launch(kind, columns, traits, implementation))


def _check_supported(measurements: Sequence[Measurement], taken: Bools) -> None:
    """Refuse lines of layers that their implementation does not compute."""
    for measurement, supported in zip(measurements, taken, strict=True):
        if not supported:
            raise bad_line(measurement.where, f"{measurement.implementation} does not compute such a layer")


def cross_predict(table: Table, parameters: Mapping[str, Any], seed: int) -> Floats:
    """Microseconds of each row as predicted by a model that has seen nothing like it."""
    predicted = np.empty(len(table.measured_us))
    for known, unknown in _folds(table):
        predicted[unknown] = _predict_fold(table, known, unknown, parameters, seed)
    return predicted


def _predict_fold(table: Table, known: Indices, unknown: Indices, parameters: Mapping[str, Any], seed: int) -> Floats:
    model = fit(table.features[known], table.work[known], table.measured_us[known], parameters, seed)
    return model.predict(table.features[unknown], table.work[unknown])


def _folds(table: Table) -> list[tuple[Indices, Indices]]:
    """Grouped split: rows of one group are all in the training part or all in the test part."""
    splits = min(FOLDS, len(np.unique(table.groups)))
    if splits < 2:
        raise ProfileError("all measurements are of nearly the same shape; measure more by `coexec profile --resume`")
    folds = _needed("sklearn.model_selection").GroupKFold(n_splits=splits)
    return list(folds.split(table.features, groups=table.groups))


def _tune(name: str, table: Table, tuning: _Tuning) -> dict[str, Any]:
    """Parameters with the least mean |log error| over the folds, after as many trials as are still missing."""
    optuna = _needed("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    digest = hashlib.sha256(table.features.tobytes() + table.measured_us.tobytes()).hexdigest()[:12]
    folds = _folds(table)

    def objective(trial: Any) -> float:
        parameters = _suggest(trial)
        errors = []
        for step, (known, unknown) in enumerate(folds):
            predicted = _predict_fold(table, known, unknown, parameters, tuning.seed)
            errors.append(float(np.mean(np.abs(np.log(predicted / table.measured_us[unknown])))))
            trial.report(float(np.mean(errors)), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(errors))

    try:
        study = optuna.create_study(
            study_name=f"{name} {digest}",
            storage=tuning.storage,
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=tuning.seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=1),
        )
    except Exception as error:  # whatever the database driver raises: the URL is the user's
        first = (str(error).splitlines() or [""])[0]
        raise ProfileError(f"cannot open the Optuna storage {tuning.storage!r}: {first}") from error
    if not study.trials:
        study.enqueue_trial(DEFAULTS)
    finished = sum(trial.state.is_finished() for trial in study.trials)
    study.optimize(objective, n_trials=max(0, tuning.trials - finished))
    return dict(study.best_params)


def _suggest(trial: Any) -> dict[str, Any]:
    """Ranges in which the models stay small enough to predict thousands of parts in tens of milliseconds."""
    return {
        "num_boost_round": trial.suggest_int("num_boost_round", 50, 250),
        "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.2, log=True),
        "num_leaves": trial.suggest_int("num_leaves", 4, 31, log=True),
        "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 2, 20, log=True),
        "lambda_l2": trial.suggest_float("lambda_l2", 1e-2, 10.0, log=True),
        "feature_fraction": trial.suggest_float("feature_fraction", 0.3, 1.0),
    }


def _groups(features: Floats, names: Sequence[str]) -> Indices:
    """Number of the row's neighbourhood: sizes within a factor of 1.4 or so of one another."""
    index = [names.index(name) for name in ("rows", "depth", "channels", "groups")]
    rounded = np.round(2 * np.log2(np.maximum(features[:, index], 1)))
    return np.asarray(np.unique(rounded, axis=0, return_inverse=True)[1], np.int64).reshape(-1)


def _key(m: Measurement) -> tuple[Any, ...]:
    """Equal for lines that are copies of one another."""
    sizes = tuple(int(column[0]) for column in m.columns.values())
    return (m.sample, m.threads, m.compute_units, *sizes, m.median_us)


def _environment(folder: Path, trials: int, seed: int) -> dict[str, Any]:
    import lightgbm

    return {
        "trained": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "measurements_sha256": hashlib.sha256((folder / MEASUREMENTS).read_bytes()).hexdigest(),
        "trials": trials,
        "seed": seed,
        "versions": {"lightgbm": lightgbm.__version__, "numpy": np.__version__},
    }


def _needed(module: str) -> Any:
    """A module that only training needs."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ProfileError(f"training needs {package}: install it, or coexec with its extra 'train'") from error
