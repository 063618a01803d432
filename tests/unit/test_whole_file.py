"""Every kind of output file: put in place in one step, through links, or left as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coexec.cli.bench_page import save_page
from coexec.cli.npz import save_arrays
from coexec.costs import Estimate
from coexec.errors import CoexecError, InputError, PlanError, ProfileError
from coexec.graph import Graph
from coexec.plan import Plan
from coexec.profiling.profile_files import write_json
from coexec.timeline import save_timeline

PLAN = Plan("m", "", "", "", 0, 1, "", (), {}, {}, 0.1, "test", {}, {}, "", "")
PAGE = {"environment": {"versions": {}}, "models": [], "layers": [], "noise": None, "summary": [], "notes": []}
Writer = tuple[Callable[[Path], None], type[CoexecError]]
"""Writes to a path, and what it raises."""

WRITERS: dict[str, Writer] = {
    "plan": (PLAN.save, PlanError),
    "timeline": (lambda p: save_timeline(str(p), Graph("m", (), {}, {}, (), ()), PLAN, Estimate()), InputError),
    "arrays": (lambda p: save_arrays(str(p), {"x": np.zeros(3)}), InputError),
    "page": (lambda p: save_page(str(p), PAGE), InputError),
    "profile": (lambda p: write_json(p, {"a": 1}), ProfileError),
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def test_links_are_followed_and_modes_kept(writer: Writer, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    real, link, dangling = folder / "real", tmp_path / "link", tmp_path / "dangling"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    dangling.symlink_to(folder / "made")
    writer[0](link)
    writer[0](dangling)
    assert link.is_symlink() and dangling.is_symlink()
    assert real.read_bytes() == (folder / "made").read_bytes() != b"old"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert {p.name for p in folder.iterdir()} == {"real", "made"}


def test_the_longest_name_can_be_written(writer: Writer, tmp_path: Path) -> None:
    writer[0](tmp_path / ("n" * 255))
    assert [p.name for p in tmp_path.iterdir()] == ["n" * 255]


def _not_files(folder: Path) -> list[Path]:
    """What is there and no regular file, itself and through a link; and what can be no path."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file").write_text("precious")
    for name in ("folder", "fifo"):
        (folder / f"to_{name}").symlink_to(folder / name)
    names = ("folder", "fifo", "loop", "to_folder", "to_fifo", "file/below", "missing/file")
    return [folder / n for n in (*names, "n" * 256, "n/" * 3000 + "n", "nul\0", "\ud800")]


def test_what_is_no_file_stays_as_it_is(writer: Writer, tmp_path: Path) -> None:
    bad = _not_files(tmp_path)
    before = {p.name: p.lstat() for p in tmp_path.iterdir()}
    for path in bad:
        with pytest.raises(writer[1], match=r"cannot write (.|\n)*: ") as raised:
            writer[0](path)
        assert len(str(raised.value).splitlines()) == 1
    assert {p.name: p.lstat() for p in tmp_path.iterdir() if p.name != "folder"} == {
        name: status for name, status in before.items() if name != "folder"
    }
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("broken", ["replace", "chmod"])
def test_a_failure_leaves_the_old_file(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("precious")
    monkeypatch.setattr(Path, broken, full)
    with pytest.raises(writer[1], match="No space left on device"):
        writer[0](tmp_path / "file")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["precious"]
