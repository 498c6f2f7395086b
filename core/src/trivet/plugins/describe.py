"""Puts foreign objects and exceptions into words; none of it raises, whatever they do."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trivet.errors import TrivetError

LIMIT: Final = 1000
"""Characters that one foreign object or message may take in a report."""

_CORE: Final = str(Path(__file__).parent.parent) + os.sep
_MACHINERY: Final = (_CORE, str(Path(importlib.__file__).parent) + os.sep, "<")
"""Beginnings of the file names of code that a plugin's author did not write."""


def shown(value: object) -> str:
    """The ``repr`` of a foreign object; its type when its ``repr`` raises."""
    return _guarded(lambda: repr(value), f"<{type(value).__name__}, whose repr raises>")


def said(error: BaseException) -> str:
    """Type and message of an exception, without the fix that it may carry."""
    name = type(error).__name__
    text = _guarded(
        lambda: error.what if isinstance(error, TrivetError) else str(error),
        "its message cannot be read, because its __str__ raises",
    )
    return f"{name}: {text}" if text else name


def place(error: BaseException) -> str:
    """The last line of foreign code that an exception passed, as file and number; or nothing."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_code.co_filename
        if not name.startswith(_MACHINERY):
            path = Path(name)
            parts = path.parts[-2:] if path.name == "__init__.py" else path.parts[-1:]
            return f" ({'/'.join(parts)}:{number})"
    return ""


def clean(text: str) -> str:
    """The text as every stream and file can take it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _guarded(text: Callable[[], object], otherwise: str) -> str:
    try:
        whole = clean(str(text()))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - foreign code; that it raises is what is said
        return otherwise
    return whole if len(whole) <= LIMIT else f"{whole[:LIMIT]}..."
