"""Layer suites and layer files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coexec.errors import InputError
from coexec.experiments.suites import SUITES, NamedLayer, load_layers
from coexec.ops.activation import Activation
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

LINEAR = {"name": "a", "op": "linear", "M": 2, "K": 3, "N": 4}
CONV = {
    "name": "b", "op": "conv2d", "N": 1, "C_in": 4, "H": 9, "W": 7, "C_out": 6, "KH": 3, "KW": 1, "stride": 1,
    "padding": 0, "groups": 2,
}  # fmt: skip


def layers(folder: Path, entries: Any) -> list[NamedLayer]:
    path = folder / "layers.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return load_layers(path)


def test_suites_hold_the_published_layers() -> None:
    found = {name: {layer.name: layer.op for layer in load_layers(name)} for name in SUITES}
    assert {name: len(ops) for name, ops in found.items()} == {"linear": 12, "conv": 15}
    assert found["linear"]["square_196"] == Linear(196, 1024, 1024)
    assert found["conv"]["resnet_3x3_64"] == Conv2d(1, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1, 1)
    inception = found["conv"]["inception_1x7"]
    assert isinstance(inception, Conv2d)
    assert (inception.pad_top, inception.pad_left, inception.OH, inception.OW) == (0, 3, 17, 17)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (LINEAR, Linear(2, 3, 4)),
        ({**LINEAR, "bias": True}, Linear(2, 3, 4, bias=True)),
        ({**LINEAR, "activation": "relu"}, Linear(2, 3, 4, activation=Activation("relu"))),
        ({**LINEAR, "activation": "clip"}, Linear(2, 3, 4, activation=Activation("clip", 0, 6))),
        (CONV, Conv2d(1, 4, 9, 7, 6, 3, 1, groups=2)),
        ({**CONV, "padding": 1}, Conv2d(1, 4, 9, 7, 6, 3, 1, 1, 1, 1, 1, 1, 1, groups=2)),
        ({**CONV, "padding": [1, 2], "stride": [2, 3]}, Conv2d(1, 4, 9, 7, 6, 3, 1, 2, 3, 1, 2, 1, 2, groups=2)),
    ],
)
def test_fields(tmp_path: Path, entry: dict[str, Any], expected: Linear | Conv2d) -> None:
    assert layers(tmp_path, [entry]) == [NamedLayer(entry["name"], expected)]


BAD: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "no JSON"),
    "deep JSON": ("[" * 100_000, "no JSON"),
    "huge number": (f'[{{"name": "a", "op": "linear", "M": {"9" * 5000}, "K": 1, "N": 1}}]', "no JSON"),
    "no list": (LINEAR, "must hold a list"),
    "empty": ([], "at least one layer"),
    "no object": ([3], "layer 1: a layer is an object"),
    "no name": ([{k: v for k, v in LINEAR.items() if k != "name"}], "'name'"),
    "empty name": ([{**LINEAR, "name": ""}], "'name'"),
    "same name": ([LINEAR, LINEAR], "two layers are called 'a'"),
    "unknown op": ([{**LINEAR, "op": "pool"}], "'op' must be one of linear, conv2d"),
    "op of another type": ([{**LINEAR, "op": ["linear"]}], "'op' must be one of"),
    "missing size": ([{k: v for k, v in LINEAR.items() if k != "K"}], "'K' is missing"),
    "unknown field": ([{**LINEAR, "C_in": 3}], "unknown field 'C_in'"),
    "zero": ([{**LINEAR, "M": 0}], "'M' must be a whole number from 1, not 0"),
    "negative": ([{**LINEAR, "N": -4}], "'N' must be"),
    "text": ([{**LINEAR, "M": "2"}], "'M' must be"),
    "fraction": ([{**LINEAR, "M": 2.0}], "'M' must be"),
    "NaN": ('[{"name": "a", "op": "linear", "M": NaN, "K": 3, "N": 4}]', "'M' must be"),
    "true": ([{**LINEAR, "M": True}], "'M' must be"),
    "padding": ([{**CONV, "padding": [1, 2, 3]}], "'padding' must be a whole number from 0, or [h, w]"),
    "negative padding": ([{**CONV, "padding": -1}], "'padding' must be"),
    "no stride": ([{**CONV, "stride": 0}], "'stride' must be a whole number from 1"),
    "groups": ([{**CONV, "groups": 4}], "4 groups do not divide"),
    "kernel": ([{**CONV, "KH": 10}], "the kernel 10x1 is larger"),
    "activation": ([{**LINEAR, "activation": "swoosh"}], "'activation' must be one of none, relu"),
    "bias": ([{**LINEAR, "bias": 1}], "'bias' must be true or false"),
    "memory": ([{**LINEAR, "M": 100_000, "K": 100_000}], "more than 4 GiB"),
    "padded memory": ([{**CONV, "padding": 2_000_000}], "more than 4 GiB"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_gives_one_line_that_names_the_place(tmp_path: Path, case: str) -> None:
    content, expected = BAD[case]
    with pytest.raises(InputError) as caught:
        layers(tmp_path, content)
    message = str(caught.value)
    assert expected in message
    assert "layers.json" in message
    assert "\n" not in message and len(message) < 400


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no layer file .*the suites are linear, conv"):
        load_layers("no_such_suite")
    with pytest.raises(InputError, match="cannot read the layer file"):
        load_layers(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        load_layers(tmp_path / "binary")
