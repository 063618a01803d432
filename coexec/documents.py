"""Reads coexec's own JSON files by a declared schema.

The schema is the dataclass that the file becomes: its annotations say what each field may hold, `msgspec` checks
them and names the place of a fault. A field without a default must be there; a dataclass leaves out unknown fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from coexec.errors import CoexecError

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A position or a number of things, maybe none."""
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""Length of one side of an array: kernels count in 32 bits."""
Workers = Annotated[int, Meta(ge=1, le=1 << 16)]
"""Cores, threads or compute units."""
Duration = Annotated[float, Meta(ge=0, le=1e12)]
"""Finite microseconds or milliseconds: at most a few days, or years."""

Shape = TypeVar("Shape")


class _Head(msgspec.Struct):
    schema: Count


def read_bytes(path: Path, what: str, error: type[CoexecError]) -> bytes:
    """Content of a file that messages call ``what``; ``error`` if it cannot be read."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as cause:  # ValueError: a path that no file can have
        raise error(f"cannot read {what}: {getattr(cause, 'strerror', None) or cause}") from cause


def parse(content: bytes, what: str, error: type[CoexecError], remedy: str) -> Any:
    """The file's JSON values, not checked any further."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as cause:
        raise error(f"{what} is damaged (no JSON: {cause}); {remedy}") from cause


def checked(data: Any, shape: type[Shape], version: int, what: str, error: type[CoexecError], remedy: str) -> Shape:
    """JSON values as an instance of ``shape``; ``error`` if they are of another schema version or do not fit."""
    try:
        found = msgspec.convert(data, _Head).schema
        if found == version:
            return msgspec.convert(data, shape)
    except msgspec.ValidationError as cause:
        raise error(f"{what} is damaged ({cause}); {remedy}") from cause
    advice = "upgrade coexec" if found > version else remedy
    raise error(f"{what} has schema {found}, this version reads {version}; {advice}")
