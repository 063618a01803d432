"""Ways to damage a JSON document: each field by each value, and whole files."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Place = tuple[str | int, ...]

VALUES = {
    "null": "null",
    "true": "true",
    "empty text": '""',
    "text": '"x"',
    "lines": '"a\\nb\\r\\u2028c"',
    "long text": '"' + "x" * 70_000 + '"',
    "list": "[]",
    "list in a list": "[[-1]]",
    "object": "{}",
    "-1": "-1",
    "0": "0",
    "1.5": "1.5",
    "1e400": "1e400",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "10**30": "1" + "0" * 30,
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5000,
}
"""What is put in a field's place, as JSON text (or what Python writes as such)."""

NUMBERS_THAT_CANNOT_BE = ("-1", "1e400", "NaN", "Infinity", "10**30", "400 digits", "5000 digits")
"""No number in coexec's files may be one of these."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)

MARK = "@damaged@"


def places(document: Any, place: Place = ()) -> Iterator[Place]:
    """Where each field, object and list of the document is; of a list's entries the first and last only."""
    if place:
        yield place
    if isinstance(document, dict):
        inner: list[str | int] = list(document)
    elif isinstance(document, list):
        inner = list(dict.fromkeys([0, len(document) - 1])) if document else []
    else:
        return
    for key in inner:
        yield from places(document[key], (*place, key))


def at(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


def with_value(document: Any, place: Place, value: str) -> str:
    """The document's text with another value in one place."""
    changed = copy.deepcopy(document)
    at(changed, place[:-1])[place[-1]] = MARK
    return json.dumps(changed).replace(f'"{MARK}"', value)


def without(document: Any, place: Place) -> str:
    changed = copy.deepcopy(document)
    del at(changed, place[:-1])[place[-1]]
    return json.dumps(changed)


def whole_files(document: Any) -> dict[str, bytes]:
    """Files that are not the document."""
    text = json.dumps(document).encode()
    return {
        "empty": b"",
        "half": text[: len(text) // 2],
        "all but the end": text[:-1],
        "invalid UTF-8": text.replace(b'": "', b'": "\xff', 1),
        "byte order mark": b"\xef\xbb\xbf" + text,
        "UTF-16": text.decode().encode("utf-16"),
        "deep list": b"[" * 100_000,
        "deep object": b'{"schema":' * 100_000,
        "zeros": bytes(len(text)),
        "twice": text + text,
        **{root: root.encode() for root in ("null", "3", "true", '"schema"', "[]", "[1]", "{}", "NaN", "9" * 5000)},
    }


def one_line(error: BaseException) -> None:
    """A message that a terminal can show."""
    text = str(error)
    assert len(text.splitlines()) == 1 and len(text) <= 600, text[:1000]
