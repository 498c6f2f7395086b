"""``dev.ops``: operators bound without facts, by attribute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Ops:
    """Operators as attributes; each is bound at first use and then kept.

    A bind without facts promises nothing: arguments decide at every call, and inputs that require
    grad go to the reference. A plugin's own operators lie under the plugin's name.
    """

    def __init__(
        self, bind: Callable[[str], Callable[..., Any]], names: Iterator[str], prefix: str = ""
    ) -> None:
        self._bind = bind
        self._names = tuple(names)
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full = self._prefix + name
        if any(n.startswith(full + ".") for n in self._names):
            found: Any = Ops(self._bind, iter(self._names), full + ".")
        else:
            found = self._bind(full)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        start = len(self._prefix)
        return sorted(
            {n[start:].partition(".")[0] for n in self._names if n.startswith(self._prefix)}
        )
