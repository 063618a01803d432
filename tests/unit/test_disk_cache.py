"""The cache on disk: what comes back is what was stored, or nothing; no folder, file or neighbour makes it fail."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coexec import disk_cache
from coexec.disk_cache import HEADER, DiskCache, let_go, open_cache

KEY, OTHER = bytes(range(32)), bytes(32)
PLENTY = 1 << 20


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", PLENTY)


def entry(cache: DiskCache, key: bytes = KEY) -> Path:
    assert cache.folder is not None
    return cache.folder / key.hex()


def stored(cache: DiskCache, key: bytes = KEY) -> bytes | None:
    content = cache.read(key)
    return None if content is None else bytes(content)


def test_what_was_stored_comes_back(cache: DiskCache) -> None:
    assert stored(cache) is None
    cache.write(KEY, [b"one", np.arange(3, dtype=np.int32), b""])
    assert stored(cache) == b"one" + np.arange(3, dtype=np.int32).tobytes()
    assert stored(cache, OTHER) is None
    cache.write(KEY, [b"two"])
    assert stored(cache) == b"two"


def test_nobody_else_can_read_or_write(cache: DiskCache) -> None:
    before = os.umask(0)
    try:
        fresh = DiskCache(entry(cache).parent / "inner", PLENTY)
        fresh.write(KEY, [b"x"])
    finally:
        os.umask(before)
    assert fresh.folder is not None
    assert stat.S_IMODE(fresh.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(fresh).stat().st_mode) == 0o600


def test_content_stays_while_it_is_replaced_and_let_go(cache: DiskCache) -> None:
    cache.write(KEY, [b"a" * 10000])
    held = cache.read(KEY)
    assert held is not None
    cache.write(KEY, [b"b" * 10000])
    let_go(held)
    assert bytes(held) == b"a" * 10000
    with pytest.raises(TypeError):
        held[0] = 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(content=st.binary(max_size=300), data=st.data())
def test_any_damage_is_noticed(cache: DiskCache, content: bytes, data: st.DataObject) -> None:
    """One byte changed, cut short, or lengthened, anywhere but in the header's padding."""
    cache.write(KEY, [content])
    whole = entry(cache).read_bytes()
    kind = data.draw(st.sampled_from(["change", "cut", "lengthen"]))
    if kind == "change":
        place = data.draw(st.integers(0, len(whole) - 1).filter(lambda i: not HEADER.size - 4 <= i < HEADER.size))
        damaged = bytearray(whole)
        damaged[place] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        damaged = bytearray(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        damaged = bytearray(whole + data.draw(st.binary(min_size=1, max_size=20)))
    entry(cache).write_bytes(damaged)
    assert cache.read(KEY) is None
    cache.write(KEY, [content])
    assert stored(cache) == content


def test_another_format_and_another_key_are_not_read(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(KEY, [b"x"])
    entry(cache).rename(entry(cache, OTHER))
    assert stored(cache, OTHER) is None
    cache.write(KEY, [b"x"])
    monkeypatch.setattr(disk_cache, "MAGIC", b"coexec cache 2\n\0")
    assert stored(cache) is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_files_that_others_can_write_are_not_read(cache: DiskCache, mode: int) -> None:
    cache.write(KEY, [b"x"])
    entry(cache).chmod(mode)
    assert cache.read(KEY) is None


def test_files_of_others_are_not_read(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(KEY, [b"x"])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.read(KEY) is None


def test_links_folders_and_pipes_are_not_read(cache: DiskCache, tmp_path: Path) -> None:
    cache.write(OTHER, [b"x"])
    entry(cache).symlink_to(entry(cache, OTHER))
    assert cache.read(KEY) is None
    entry(cache).unlink()
    entry(cache).mkdir()
    assert cache.read(KEY) is None


@pytest.mark.parametrize("kind", ["writable by others", "of another user", "a file", "below a file", "kernel's own"])
def test_a_folder_that_cannot_be_used_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = tmp_path / "cache"
    if kind == "writable by others":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "of another user":
        folder.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    elif kind == "kernel's own":
        folder = Path("/proc/coexec/cache")
    else:
        folder.write_text("precious")
        folder = folder / "below" if kind == "below a file" else folder
    with pytest.warns(UserWarning, match="starts stay slow.*COEXEC_CACHE_DIR") as told:
        cache = DiskCache(folder, PLENTY)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(KEY, [b"x"])
        assert cache.read(KEY) is None


def test_a_failing_write_is_said_once_and_leaves_nothing(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = entry(cache).parent

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        cache.write(KEY, [b"x"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(KEY, [b"x"])
    assert list(folder.iterdir()) == []


def test_the_oldest_are_removed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1000)
    keys = [bytes([i] * 32) for i in range(12)]
    for age, key in enumerate(keys[:9]):
        cache.write(key, [b"x" * 36])  # 100 bytes with the header
        os.utime(entry(cache, key), (1000 + age, 1000 + age))
    assert cache.read(keys[0]) is not None  # now it is the youngest
    cache.write(keys[9], [b"x" * 36])
    cache.write(keys[10], [b"x" * 36])
    left = {path.name for path in entry(cache).parent.iterdir()}
    assert left == {key.hex() for key in (keys[0], *keys[5:11])}
    cache.write(keys[11], [b"x" * 1001])
    assert cache.read(keys[11]) is None
    assert {path.name for path in entry(cache).parent.iterdir()} == left


def test_drafts_of_dead_processes_are_removed(cache: DiskCache) -> None:
    folder = entry(cache).parent
    old, new = folder / ".coexec-dead.tmp", folder / ".coexec-alive.tmp"
    for path in (old, new):
        path.write_bytes(b"x")
    long_ago = time.time() - 2 * disk_cache.ABANDONED_S
    os.utime(old, (long_ago, long_ago))
    cache.write(KEY, [b"x"])
    assert {path.name for path in folder.iterdir()} == {new.name, KEY.hex()}


WRITER = """
import sys
from pathlib import Path
from coexec.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), 40_000)
key = bytes(32)
for i in range(150):
    cache.write(key, [bytes([i]) * (1 + i * 50)])
    cache.write(bytes([i] * 32), [bytes(500)])
    found = cache.read(key)
    assert found is None or len(set(bytes(found))) == 1, "a mixture"
"""


def test_processes_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two that write, read and remove the same entries see whole ones or none, and fail in nothing."""
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path / "cache")]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for writer in writers:
        _, said = writer.communicate(timeout=120)
        assert (writer.returncode, said) == (0, "")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    for name in ("COEXEC_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    disk_cache._opened.cache_clear()
    yield monkeypatch
    disk_cache._opened.cache_clear()


def test_the_place_follows_the_environment(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert open_cache("kernels", PLENTY).folder == tmp_path / "home/.cache/coexec/kernels"
    environment.setenv("XDG_CACHE_HOME", "relative")
    assert open_cache("kernels", PLENTY).folder == tmp_path / "home/.cache/coexec/kernels"
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_cache("kernels", PLENTY).folder == tmp_path / "xdg/coexec/kernels"
    environment.setenv("COEXEC_CACHE_DIR", str(tmp_path / "own"))
    assert open_cache("models", PLENTY).folder == tmp_path / "own/models"
    environment.setenv("COEXEC_CACHE_DIR", "off")
    off = open_cache("kernels", PLENTY)
    off.write(KEY, [b"x"])
    assert off.folder is None and off.read(KEY) is None
    assert not (tmp_path / "off").exists()
