"""Cells ``operator/dtype`` in few lines: by operator, and wrapped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

WIDTH: Final = 100


def by_operator(cells: Iterable[str]) -> dict[str, list[str]]:
    """The dtypes of each operator, in the order of the cells."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        op, _, dtype = cell.partition("/")
        found.setdefault(op, []).append(dtype)
    return found


def counted(title: str, cells: Iterable[str], indent: str = "    ") -> str:
    """One paragraph: how many cells, and how many of each operator; empty without any."""
    found = by_operator(cells)
    if not found:
        return ""
    total = sum(map(len, found.values()))
    many = f"{total} cell{'s' * (total > 1)} of {len(found)} operator{'s' * (len(found) > 1)}"
    each = ", ".join(f"{op} {len(dtypes)}" for op, dtypes in found.items())
    return wrapped(f"{title}: {many}: {each}", indent)


def listed(title: str, cells: Iterable[str], indent: str = "    ") -> str:
    """One line an operator with its dtypes; empty without any."""
    rows = []
    for op, dtypes in by_operator(cells).items():
        told = ", ".join(d for d in dtypes if d != "-") or "every dtype"
        rows.append(wrapped(f"{title}: {op}: {told}", indent))
    return "\n".join(rows)


def wrapped(text: str, indent: str) -> str:
    """Text of at most 100 columns; what follows the first line is indented further."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
