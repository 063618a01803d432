"""Results that are dear to make, kept on disk from one process to the next.

Bytes by key in, the same bytes out, or None. What is in the folder can make the process run code or compute wrong
numbers, so it is trusted only if it belongs to this user, nobody else can write to it, and its checksum is right;
all else is as if it were not there. A folder that cannot be used is said once, and costs nothing but time.

Entries are only ever replaced as a whole and never changed, so a reader keeps what it has opened, and processes
need no lock.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import time
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from coexec.errors import CoexecError
from coexec.whole_file import replacing

VARIABLE = "COEXEC_CACHE_DIR"
OFF = "off"

HEADER = struct.Struct("<16s32sIQ4x")
"""Magic, key, checksum, number of bytes; a multiple of 64 bytes, as arrays that follow it want."""
MAGIC = b"coexec cache 1\n\0"
CHUNK = 1 << 20
KEPT = 0.75
"""Share of the limit that is left after entries were removed, so that not every write removes some."""
ABANDONED_S = 3600.0
"""Age of a draft whose process has surely ended."""


class DiskCache:
    """One folder of entries, together no larger than ``limit_bytes``: those not used for longest are removed.

    Attributes:
        folder: None if the cache is off or cannot be used: nothing is found then, and nothing kept.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        if folder is not None:
            self._prepare(folder)

    def read(self, key: bytes) -> memoryview | None:
        """The bytes stored under ``key`` (32 bytes), read-only, mapped into memory as they are looked at."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                content = _checked(descriptor, key)
            finally:
                os.close(descriptor)
        except (OSError, ValueError):  # mmap raises the latter, for an empty file
            return None
        if content is not None:
            with suppress(OSError):
                os.utime(path)  # it is in use
        return content

    def write(self, key: bytes, parts: Sequence[Any]) -> None:
        """Store the joined ``parts`` (bytes or contiguous arrays) under ``key``, if there is room for them."""
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(view.nbytes for view in views)
        if self.folder is None or size > self.limit_bytes:
            return
        checksum = 0
        for view in views:
            checksum = zlib.crc32(view, checksum)
        try:
            with replacing(self._path(self.folder, key), CoexecError) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(HEADER.pack(MAGIC, key, checksum, size))
                for view in views:
                    file.write(view)
            self._trim(self.folder)
        except (CoexecError, OSError) as error:
            self._give_up(str(error))

    def _path(self, folder: Path, key: bytes) -> Path:
        return folder / key.hex()

    def _prepare(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as error:
            self._give_up(f"{folder}: {error.strerror or error}")
            return
        if not _is_private(status):
            self._give_up(f"{folder} belongs to another user or can be written by others")

    def _give_up(self, reason: str) -> None:
        self.folder = None
        warnings.warn(
            f"starts stay slow, nothing is kept on disk: {' '.join(reason.split())}; "
            f"set {VARIABLE} to a private folder, or to {OFF!r}",
            stacklevel=2,
        )

    def _trim(self, folder: Path) -> None:
        """Keep to the limit. Other processes may do the same at the same time."""
        entries, now = [], time.time()
        for entry in os.scandir(folder):
            with suppress(OSError):  # another process has just removed it
                status = entry.stat(follow_symlinks=False)
                if not entry.name.endswith(".tmp"):
                    entries.append((status.st_mtime, status.st_size, entry.path))
                elif now - status.st_mtime > ABANDONED_S:
                    Path(entry.path).unlink(missing_ok=True)
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes * KEPT:
                return
            with suppress(OSError):
                Path(path).unlink(missing_ok=True)
            total -= size


def let_go(content: memoryview) -> None:
    """Give the memory back that ``read``'s result takes; it is read from the disk again where it is used again."""
    mapped = content.obj
    assert isinstance(mapped, mmap.mmap)
    mapped.madvise(mmap.MADV_DONTNEED)


def _checked(descriptor: int, key: bytes) -> memoryview | None:
    """What an open entry holds; None if it is damaged, or not this user's own."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not _is_private(status):
        return None
    mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    if len(mapped) < HEADER.size:
        return None
    magic, found, checksum, size = HEADER.unpack_from(mapped)
    content = memoryview(mapped)[HEADER.size :]
    if (magic, found, size) != (MAGIC, key, content.nbytes):
        return None
    actual = 0
    for start in range(0, size, CHUNK):
        actual = zlib.crc32(content[start : start + CHUNK], actual)
    let_go(content)
    return content if actual == checksum else None


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def open_cache(name: str, limit_bytes: int) -> DiskCache:
    """The user's cache of this name; one object a process, as long as the environment names the same folder."""
    setting = os.environ.get(VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", "")
    return _opened(name, limit_bytes, *setting)


@cache
def _opened(name: str, limit_bytes: int, setting: str, xdg: str) -> DiskCache:
    if setting == OFF:
        return DiskCache(None, limit_bytes)
    root: Path | None
    if setting:
        root = Path(setting).absolute()
    elif xdg.startswith("/"):  # its specification ignores relative ones
        root = Path(xdg) / "coexec"
    else:
        try:
            root = Path.home() / ".cache" / "coexec"
        except RuntimeError:  # a user without a home folder
            root = None
    return DiskCache(root and root / name, limit_bytes)
