"""Measuring experiments: demo, validation, benchmark, conformance, the cost of a hand-over."""
