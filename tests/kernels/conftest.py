"""Tests of what kernels compute, most of whose time goes into building them: side by side under pytest-xdist, where
each process keeps to one core, on which both sides take turns. Hand-overs between cores are tested elsewhere."""

from __future__ import annotations

import os


def keep_to_one_core(worker: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    keep_to_one_core(worker)
