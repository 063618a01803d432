"""Latency predictors: features, training, loading."""
