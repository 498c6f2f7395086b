"""Holds a line of a report against the published schema: its keys, their types and words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "object": (dict,),
    "array": (list,), "boolean": (bool,),
}  # fmt: skip
_READ: Final = ("id", "family", "operator", "provider", "status", "reason", "margin", "repro")
"""Keys of a result without which no reader can say anything of it."""


@cache
def _definitions() -> Mapping[str, Any]:
    text = files("trivet_conformance").joinpath("report", "schema.json").read_text("utf-8")
    found: Mapping[str, Any] = json.loads(text)["$defs"]
    return found


def problem(row: object) -> str:
    """Why a line is none of a report; empty when it is. Keys that are not known are allowed."""
    if not isinstance(row, dict):
        return "it is no object"
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a pair, which no page and no file can hold
        return "it holds text that is no Unicode"
    kind = row.get("kind")
    definition = _definitions().get(kind) if isinstance(kind, str) else None
    if definition is None:
        return f"its kind is {kind!r}"
    if kind == "result" and (missing := [key for key in _READ if key not in row]):
        return f"it has no {missing[0]}"
    for key, wanted in definition["properties"].items():
        if key in row and key != "schema" and not _fits(row[key], wanted):  # schema has its reader
            return f"its {key} is {row[key]!r:.80}"
    return ""


def _fits(value: object, wanted: Mapping[str, Any]) -> bool:
    """Whether a value has the type that is wanted, or is one of the words, at every depth."""
    if "enum" in wanted:
        return value in wanted["enum"]
    if isinstance(wanted.get("type"), list):
        return any(_fits(value, {**wanted, "type": one}) for one in wanted["type"])
    types = _TYPES.get(wanted.get("type", ""), (object,))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return "type" not in wanted
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, list):
        fits = all(_fits(item, wanted.get("items", {})) for item in value)
        return fits and wanted.get("minItems", 0) <= len(value) <= wanted.get("maxItems", math.inf)
    if isinstance(value, dict):
        inner = wanted.get("properties", {})
        return all(_fits(value[key], inner[key]) for key in inner if key in value)
    return True
