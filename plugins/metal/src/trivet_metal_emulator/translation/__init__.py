"""From preprocessed Metal text to C++ that a clang for the host compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trivet_metal_emulator.tokens import tokenise
from trivet_metal_emulator.translation.attributes import collect_attributes, drop_attributes
from trivet_metal_emulator.translation.kernels import Entry, Parameter, find_kernels
from trivet_metal_emulator.translation.overloads import merge_overloads
from trivet_metal_emulator.translation.pragmas import drop_pragmas
from trivet_metal_emulator.translation.threadgroup import place_in_threadgroup
from trivet_metal_emulator.translation.values import convert_values

__all__ = ["Entry", "Parameter", "Translation", "translate"]


@dataclass(frozen=True)
class Translation:
    """C++ with the places of the Metal text, and the kernels in it."""

    body: str
    kernels: tuple[Entry, ...]


def translate(
    text: str, name: str, constants: Mapping[str | int, float], *, spaces: bool = False
) -> Translation:
    """Translates preprocessed Metal text.

    Args:
        text: what the preprocessor made, with its line markers.
        name: the file of the lines before the first marker.
        constants: values of function constants, by name or index.
        spaces: whether pointers keep the names of their memory, to be checked and not to be run.

    Raises:
        CompileError: the text cannot be understood.
    """
    tokens = tokenise(text, name)
    drop_pragmas(tokens)
    collect_attributes(tokens, constants)
    kernels = find_kernels(tokens)
    drop_attributes(tokens)
    if not spaces:
        merge_overloads(tokens)
    place_in_threadgroup(tokens)
    convert_values(tokens)
    return Translation(tokens.text(), tuple(kernels))
