"""Every error that coexec documents. Each message is one line that says what to do."""

from __future__ import annotations

LONGEST = 600
"""Characters of a message; of a longer one (a damaged file's text may be in it) the middle is left out."""


class CoexecError(Exception):
    """Base of every documented error. ``exit_code`` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} ... {line[-(LONGEST // 2 - 5) :]}"  # what to do stands at the end
        super().__init__(line)


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
