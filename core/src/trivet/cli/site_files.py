"""Files that list the call sites of an engine, as data: JSON or TOML, never code.

``{"norm": {"op": "rms_norm", "facts": {"dtype": "float32", "hidden": 576, "tokens": [1, 8]}}}``:
dtypes by name, a range as its two ends (JSON's null is an open end), a size as text is that step
variable.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from trivet.contracts.terms import Interval
from trivet.errors import ConfigError

FORM = '{"SITE": {"op": "OPERATOR", "facts": {"PATH": VALUE}}}'


def read_sites(path: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sites of a file: name -> (operator with form, facts).

    Raises:
        ConfigError: the file cannot be read, or an entry is not of the form; names the entry.
    """
    sites = {}
    for name, entry in _document(path).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("op"), str):
            raise ConfigError(f"{path}: site {name!r} names no operator", fix=FORM)
        if unknown := sorted(set(entry) - {"op", "facts"}):
            raise ConfigError(f"{path}: site {name!r}: unknown key {unknown[0]!r}", fix=FORM)
        facts = entry.get("facts", {})
        if not isinstance(facts, dict):
            raise ConfigError(f"{path}: site {name!r}: facts are no table", fix=FORM)
        sites[name] = entry["op"], {p: _value(path, name, p, v) for p, v in facts.items()}
    if not sites:
        raise ConfigError(f"{path} has no site", fix=FORM)
    return sites


def _document(path: Path) -> dict[str, Any]:
    kind = path.suffix.partition(":")[0].lower()
    if kind not in {".json", ".toml"}:
        why = "code is not run" if kind == ".py" else f"{path.suffix or 'no ending'!r} is unknown"
        raise ConfigError(f"{path}: sites are read from .json or .toml files; {why}", fix=FORM)
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if kind == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="correct the file") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no table of sites", fix=FORM)
    return found


def _value(path: Path, site: str, fact: str, value: Any) -> Any:
    """A fact; two integers are a range."""
    if not isinstance(value, list) or not value or all(isinstance(v, str) for v in value):
        return value
    ends = all(v is None or type(v) is int for v in value)
    if len(value) != 2 or not ends or value == [None, None]:
        raise ConfigError(
            f"{path}: site {site!r}: fact {fact!r} is {json.dumps(value)}",
            fix="a range is [low, high], both included; names are [text, ...]",
        )
    low, high = value
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{path}: site {site!r}: fact {fact!r} is an empty range: {value}")
    return Interval(low, high)
