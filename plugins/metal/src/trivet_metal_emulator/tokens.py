"""Metal text as tokens with places, after the preprocessor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trivet_metal_emulator.errors import CompileError, Finding

__all__ = ["Token", "Tokens", "closing", "tokenise"]

_PATTERN = re.compile(
    r"""
    (?P<marker>^[ \t]*\#[^\n]*)
  | (?P<space>[ \t\r\n\f\v]+|\\\n)
  | (?P<word>[A-Za-z_$][\w$]*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'[\w]|[\w.])*)
  | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
  | (?P<mark><<=|>>=|\.\.\.|->\*|->|::|\+\+|--|<<|&&|\|\||[-+*/%&|^=<>!]=|.)
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_LINE = re.compile(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"((?:[^"\\]|\\.)*)")?')
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(slots=True)
class Token:
    """A piece of text; ``kind`` is word, number, string, char, mark, space or marker."""

    kind: str
    text: str
    file: str
    line: int

    def drop(self) -> None:
        """Removes the text but not its line breaks, so that later lines keep their numbers."""
        self.text = "\n" * self.text.count("\n") or " "
        self.kind = "space"


class Tokens:
    """The tokens of a text, and the positions of those that mean something."""

    def __init__(self, every: list[Token]) -> None:
        self.every = every
        self.solid: list[Token] = []
        self.refresh()

    def refresh(self) -> None:
        """Forgets tokens that were dropped."""
        self.solid = [token for token in self.every if token.kind not in {"space", "marker"}]

    def text(self) -> str:
        """The text again."""
        return "".join(token.text for token in self.every)

    def is_(self, at: int, *texts: str) -> bool:
        """Whether the tokens from there on are these."""
        return self.solid_texts(at, len(texts)) == list(texts)

    def solid_texts(self, at: int, count: int) -> list[str]:
        """Texts of some tokens; fewer at the end."""
        return [token.text for token in self.solid[max(at, 0) : at + count]] if at >= 0 else []

    def peek(self, at: int) -> str:
        """The text of one token, empty outside."""
        return self.solid[at].text if 0 <= at < len(self.solid) else ""

    def words(self, text: str) -> Iterator[int]:
        """Positions of a word."""
        return (
            i for i, token in enumerate(self.solid) if token.kind == "word" and token.text == text
        )


def tokenise(text: str, name: str) -> Tokens:
    """The tokens of preprocessed text; line markers say where they come from."""
    every: list[Token] = []
    file, line = name, 1
    for match in _PATTERN.finditer(text):
        kind, piece = match.lastgroup or "mark", match.group()
        every.append(Token(kind, piece, file, line))
        if kind == "marker":
            place = _LINE.match(piece)
            if place is not None:
                line = int(place[1]) - 1
                file = place[2] if place[2] is not None else file
        line += piece.count("\n")
    return Tokens(every)


def closing(tokens: Tokens, at: int) -> int:
    """Position of what closes the bracket there; `<` is closed as in a template's list.

    Raises:
        CompileError: nothing closes it.
    """
    start = tokens.solid[at]
    if start.text == "<":
        end = _closing_angle(tokens, at)
        if end is not None:
            return end
    else:
        stack = [_PAIRS[start.text]]
        for i in range(at + 1, len(tokens.solid)):
            text = tokens.solid[i].text
            if text in _PAIRS and tokens.solid[i].kind == "mark":
                stack.append(_PAIRS[text])
            elif text == stack[-1]:
                stack.pop()
                if not stack:
                    return i
    what = f"nothing closes this {start.text!r}"
    raise CompileError(what, findings=[Finding("syntax", what, start.file, start.line)])


def _closing_angle(tokens: Tokens, at: int) -> int | None:
    """Of a template's list; `<` after anything but a name compares."""
    depth = 0
    i = at
    while i < len(tokens.solid):
        text = tokens.solid[i].text
        if text in _PAIRS:
            i = closing(tokens, i)
        elif text == "<":
            depth += i == at or tokens.solid[i - 1].kind == "word"
        elif text == ">":
            depth -= 1
            if depth == 0:
                return i
        elif text in {";", "}"}:
            return None
        i += 1
    return None
