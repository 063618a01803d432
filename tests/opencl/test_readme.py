"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer.main

import coexec
from coexec.cli.commands import app

README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"`coexec ([a-z]+[^`]*)`", README)))


@pytest.mark.filterwarnings("ignore:profile .* fits only nearly", "ignore:no profile fits", "ignore:no usable OpenCL")
def test_python_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(coexec.zoo.resnet18(), tmp_path / "resnet18.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"x": np.ones((1, 3, 224, 224), np.float32)}
    assert PYTHON
    for example in PYTHON:
        exec(example, names)
    assert names["y"].shape == (1, 1000)
    assert (tmp_path / "plan.json").is_file()


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_and_their_options_exist(text: str) -> None:
    words = text.split()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    if words[0] == "COMMAND":
        return
    assert words[0] in commands
    options = {o for p in commands[words[0]].params for o in p.opts} | {"--help"}
    assert {w for w in words if w.startswith("-")} <= options
