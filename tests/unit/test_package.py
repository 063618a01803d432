"""The wheel works where there is no checkout: kernels, profiles and data travel with it."""

from __future__ import annotations

import json
import os
import platform
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


def test_sdist_and_wheel_carry_every_file(dist: Path) -> None:
    tracked = set(run("git", "ls-files", "kernels", "predictors", "profiles", "coexec", cwd=ROOT).split())
    wheel = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {f if f.startswith("coexec/") else f"coexec/{f}" for f in tracked} - wheel == set()
    assert tracked - sdist == set()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the embedded OpenCL device exists for x86-64 only")
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
