"""Reads what users type on the command line. Every function raises InputError with one line."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coexec.errors import InputError
from coexec.layout import Shape

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def named_model(text: str) -> Any:
    """A model by its file or by its name in `coexec.zoo`: the path as it is, or an ``onnx.ModelProto``."""
    if Path(text).exists() or Path(text).suffix or os.sep in text:
        return text
    from coexec import zoo

    if text in zoo.MODELS:
        return zoo.build(text)
    raise InputError(f"no model file {text!r} here, and none of coexec.zoo is called that ({', '.join(zoo.MODELS)})")


def model_title(text: str) -> str:
    """What to call the model in a table: its zoo name, or its file's name without the ending."""
    return Path(text).stem if Path(text).suffix else text


def input_shapes(texts: Iterable[str]) -> dict[str, Shape]:
    """Shapes out of texts such as "input=1x3x224x224"."""
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"\d{1,9}([x,]\d{1,9})*", sizes):
            raise InputError(f"--input-shape {text!r} is not of the form name=1x3x224x224")
        shapes[name] = tuple(int(size) for size in re.split("[x,]", sizes))
    return shapes


def duration_s(text: str) -> float:
    """Seconds out of "90", "90s", "20m" or "1.5h"."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in UNITS_S:
        raise InputError(f"{text!r} is not a duration; write 90s, 20m or 1h")
    seconds = float(match[1]) * UNITS_S[match[2]]
    if not (0 < seconds < math.inf):
        raise InputError(f"{text!r} is not a duration longer than 0")
    return seconds


def check_target(option: str, target: str | None, sources: Iterable[str | None] = ()) -> None:
    """Refuse an output file that cannot be written or is one of the input files, before any work is done."""
    if target is None:
        return
    path = Path(target)
    if path.is_dir():
        raise InputError(f"{option} {target} is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {target}: there is no folder {path.absolute().parent}; make it first")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{option} {target}: the folder {path.absolute().parent} is not writable")
    for source in sources:
        if source and path.exists() and Path(source).exists() and path.samefile(source):
            raise InputError(f"{option} {target} is also what is read; name another file")


def one_of(given: Mapping[str, str | None]) -> None:
    """Refuse anything but exactly one of these arguments."""
    present = [name for name, value in given.items() if value is not None]
    if len(present) != 1:
        what = f"not {' and '.join(present)}" if present else "none is given"
        raise InputError(f"name one of {', '.join(given)}; {what}")
