"""The kernels of a text: their names for the host, their parameters, and how C++ names them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trivet_metal_emulator.errors import CompileError, Finding
from trivet_metal_emulator.tokens import Token, Tokens, closing
from trivet_metal_emulator.translation.attributes import ATTRIBUTE, attributes_of

__all__ = ["POSITIONS", "Entry", "Parameter", "find_kernels"]

# attribute of a parameter -> member of the emulator's Ids, or a constant
POSITIONS = {
    "thread_position_in_grid": "in_grid",
    "thread_position_in_threadgroup": "in_group",
    "threadgroup_position_in_grid": "group",
    "threads_per_threadgroup": "group_size",
    "dispatch_threads_per_threadgroup": "full_group_size",
    "threadgroups_per_grid": "groups",
    "threads_per_grid": "grid",
    "thread_index_in_simdgroup": "lane",
    "simdgroup_index_in_threadgroup": "simdgroup",
    "thread_index_in_threadgroup": "index",
    "simdgroups_per_threadgroup": "simdgroups",
    "dispatch_simdgroups_per_threadgroup": "full_simdgroups",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
    "thread_index_in_quadgroup": "lane % 4",
    "quadgroup_index_in_threadgroup": "index / 4",
}
_SPECIFIERS = {"kernel", "static", "inline", "METAL_FUNC"}
_INDEXED = re.compile(r"(buffer|threadgroup|texture|sampler)\((\d+)\)")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    kind: str
    """`buffer`, `position`, `threadgroup`, or what the emulator does not have."""
    index: int = -1
    """The number of a buffer."""
    position: str = ""
    """What `Ids` calls it."""
    reference: bool = False
    optional: bool = False
    """Whether a function constant decides that it is there."""
    space: str = ""
    """`device`, `constant`, `threadgroup`, or nothing where the text forgets it."""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Entry:
    """A kernel that a host can launch."""

    name: str
    expression: str
    """How C++ names it: `rms_norm<float>`."""
    parameters: tuple[Parameter, ...]
    file: str
    line: int
    max_threads: int = 0
    """What `max_total_threads_per_threadgroup` says, else 0."""


@dataclass
class _Definition:
    templated: bool
    parameters: tuple[Parameter, ...]
    max_threads: int
    place: Token


@dataclass
class _Head:
    """What stands before the name of a function."""

    start: int
    templated: bool = False
    explicit: bool = False
    kernel: bool = False
    attributes: list[str] = field(default_factory=list)


def find_kernels(tokens: Tokens) -> list[Entry]:
    """Finds kernels, and takes explicit instantiations out: wrappers instantiate them again."""
    definitions: dict[str, _Definition] = {}
    instances: list[tuple[str, str, Token]] = []
    for head, at in _heads(tokens):
        name = tokens.solid[at]
        after = at + 1
        if head.explicit:
            end = _statement_end(tokens, at)
            expression, after = _expression(tokens, at)
            host = next((a[10:-1] for a in head.attributes if a.startswith("host_name(")), "")
            instances.append((host or name.text, expression, name))
            for token in tokens.solid[head.start : end + 1]:
                token.drop()
        elif tokens.peek(after) == "(":
            end = closing(tokens, after)
            if tokens.peek(end + 1) != "{":
                continue  # a declaration
            parameters = tuple(_parameters(tokens, after, end))
            limit = [a for a in head.attributes if a.startswith("max_total_threads_per")]
            most = re.search(r"\((\d+)\)", limit[0]) if limit else None
            definitions[name.text] = _Definition(
                head.templated, parameters, int(most[1]) if most else 0, name
            )
    tokens.refresh()
    return _entries(definitions, instances)


def _entries(
    definitions: dict[str, _Definition], instances: list[tuple[str, str, Token]]
) -> list[Entry]:
    entries = [
        Entry(name, name, d.parameters, d.place.file, d.place.line, d.max_threads)
        for name, d in definitions.items()
        if not d.templated
    ]
    for host, expression, place in instances:
        base = expression.partition("<")[0].split("::")[-1].strip()
        if base not in definitions:
            what = f"{expression} is instantiated, and no kernel of that name is defined"
            raise CompileError(what, findings=[Finding("syntax", what, place.file, place.line)])
        d = definitions[base]
        entries.append(
            Entry(host, expression, d.parameters, d.place.file, d.place.line, d.max_threads)
        )
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            what = f"two kernels are called {entry.name}"
            raise CompileError(what, findings=[Finding("syntax", what, entry.file, entry.line)])
        seen.add(entry.name)
    return entries


def _heads(tokens: Tokens) -> Iterator[tuple[_Head, int]]:
    """What looks like the head of a kernel, with the position of its name."""
    solid, i = tokens.solid, 0
    while i < len(solid):
        head = _Head(i)
        at = i
        if solid[at].text == "template" and solid[at].kind == "word":
            at += 1
            if tokens.peek(at) == "<":
                end = closing(tokens, at)
                head.templated, at = end > at + 1, end + 1
            else:
                head.explicit = True
        while at < len(solid) and (solid[at].kind == ATTRIBUTE or solid[at].text in _SPECIFIERS):
            head.attributes += attributes_of(solid[at])
            head.kernel |= solid[at].text == "kernel" and solid[at].kind == "word"
            at += 1
        head.kernel |= "kernel" in head.attributes
        if not head.kernel or at == i:
            i = max(at, i + 1) if at == i else at
            continue
        if tokens.peek(at) == "decltype":
            at = closing(tokens, at + 1) + 1
        else:
            at += 1  # void
        while solid[at].kind == ATTRIBUTE:
            head.attributes += attributes_of(solid[at])
            at += 1
        while tokens.peek(at + 1) == "::":
            at += 2
        yield head, at
        i = at


def _statement_end(tokens: Tokens, at: int) -> int:
    while tokens.peek(at) != ";":
        at = closing(tokens, at) if tokens.peek(at) in {"(", "{", "["} else at
        at += 1
    return at


def _expression(tokens: Tokens, at: int) -> tuple[str, int]:
    start = at
    while tokens.peek(start - 1) == "::":
        start -= 2
    end = at
    if tokens.peek(at + 1) == "<":
        end = closing(tokens, at + 1)
    return " ".join(token.text for token in tokens.solid[start : end + 1]), end + 1


def _split(tokens: Tokens, start: int, end: int) -> Iterator[list[Token]]:
    piece: list[Token] = []
    i = start
    while i < end:
        token = tokens.solid[i]
        if token.text in {"(", "[", "{", "<"} and token.kind == "mark":
            stop = closing(tokens, i)
            piece += tokens.solid[i : stop + 1]
            i = stop
        elif token.text == ",":
            yield piece
            piece = []
        else:
            piece.append(token)
        i += 1
    if piece:
        yield piece


def _parameters(tokens: Tokens, start: int, end: int) -> Iterator[Parameter]:
    following = 0
    for piece in _split(tokens, start + 1, end):
        attributes = [a for token in piece for a in attributes_of(token)]
        rest = [token for token in piece if token.kind != ATTRIBUTE]
        words = [token for token in rest if token.kind == "word"]
        if not words or (len(words) == 1 and words[0].text == "void"):
            continue
        texts = [token.text for token in rest]
        name, place = words[-1].text, words[-1]
        spaces = [t for t in texts if t in {"device", "constant", "threadgroup", "thread"}]
        indexed = next(filter(None, map(_INDEXED.fullmatch, attributes)), None)
        position = next((a for a in attributes if a in POSITIONS), "")
        if position:
            yield Parameter(
                name,
                "position",
                position=POSITIONS[position],
                file=place.file,
                line=place.line,
            )
        elif indexed is None and not {"*", "&", "]"} & set(texts):
            kind = attributes[0] if attributes else "nothing"
            yield Parameter(name, kind, file=place.file, line=place.line)
        else:
            kind = indexed[1] if indexed else "buffer"
            index = int(indexed[2]) if indexed else following
            if kind == "buffer":
                following = index + 1
            yield Parameter(
                name,
                kind,
                index,
                reference="&" in texts,
                optional=any(a.startswith("function_constant(") for a in attributes),
                space=spaces[0] if spaces else "",
                file=place.file,
                line=place.line,
            )
