"""Literals, vectors and casts that mean something else in Metal than in C++."""

from __future__ import annotations

import re

from trivet_metal_emulator.tokens import Tokens, closing

__all__ = ["convert_values"]

_SCALARS = [
    *("float", "half", "bfloat", "bool"),
    *("int", "uint", "short", "ushort", "char", "uchar", "long", "ulong"),
]
VECTORS = {f"{p}{s}{n}" for s in _SCALARS for n in (2, 3, 4) for p in ("", "packed_")}
VECTORS |= {"half", "bfloat"}  # clang converts neither into the other
_FLOAT = re.compile(r"(?!0[xX])[\d']*\.?[\d']*(?:[eE][+-]?\d+)?|0[xX][\da-fA-F.]+[pP][+-]?\d+")
_INTEGER = re.compile(r"[\d']+")
# words after which an expression may begin
_BEFORE = {"return", "case", "else", "do", "and", "or", "not", "co_return"}
_NO_CALL = {".", "->", "operator", "~", "struct", "class", "typename", "enum", "template", "new"}


def convert_values(tokens: Tokens) -> None:
    """Rewrites literals, `float4(...)`, `(float4)x` and `static_cast<float4>(x)`."""
    _literals(tokens)
    names = VECTORS | _named_types(tokens)
    _static_casts(tokens, names)
    _casts(tokens, names)
    _calls(tokens, names)


def _literals(tokens: Tokens) -> None:
    """Literals are float unless they say half or bfloat: Metal has no double."""
    for token in tokens.solid:
        if token.kind != "number":
            continue
        text = token.text
        body, suffix = text, ""
        for ending in ("bf", "BF", "h", "H"):
            if text.endswith(ending) and not text.lower().startswith("0x"):
                body, suffix = text[: -len(ending)], ending.lower()
                break
        if _FLOAT.fullmatch(body) and (suffix or not _INTEGER.fullmatch(body)):
            if _INTEGER.fullmatch(body):
                body += "."
            cast = {"h": "half", "bf": "bfloat"}.get(suffix)
            token.text = f"(({cast}){body}f)" if cast else f"{body}f"


def _named_types(tokens: Tokens) -> set[str]:
    """Names that the text gives to types: parameters of templates, `using` and `typedef`."""
    names: set[str] = set()
    for i, token in enumerate(tokens.solid):
        if token.text in {"typename", "class"} and tokens.peek(i - 1) in {"<", ","}:
            if tokens.peek(i + 2) in {",", ">", "="}:
                names.add(tokens.peek(i + 1))
        elif token.text == "using" and tokens.peek(i + 2) == "=":
            names.add(tokens.peek(i + 1))
        elif token.text == "typedef":
            end = i
            while tokens.peek(end) not in {";", ""}:
                end += 1
            if tokens.solid[end - 1].kind == "word":
                names.add(tokens.peek(end - 1))
    return names - {""}


def _type_end(tokens: Tokens, at: int, names: set[str]) -> int | None:
    """The last token of a type that begins there and may be a vector; None for others."""
    if tokens.peek(at) == "metal" and tokens.peek(at + 1) == "::":
        at += 2
    if tokens.peek(at) == "vec" and tokens.peek(at + 1) == "<":
        return closing(tokens, at + 1)
    return at if tokens.peek(at) in names else None


def _static_casts(tokens: Tokens, names: set[str]) -> None:
    for i in tokens.words("static_cast"):
        if tokens.peek(i + 1) != "<":
            continue
        end = _type_end(tokens, i + 2, names)
        if end is not None and tokens.peek(end + 1) == ">":
            tokens.solid[i].text = "trivet_msl::make"


def _operand_follows(tokens: Tokens, at: int) -> bool:
    if at >= len(tokens.solid):
        return False
    token = tokens.solid[at]
    if token.kind == "word":
        return token.text not in {
            "const",
            "noexcept",
            "override",
            "device",
            "thread",
            "threadgroup",
        }
    return token.kind in {"number", "char"} or token.text in {"(", "-", "+", "!", "~", "*", "&"}


def _casts(tokens: Tokens, names: set[str]) -> None:
    solid = tokens.solid
    for i, token in enumerate(solid):
        if token.text != "(" or token.kind != "mark":
            continue
        end = _type_end(tokens, i + 1, names)
        if end is None or tokens.peek(end + 1) != ")" or not _operand_follows(tokens, end + 2):
            continue
        before = solid[i - 1] if i else None
        if before is not None and before.kind == "word" and before.text not in _BEFORE:
            continue
        if before is not None and before.text in {"]", ">"} and tokens.peek(end + 2) != "(":
            continue
        token.text = "trivet_msl::Cast<"
        solid[end + 1].text = ">{} ->* "


def _calls(tokens: Tokens, names: set[str]) -> None:
    solid = tokens.solid
    for i, token in enumerate(solid):
        if token.kind != "word" or (token.text not in names and token.text != "vec"):
            continue
        end = _type_end(tokens, i, names)
        if end is None or tokens.peek(end + 1) != "(" or solid[end + 1].kind != "mark":
            continue
        start = i
        if tokens.peek(i - 1) == "::":
            if tokens.peek(i - 2) != "metal" or tokens.peek(i - 3) == "::":
                continue
            start = i - 2
        before = solid[start - 1] if start else None
        if before is not None and (
            before.text in _NO_CALL or (before.kind == "word" and before.text not in _BEFORE)
        ):
            continue
        if _is_declarator(tokens, end + 1):
            continue
        solid[start].text = f"trivet_msl::make<{solid[start].text}"
        solid[end].text += ">"


def _is_declarator(tokens: Tokens, at: int) -> bool:
    """Whether `(*x)[4]` or `(&x)(...)` follows: a declaration, no call."""
    if tokens.peek(at + 1) not in {"*", "&", "thread", "device", "threadgroup", "constant"}:
        return False
    end = closing(tokens, at)
    return tokens.peek(end + 1) in {"[", "("}
