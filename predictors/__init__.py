"""Latency predictors: features, training, loading. LightGBM is loaded at the first prediction or training."""

from coexec.predictors.matching import match, misfit
from coexec.predictors.model import Predictors, load_predictors

__all__ = ["Predictors", "load_predictors", "match", "misfit"]
