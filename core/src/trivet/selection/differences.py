"""What differs between two documents, field by field, and how a lock says it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

ABSENT: Final = object()
"""What stands in the place of a key that is not there."""


def differences(
    a: Any, b: Any, text: Callable[[str, Any, Any], str], path: str = ""
) -> Iterator[str]:
    """One line for each value that is not the same text of JSON: 1 is not true, null not absent."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted(a.keys() | b.keys()):
            where = f"{path}.{key}" if path else key
            yield from differences(a.get(key, ABSENT), b.get(key, ABSENT), text, where)
    elif _json(a) != _json(b):
        yield f"{path}: {text(path, a, b)}"


def _json(value: Any) -> str:
    return "nothing" if value is ABSENT else json.dumps(value, sort_keys=True)


def words(path: str, then: Any, now: Any) -> str:
    """What a lock has and what this process has instead, in plain words."""
    return f"locked {_text(then, now, path)}, now {_text(now, then, path)}"


def _text(value: Any, other: Any, path: str) -> str:
    """One side of a difference in plain words; ``other`` says what must be told apart."""
    if value is ABSENT:
        return {"plugins": "no site uses it", "sites": "no such site"}.get(
            path.rpartition(".")[0], "nothing"
        )
    if path.startswith("sites.") and path.endswith(".choices"):
        return _choices_text(value, other)
    if isinstance(value, Mapping):
        choices = value.get("choices")
        if path.startswith("sites.") and choices:
            return f"{value.get('op')} on {_choices_text(choices, [])}"
        return ", ".join(f"{k} {_text(v, v, f'{path}.{k}')}" for k, v in value.items()) or "nothing"
    if isinstance(value, list):
        return ", ".join(_text(v, v, path) for v in value) or "nothing"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _choices_text(choices: Any, other: Any) -> str:
    """Providers in order, with what else tells them from the other side's."""
    rows, others = ([dict(c) for c in side] if isinstance(side, list) else [] for side in
                    (choices, other))  # fmt: skip
    if [c["provider"] for c in rows] != [c.get("provider") for c in others]:
        return ", ".join(c["provider"] for c in rows) or "nothing"
    told = []
    for mine, its in zip(rows, others, strict=True):
        text = str(mine["provider"])
        if mine.get("when") != its.get("when"):
            given = mine.get("when") or []
            when = " and ".join(map(_term_text, given if isinstance(given, list) else [given]))
            text += f" when {when}" if when else " always"
        if mine.get("digest") != its.get("digest"):
            text += f" of digest {mine.get('digest')}"
        told.append(text)
    return ", ".join(told)


def _term_text(term: Any) -> str:
    """A term as explanations print it, for example ``divisible(hidden, 8)``."""
    name, *given = term if isinstance(term, list) and term else [term]
    return f"{name}({', '.join(map(str, given))})"
