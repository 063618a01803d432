"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with (steps done, all steps, what comes next)."""


def quiet(done: int, total: int, text: str) -> None:
    """The progress callback that shows nothing."""
