"""Directives that the host's compiler would not understand."""

from __future__ import annotations

import re

from trivet_metal_emulator.tokens import Tokens

__all__ = ["drop_pragmas"]

_KEPT = re.compile(r"\s*#\s*(?:line\s|\d|pragma\s+(?:unroll|nounroll|clang\s+loop))")


def drop_pragmas(tokens: Tokens) -> None:
    """Keeps line markers and hints for loops, drops every other directive."""
    for token in tokens.every:
        if token.kind == "marker" and not _KEPT.match(token.text):
            token.drop()
