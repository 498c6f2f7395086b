"""What is asked to be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """Everything that decides what is built."""

    source: str
    name: str
    checked: bool
    language: int
    constants: tuple[tuple[str | int, float], ...] = ()
    linted: bool = True
    include: tuple[str, ...] = ()

    @property
    def values(self) -> Mapping[str | int, float]:
        """The function constants."""
        return dict(self.constants)
