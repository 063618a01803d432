"""The model of one implementation: a sum of rates times work, corrected by gradient-boosted trees.

Trees alone cannot extrapolate, and learn sums poorly from few points. So the time is first fitted as a sum
of non-negative rates times amounts of work; the trees learn the log of the factor that is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coexec.costs import Floats

SHORTEST_US = 0.05

FIXED: dict[str, Any] = {
    "objective": "regression",
    "num_threads": 1,
    "deterministic": True,
    "force_col_wise": True,
    "verbosity": -1,
}


@dataclass(frozen=True)
class LatencyModel:
    """Predicts microseconds from a part's amounts of work and its features.

    Attributes:
        work_us: microseconds of the constant and per unit of each work term.
        booster: LightGBM model of log(measured / sum of work).
    """

    work_us: Floats
    booster: Any

    def predict(self, features: Floats, work: Floats) -> Floats:
        """Microseconds per row of ``features`` [n, features] and ``work`` [n, 1 + terms]."""
        correction = self.booster.predict(features, num_threads=1)
        return np.asarray(base_us(work, self.work_us) * np.exp(correction), np.float64)


def fit(
    features: Floats,
    work: Floats,
    measured_us: Floats,
    parameters: Mapping[str, Any],
    seed: int,
    names: Sequence[str] = (),
) -> LatencyModel:
    """Fit both stages; the same arguments give the same model. ``names`` are those of the features."""
    import lightgbm

    work_us = fit_work(work, measured_us)
    target = np.log(measured_us / base_us(work, work_us))
    own = {**FIXED, **parameters, "seed": seed}
    rounds = own.pop("num_boost_round")
    data = lightgbm.Dataset(features, target, feature_name=list(names) or "auto", params={"verbosity": -1})
    return LatencyModel(work_us, lightgbm.train(own, data, num_boost_round=rounds))


def fit_work(work: Floats, measured_us: Floats) -> Floats:
    """Non-negative rates with the least relative squared error."""
    from scipy.optimize import nnls

    relative = work / measured_us[:, None]
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    rates, _ = nnls(relative / scale, np.ones(len(work)))
    return np.asarray(rates / scale, np.float64)


def base_us(work: Floats, work_us: Floats) -> Floats:
    """The sum of work, never 0; row by row the same in any batch, which a BLAS product would not be."""
    return np.asarray(np.maximum((work * work_us).sum(axis=1), SHORTEST_US), np.float64)
