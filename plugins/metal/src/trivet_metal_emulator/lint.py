"""What Metal does not have, found in the tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence

from trivet_metal_emulator.errors import Finding
from trivet_metal_emulator.tokens import Tokens, closing, tokenise
from trivet_metal_emulator.translation.kernels import Entry

__all__ = ["banned", "missing_spaces"]

_WORDS = {
    "double": ("double", "Metal has no double", "use float"),
    "goto": ("banned", "Metal has no goto", "use a loop or a function"),
    "virtual": ("banned", "Metal has no virtual functions", "use a template"),
    "try": ("banned", "Metal has no exceptions", ""),
    "catch": ("banned", "Metal has no exceptions", ""),
    "throw": ("banned", "Metal has no exceptions", ""),
    "new": ("banned", "Metal allocates no memory", "declare an array of fixed size"),
    "delete": ("banned", "Metal allocates no memory", ""),
    "dynamic_cast": ("banned", "Metal has no types at run time", ""),
    "typeid": ("banned", "Metal has no types at run time", ""),
    "thread_local": ("banned", "Metal has no thread_local", "every variable of a function is"),
    "register": ("banned", "Metal has no register", ""),
    "asm": ("banned", "Metal has no inline assembly", ""),
    "std": ("banned", "Metal has no C++ library", "metal:: has much of it"),
}
_BFLOAT = 310  # __METAL_VERSION__ of macOS 14
_STATEMENTS = {"if", "for", "while", "switch", "return", "sizeof", "decltype"}


def _foreign(file: str, name: str) -> bool:
    return file != name


def banned(text: str, name: str, language: int) -> list[Finding]:
    """Words and shapes that Apple's compiler refuses, in the text itself and not in its headers."""
    tokens = tokenise(text, name)
    found = []
    for i, token in enumerate(tokens.solid):
        if token.kind != "word" or _foreign(token.file, name):
            continue
        if token.text in _WORDS:
            if token.text == "std" and tokens.peek(i + 1) != "::":
                continue
            if token.text == "delete" and tokens.peek(i - 1) == "=":
                continue  # a deleted function
            kind, what, fix = _WORDS[token.text]
            found.append(Finding(kind, what, token.file, token.line, fix))
        elif token.text == "bfloat" and language < _BFLOAT:
            what = f"bfloat is of Metal 3.1, and this is compiled for {language / 100:.1f}"
            fix = "#if __METAL_VERSION__ >= 310"
            found.append(Finding("newer-language", what, token.file, token.line, fix))
        elif token.text == "threadgroup":
            found += _initialised(tokens, i)
    return found + _recursive(tokens, name)


def _initialised(tokens: Tokens, at: int) -> list[Finding]:
    """`threadgroup float x = 0;`: such memory has no initial value."""
    i = at + 1
    while tokens.peek(i) not in {";", "{", "(", ")", "*", "&", ",", "=", ""}:
        i = closing(tokens, i) if tokens.peek(i) == "[" else i
        i += 1
    if tokens.peek(at - 1) not in {";", "{", "}"} or tokens.peek(i) not in {"=", "{"}:
        return []
    token = tokens.solid[at]
    what = "a variable in threadgroup memory has no initial value"
    fix = "one thread writes it, then threadgroup_barrier(mem_flags::mem_threadgroup)"
    return [Finding("banned", what, token.file, token.line, fix)]


def _recursive(tokens: Tokens, name: str) -> list[Finding]:
    """Functions that call themselves by name."""
    found = []
    for i, token in enumerate(tokens.solid):
        if token.kind != "word" or token.text in _STATEMENTS or _foreign(token.file, name):
            continue
        if tokens.peek(i + 1) != "(" or tokens.peek(i - 1) in {"=", "(", ",", "return"}:
            continue
        end = closing(tokens, i + 1)
        if tokens.peek(end + 1) != "{":
            continue
        for k in range(end + 2, closing(tokens, end + 1)):
            call = tokens.solid[k]
            called = call.text == token.text and tokens.peek(k + 1) == "("
            if called and tokens.peek(k - 1) not in {".", "->", "::"}:
                what = f"{call.text} calls itself, and Metal functions do not"
                found.append(Finding("banned", what, call.file, call.line, "use a loop"))
    return found


def missing_spaces(kernels: Sequence[Entry]) -> list[Finding]:
    """Buffers of kernels whose memory is not named."""
    found: dict[tuple[str, int, str], Finding] = {}
    for entry in kernels:
        for p in entry.parameters:
            if p.kind == "buffer" and p.space not in {"device", "constant"}:
                what = f"{p.name} points to no named memory"
                fix = "device for what kernels write, constant for small arguments"
                found[p.file, p.line, p.name] = Finding("address-space", what, p.file, p.line, fix)
    return list(found.values())
