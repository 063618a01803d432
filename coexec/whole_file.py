"""Output files: written whole and put in place in one step, or left as they were."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from coexec.errors import CoexecError


def destination(path: str | os.PathLike[str]) -> Path:
    """The regular file that ``path`` leads to, symbolic links followed, or the place where it would be made.

    Raises OSError if something else is there (a folder, a device, a pipe), or if there can be no such path.
    """
    given = Path(path)
    try:
        mode = given.stat().st_mode
    except FileNotFoundError:
        return given.resolve()
    except ValueError as error:  # a NUL, or text that the file system cannot encode
        raise OSError(errno.EINVAL, str(error)) from error
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file and cannot be replaced; name a file")
    return given.resolve()


@contextmanager
def replacing(path: str | os.PathLike[str], error: type[CoexecError]) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of the one at ``path`` when the block ends well.

    Else that file stays as it was. An OSError becomes ``error`` with one line.
    """
    try:
        target = destination(path)
        # A name of its own: one made of the target's could be too long.
        draft = target.with_name(f".coexec-{secrets.token_hex(8)}.tmp")
        try:
            with draft.open("xb") as file:
                if target.exists():
                    draft.chmod(stat.S_IMODE(target.stat().st_mode))
                yield file
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as problem:
        raise error(f"cannot write {os.fspath(path)}: {problem.strerror or problem}") from problem
