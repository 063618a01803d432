"""Every error that coexec documents. Each message is one line that says what to do."""

from __future__ import annotations

import re

LONGEST_WORD, LONGEST = 200, 600
"""Characters of a word and of a message; of longer ones (a damaged file's text may be in it) the middle is left out."""


class CoexecError(Exception):
    """Base of every documented error. ``exit_code`` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        # Long words first: what is wrong may stand between two of them, and what to do stands at the end.
        line = re.sub(r"\S+", lambda word: _shortened(word[0], LONGEST_WORD), " ".join(message.splitlines()))
        super().__init__(_shortened(line, LONGEST))


class ModelError(CoexecError):
    """The model file is damaged, unsupported or leaves something open."""


class PlanError(CoexecError):
    """The plan is damaged or belongs to another model or device."""


class ProfileError(CoexecError):
    """The profile is damaged, of another schema, or of another device."""


class InputError(CoexecError):
    """An argument or a fed array has a wrong name, dtype, shape or value."""


class DeviceError(CoexecError):
    """An OpenCL device is missing, refused work or gave a wrong result."""

    exit_code = 3


class SyncTimeout(DeviceError):
    """One side waited for the other beyond its time limit; the run was given up."""


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
