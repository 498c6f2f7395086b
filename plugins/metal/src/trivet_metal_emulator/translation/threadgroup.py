"""Variables in threadgroup memory: one object for all threads of a group, in an arena."""

from __future__ import annotations

from trivet_metal_emulator.tokens import Token, Tokens, closing

__all__ = ["place_in_threadgroup"]


def place_in_threadgroup(tokens: Tokens) -> None:
    """Makes references into the arena of declarations like `threadgroup float x[32], y;`."""
    number = 0
    starts = [
        at for at in tokens.words("threadgroup") if tokens.peek(at - 1) in {"{", "}", ";", ":"}
    ]
    declarations = [(at, _declaration(tokens, at)) for at in starts]
    for at, found in declarations:
        if found is None:
            continue
        kind, declarators, end = found
        text = ""
        for name, dimensions in declarators:
            number += 1
            alias = f"trivet_type_{number}"
            text += (
                f"typedef threadgroup {kind} {alias}{dimensions}; {alias}& {name} = "
                f'trivet_msl::in_threadgroup<{alias}, {number}>("{name}"); '
            )
        for token in tokens.solid[at + 1 : end + 1]:
            token.drop()
        tokens.solid[at].text, tokens.solid[at].kind = text, "mark"
    tokens.refresh()


def _text(piece: list[Token]) -> str:
    return " ".join(token.text for token in piece)


def _declaration(tokens: Tokens, at: int) -> tuple[str, list[tuple[str, str]], int] | None:
    """The type, the names with their dimensions, and where it ends; None for anything else."""
    pieces: list[list[Token]] = [[]]
    i = at + 1
    while True:
        token = tokens.solid[i] if i < len(tokens.solid) else None
        if token is None or token.text in {"*", "&", "=", "{", "}", ")"}:
            return None
        if token.text == ";":
            break
        if token.text == "(" and tokens.peek(i - 1) != "decltype":
            return None
        if token.text in {"(", "[", "<"} and token.kind == "mark":
            end = closing(tokens, i)
            pieces[-1] += tokens.solid[i : end + 1]
            i = end
        elif token.text == ",":
            pieces.append([])
        else:
            pieces[-1].append(token)
        i += 1
    split = [_declarator(piece) for piece in pieces]
    head = pieces[0][: split[0]]
    if not head:
        return None
    names = [(p[n].text, _text(p[n + 1 :])) for p, n in zip(pieces, split, strict=True)]
    return _text(head), names, i


def _declarator(piece: list[Token]) -> int:
    """Position of the name: before the dimensions at the end."""
    i = len(piece) - 1
    while i >= 0 and piece[i].text == "]":
        depth = 0
        while i >= 0:
            depth += {"]": 1, "[": -1}.get(piece[i].text, 0)
            i -= 1
            if depth == 0:
                break
    return i
