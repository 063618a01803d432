"""The libraries that coexec is compared with. A new one is a file with a class, and a line in PEERS.

A single layer comes as one model of several independent copies, so that none finds its own data in the caches.
Libraries are imported when they are first asked to load something; one that is not installed, or that cannot load
a model, is a note.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from coexec.errors import InputError
from coexec.experiments.peers.base import Peer, Run
from coexec.experiments.peers.litert_peer import LiteRt
from coexec.experiments.peers.mnn_peer import Mnn
from coexec.experiments.peers.ncnn_peer import Ncnn
from coexec.experiments.peers.numpy_peer import Numpy
from coexec.experiments.peers.onnxruntime_peer import OnnxRuntime
from coexec.experiments.peers.openvino_peer import OpenVino, OpenVinoDefault
from coexec.experiments.peers.torch_peer import Torch
from coexec.layout import Array

__all__ = ["PEERS", "REFERENCE", "Loaded", "Peer", "Run", "choose_peers", "load_all", "loaded", "relative_difference"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Numpy(),
        OnnxRuntime(),
        OpenVino(),
        OpenVinoDefault(),
        Ncnn(),
        Mnn(),
        Torch(),
        LiteRt(),
    )
}

REFERENCE = "onnxruntime"
"""The results of all others are compared with this one's."""


@dataclass(frozen=True)
class Loaded:
    """Peers that are ready to run something.

    Attributes:
        runs: by name.
        notes: a line for each peer that cannot run it.
        differences: largest |difference| from onnxruntime's results over the largest value; None without it.
    """

    runs: dict[str, Run]
    notes: list[str]
    differences: dict[str, float | None]


def choose_peers(names: Sequence[str] | None) -> list[Peer]:
    """The named peers, all of them for None; InputError for a name that is not known."""
    for name in names or ():
        if name not in PEERS:
            raise InputError(f"unknown peer {name!r}; there are {', '.join(PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(PEERS if names is None else names)]


def load_all(peers: Sequence[Peer], load: Callable[[Peer], Run]) -> Loaded:
    """What ``load`` makes of each peer, and how far their results are from the reference's."""
    found = {peer.name: loaded(peer, load) for peer in peers}
    runs = {name: run for name, (run, _) in found.items() if run is not None}
    reference = runs.get(REFERENCE) or loaded(PEERS[REFERENCE], load)[0]
    expected = reference() if reference else None
    differences = {
        name: None if expected is None else relative_difference(run(), expected)
        for name, run in runs.items()
        if name != REFERENCE
    }
    return Loaded(runs, [reason for _, reason in found.values() if reason is not None], differences)


def loaded(peer: Peer, load: Callable[[Peer], Run]) -> tuple[Run | None, str | None]:
    """What ``load`` makes of a peer, or None and the reason in one line."""
    reason = peer.available()
    if reason is not None:
        return None, f"{peer.name}: {reason}"
    try:
        with _prints_on_stderr():
            run = load(peer)
            run()
    except Exception as error:  # libraries raise anything; the comparison goes on without them
        return None, f"{peer.name}: {' '.join(str(error).split())[:200] or type(error).__name__}"
    return run, None


def relative_difference(results: Sequence[Array], expected: Sequence[Array]) -> float:
    """Largest |difference| over the largest |expected value| of the same output; infinite for other shapes or NaN."""
    if [np.shape(r) for r in results] != [np.shape(e) for e in expected]:
        return float("inf")
    tiny = float(np.finfo(np.float32).tiny)
    worst = 0.0
    for result, right in zip(results, expected, strict=True):
        if right.size:
            scale = max(float(np.abs(right).max()), tiny)
            error = float(np.abs(np.asarray(result, np.float64) - right).max()) / scale
            worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


@contextmanager
def _prints_on_stderr() -> Iterator[None]:
    """Sends what libraries print to stderr: stdout is for the result."""
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
