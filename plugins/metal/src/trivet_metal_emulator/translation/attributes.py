"""Attributes: read where they stand, then taken out, since the host's compiler knows others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trivet_metal_emulator.errors import CompileError
from trivet_metal_emulator.tokens import Token, Tokens, closing

__all__ = ["attributes_of", "collect_attributes", "drop_attributes"]

ATTRIBUTE = "attribute"
_CONSTANT = re.compile(r"function_constant\((\d+)\)")
_SEPARATOR = "\x1f"


def attributes_of(token: Token) -> list[str]:
    """The attributes that a token stands for: `buffer(0)`, `host_name(x)`; none for others."""
    return token.text.split(_SEPARATOR) if token.kind == ATTRIBUTE else []


def collect_attributes(tokens: Tokens, constants: Mapping[str | int, float]) -> None:
    """Makes one token of each `[[...]]`, and gives function constants their values."""
    solid, i = tokens.solid, 0
    defined: dict[str, bool] = {}
    known: set[str | int] = set()
    while i + 1 < len(solid):
        if solid[i].text == "[" and solid[i + 1].text == "[" and solid[i].kind == "mark":
            end = closing(tokens, i)
            inner = solid[i + 2 : end - 1]
            pieces = _pieces(inner)
            for token in solid[i + 1 : end + 1]:
                token.drop()
            constant = _CONSTANT.fullmatch(pieces[0])
            if constant:
                known |= {solid[i - 1].text, int(constant[1])}
                _define(solid, i, int(constant[1]), constants, defined)
            else:
                solid[i].kind, solid[i].text = ATTRIBUTE, _SEPARATOR.join(pieces)
            i = end
        i += 1
    if unknown := set(constants) - known:
        listed = ", ".join(sorted(map(str, unknown)))
        raise CompileError(f"there is no function constant {listed}")
    tokens.refresh()
    _answer_defined(tokens, defined)


def _pieces(inner: list[Token]) -> list[str]:
    pieces, depth = [""], 0
    for token in inner:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            pieces.append("")
        elif token.kind == "string":
            pieces[-1] += token.text.partition('"')[2][:-1]  # "a" "b" is one string
        else:
            pieces[-1] += token.text
    return pieces


def _define(
    solid: list[Token],
    at: int,
    index: int,
    constants: Mapping[str | int, float],
    defined: dict[str, bool],
) -> None:
    name = solid[at - 1].text
    start = at - 1
    while start > 0 and solid[start].text != "constant":
        start -= 1
    kind = " ".join(token.text for token in solid[start + 1 : at - 1])
    value = constants.get(name, constants.get(index))
    defined[name] = value is not None
    solid[at].kind = "mark"
    solid[at].text = f" = ({kind})({float(value) if value is not None else 0!r})"


def _answer_defined(tokens: Tokens, defined: dict[str, bool]) -> None:
    for i in tokens.words("is_function_constant_defined"):
        name = tokens.peek(i + 2)
        tokens.solid[i].text = "true" if defined.get(name) else "false"
        for token in tokens.solid[i + 1 : closing(tokens, i + 1) + 1]:
            token.drop()
    tokens.refresh()


def drop_attributes(tokens: Tokens) -> None:
    """Takes the attributes out."""
    for token in tokens.every:
        if token.kind == ATTRIBUTE:
            token.text = ""
            token.kind = "space"
    tokens.refresh()
