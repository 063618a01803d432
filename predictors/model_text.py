"""Checks a model in LightGBM's text format before LightGBM reads it.

LightGBM trusts what it reads: a text that is cut short or whose trees do not hang together ends the process (4.7).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

SPLIT_FIELDS = (
    *("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child"),
    *("internal_value", "internal_weight", "internal_count"),
)
LEAF_FIELDS = ("leaf_value", "leaf_weight", "leaf_count")


def check_model_text(text: str, features: Sequence[str]) -> None:
    """ValueError, which says why, unless the text is a whole model of one output and these features."""
    head, _, rest = text.partition("\n\n")
    fields = _fields(head)
    expected = {
        "num_class": "1",
        "num_tree_per_iteration": "1",
        "max_feature_idx": str(len(features) - 1),
        "objective": "regression",
        "feature_names": " ".join(features),
    }
    for name, value in expected.items():
        if fields.get(name) != value:
            raise ValueError(f"it has other {name} than this version")
    if len(fields.get("feature_infos", "").split()) != len(features):
        raise ValueError("it has not one feature_infos per feature")
    for number, size in enumerate(_whole_numbers(fields, "tree_sizes")):
        tree, rest = rest[:size], rest[size:]
        if not tree.startswith(f"Tree={number}\n"):
            raise ValueError(f"tree {number} is not where it should be")
        try:
            _check_tree(_fields(tree), len(features))
        except ValueError as error:
            raise ValueError(f"tree {number}: {error}") from error
    if not rest.startswith("end of trees\n") or not rest.rstrip().endswith("\npandas_categorical:null"):
        raise ValueError("its end is missing")


def _check_tree(fields: dict[str, str], features: int) -> None:
    leaves = int(fields.get("num_leaves", "0"))
    for names, expected in ((SPLIT_FIELDS, leaves - 1), (LEAF_FIELDS, leaves)):
        for name in names:
            optional = leaves == 1 and name != "leaf_value"
            if len(_numbers(fields, name)) != expected and not (optional and not fields.get(name)):
                raise ValueError(f"it has not {expected} {name}")
    if leaves < 1 or fields.get("num_cat") != "0" or fields.get("is_linear", "0") != "0":
        raise ValueError("it is of another kind than this version trains")
    if any(kind & 1 for kind in _whole_numbers(fields, "decision_type")):
        raise ValueError("it splits by category")
    if not all(0 <= feature < features for feature in _whole_numbers(fields, "split_feature")):
        raise ValueError("it splits by a feature that is not there")
    # Every leaf (-1, -2, ...) and every split but the first hangs under exactly one split.
    children = _whole_numbers(fields, "left_child") + _whole_numbers(fields, "right_child")
    if sorted(children) != ([*range(-leaves, 0), *range(1, leaves - 1)] if leaves > 1 else []):
        raise ValueError("its splits do not make a tree")


def _fields(text: str) -> dict[str, str]:
    """The name=value lines; ValueError if a name is there twice."""
    pairs = [line.partition("=") for line in text.split("\n") if line]
    fields = {name: value for name, _, value in pairs}
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _numbers(fields: dict[str, str], name: str) -> list[float]:
    text = fields.get(name, "")
    if not re.fullmatch(r"[-+.e0-9 ]*", text):  # Python reads more as numbers than LightGBM does
        raise ValueError(f"{name} holds what is no number")
    numbers = [float(word) for word in text.split()]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{name} is not finite")
    return numbers


def _whole_numbers(fields: dict[str, str], name: str) -> list[int]:
    numbers = _numbers(fields, name)
    if not all(number.is_integer() for number in numbers):
        raise ValueError(f"{name} holds what is no whole number")
    return [int(number) for number in numbers]
