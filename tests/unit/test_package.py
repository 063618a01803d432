"""The wheel works where there is no checkout: kernels, profiles and data travel with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "coexec"
    run("git", "clone", "--quiet", ROOT, source, cwd=folder)
    run(sys.executable, "-m", "build", "--outdir", folder, source, cwd=folder)
    return folder


def test_sdist_and_wheel_carry_all_data(dist: Path) -> None:
    tracked = run("git", "ls-files", "kernels", "profiles", "coexec", cwd=ROOT).split()
    data = {Path(f).name for f in tracked if not f.endswith(".py")}
    wheel = {Path(n).name for n in zipfile.ZipFile(next(dist.glob("*.whl"))).namelist()}
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        sdist = {Path(n).name for n in archive.getnames()}
    assert data - wheel == set()
    assert data - sdist == set()


def test_wheel_runs_the_demo_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    wheel = next(dist.glob("*.whl"))
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cpu-device,onnxruntime]", cwd=tmp_path)
    output = run(python.with_name("coexec"), "demo", "--model", "squeezenet", "--json", cwd=tmp_path)
    result = json.loads(output)
    assert result["model"] == "squeezenet"
    assert result["max_rel_error"] <= 1e-4
    assert result["device"], "the embedded OpenCL device was not found"
