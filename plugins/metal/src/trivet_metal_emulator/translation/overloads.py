"""Functions that differ only in the memory of their arguments: one of them is enough here."""

from __future__ import annotations

from collections.abc import Iterator

from trivet_metal_emulator.tokens import Tokens, closing

__all__ = ["merge_overloads"]

SPACES = {"device", "constant", "threadgroup", "thread"}
_LABELS = {"public", "private", "protected"}
_SCOPES = {"namespace", "class", "struct", "union"}
_QUALIFIERS = {"const", "noexcept", "override", "final", *SPACES}

Seen = dict[tuple[str, str], str]


def merge_overloads(tokens: Tokens) -> None:
    """Keeps the first of several definitions that become the same without names of memory."""
    seen: Seen = {}
    doomed = list(_scan(tokens, 0, len(tokens.solid), "", seen))
    for start, end in doomed:
        for token in tokens.solid[start : end + 1]:
            token.drop()
    tokens.refresh()
    for i, token in enumerate(tokens.solid):  # `f() const device {`: the memory of the object
        if token.text in SPACES and tokens.peek(i + 1) in {"{", ";", ":", "->", "const"}:
            const = tokens.peek(i - 1) == "const"
            if tokens.peek(i - 2 if const else i - 1) == ")":
                token.drop()
    tokens.refresh()


def _scan(
    tokens: Tokens, start: int, end: int, scope: str, seen: Seen
) -> Iterator[tuple[int, int]]:
    """Ranges of functions of a scope that were there before, and those of the scopes in it."""
    at = first = start
    while at < end:
        text = tokens.peek(at)
        if text == ";":
            if (
                scope
                and "(" in tokens.solid_texts(first, at - first)
                and _is_repeated(tokens, first, at, scope, seen)
            ):
                yield first, at
            first = at + 1
        elif text == ":" and tokens.peek(at - 1) in _LABELS:
            first = at + 1
        elif text in {"(", "["} and tokens.solid[at].kind == "mark":
            at = closing(tokens, at)
        elif text == "{" and tokens.solid[at].kind == "mark":
            close = closing(tokens, at)
            words = tokens.solid_texts(first, at - first)
            if not _initialises(tokens, first, at):
                if "(" not in words and _SCOPES & set(words):
                    name = f"{scope}::{' '.join(words)}"
                    if SPACES & set(words) and _is_repeated(tokens, first, at, scope, seen):
                        yield first, close + (tokens.peek(close + 1) == ";")
                    yield from _scan(tokens, at + 1, close, name, seen)
                elif "(" in words and _is_repeated(tokens, first, at, scope, seen):
                    yield first, close
                first = close + 1
            at = close
        at += 1


def _initialises(tokens: Tokens, first: int, at: int) -> bool:
    """Whether a brace holds values: of a variable, or of a member in a constructor's list."""
    words = tokens.solid_texts(first, at - first)
    before = tokens.solid[at - 1]
    if before.text == "=":
        return True
    if ":" in words and ")" in words and before.kind == "word":
        colon = len(words) - 1 - words[::-1].index(":")
        return words[colon - 1] in {")", *_QUALIFIERS} and before.text not in _QUALIFIERS
    return False


def _is_repeated(tokens: Tokens, first: int, end: int, scope: str, seen: Seen) -> bool:
    words = tokens.solid_texts(first, end - first)
    if ":" in words:  # a constructor: what it initialises is no part of its signature
        for i, word in enumerate(words):
            if word == ":" and words[i - 1] in {")", *_QUALIFIERS}:
                words = words[:i]
                break
    raw = " ".join(words)
    plain = " ".join(word for word in words if word not in SPACES)
    return seen.setdefault((scope, plain), raw) != raw
