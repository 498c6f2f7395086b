"""Dtypes of activations and weights that the kernels take on this machine."""

from __future__ import annotations

from typing import Final

from trivet_metal.discovery import this_machine

_ALL: Final = ("float32", "float16", "bfloat16")


def floats() -> tuple[str, ...]:
    """All of them, but bfloat16 on a Mac whose macOS is too old for it; emulated, all."""
    found = this_machine().device
    return _ALL if found is None else tuple(name for name in _ALL if name in found.dtypes)


FLOATS: Final = floats()
