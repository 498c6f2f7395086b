"""Making functions from generated text that tracebacks and ``inspect`` can show."""

from __future__ import annotations

import hashlib
import linecache
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trivet.contracts.terms import has_rows
from trivet.contracts.terms.term import shown

_GLOBALS: dict[str, Any] = {
    "torch": torch,  # these three: defaults and constants as ``repr`` spells them
    "inf": math.inf,
    "nan": math.nan,
    "_prod": math.prod,
    "_has_rows": has_rows,
    "_empty_like": torch.empty_like,
    "_cf": torch.contiguous_format,
    "_grad_enabled": torch.is_grad_enabled,
    **{
        f"_{name}": value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
    },
}


def literal(value: object) -> str:
    """A constant as text that the generated code understands."""
    if isinstance(value, torch.dtype):
        return f"_{shown(value)}"
    return repr(value)


def compile_function(
    name: str, title: str, body: str, cells: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compiles the text of one ``def`` whose free names are closure cells.

    Args:
        name: name of the function in the text.
        title: what tracebacks show as the file, with a digest of the text.
        body: the ``def``, not indented.
        cells: values of the free names; cells are faster than globals.
    """
    inner = "".join(f"    {line}\n" for line in body.splitlines())
    text = f"def _make({', '.join(cells)}):\n{inner}    return {name}\n"
    file = f"<trivet {title} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    space = dict(_GLOBALS)
    exec(compile(text, file, "exec"), space)  # noqa: S102  # our own text, from frozen data
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made: Callable[..., Any] = space["_make"](*cells.values())
    made.__qualname__ = name  # what Python calls it when an argument is missing
    made.__trivet_source__ = body  # type: ignore[attr-defined]
    return made
