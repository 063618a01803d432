"""Reads what users type on the command line. Every function raises InputError with one line."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coexec.api import load_graph
from coexec.errors import InputError
from coexec.graph import Graph
from coexec.layout import Shape
from coexec.whole_file import destination

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def named_model(text: str) -> Any:
    """A model by its file or by its name in `coexec.zoo`: the path as it is, or an ``onnx.ModelProto``."""
    if Path(text).exists() or Path(text).suffix or os.sep in text:
        return text
    from coexec import zoo

    if text in zoo.MODELS:
        return zoo.build(text)
    raise InputError(f"no model file {text!r} here, and none of coexec.zoo is called that ({', '.join(zoo.MODELS)})")


def read_graph(
    text: str,
    shapes: Iterable[str],
    targets: Mapping[str, str | None],
    sources: Iterable[str | None] = (),
    fallback_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The graph of the model that ``text`` names, once the output files ``targets`` (by option) are known to be good.

    ``sources`` are the files that are read besides the model and its weights.
    """
    model = named_model(text)
    graph = load_graph(model, input_shapes(shapes), fallback_shapes)
    read = [Path(source) for source in sources if source is not None]
    if isinstance(model, str):
        from coexec.frontends.onnx_read import external_files

        read += [Path(model), *external_files(Path(model))]
    check_targets({option: target for option, target in targets.items() if target is not None}, read)
    return graph


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
    return positive(f"the duration {text!r}", float(match[1]) * UNITS_S[match[2]])


def positive(what: str, value: float) -> float:
    """The value; InputError unless it is a positive finite number."""
    if not 0 < value < math.inf:
        raise InputError(f"{what} must be a positive finite number, not {value}")
    return value


def check_path(what: str, text: str) -> None:
    """Refuse a text that no file can be called by (too long, with a NUL, ...) or whose folder must not be searched."""
    try:
        Path(text).stat()
    except (FileNotFoundError, NotADirectoryError):
        return  # it may be made, or it names something else
    except (OSError, ValueError) as error:
        shown = text if len(text) <= 100 else f"{text[:97]}..."
        raise InputError(f"{what} {shown!r}: {getattr(error, 'strerror', None) or error}") from error


def check_targets(targets: Mapping[str, str], sources: Iterable[Path]) -> None:
    """Refuse output files (by option) that cannot be written, are one and the same, or are among the input files."""
    seen: dict[str, Path] = {}
    for option, target in targets.items():
        try:
            path = destination(target)
        except OSError as error:
            raise InputError(f"{option} {target}: {error.strerror or error}") from error
        if not path.parent.is_dir():
            raise InputError(f"{option} {target}: there is no folder {path.parent}; make it first")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(f"{option} {target}: the folder {path.parent} is not writable")
        if any(_same_file(path, source) for source in sources):
            raise InputError(f"{option} {target} is also what is read; name another file")
        for other, earlier in seen.items():
            if _same_file(path, earlier):
                raise InputError(f"{other} and {option} are both {target}; name two files")
        seen[option] = path


def _same_file(path: Path, other: Path) -> bool:
    """Whether both are one file, by whatever links, or one place where none is yet."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path == other


def one_of(given: Mapping[str, str | None]) -> None:
    """Refuse anything but exactly one of these arguments."""
    present = [name for name, value in given.items() if value is not None]
    if len(present) != 1:
        what = f"not {' and '.join(present)}" if present else "none is given"
        raise InputError(f"name one of {', '.join(given)}; {what}")
