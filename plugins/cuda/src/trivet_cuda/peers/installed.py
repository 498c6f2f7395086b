"""Whether a peer is installed, asked without importing it; and its import, with a typed error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from trivet.contracts import DeviceInfo, Requirement
from trivet.errors import PluginBroken

FLOATS: Final = ("float32", "float16", "bfloat16")
"""Dtypes of activations that the peers' kernels take."""

HALVES: Final = ("float16", "bfloat16")
"""Dtypes of those that leave float32 out."""


@dataclass(frozen=True)
class Installed(Requirement):
    """A Python package that must be there; nothing of it is imported to find out."""

    install: str = ""

    def unmet(self, info: DeviceInfo) -> str:
        """Says that it is not installed, and what installs it; empty when it is."""
        del info
        if find_spec(self.name) is not None:
            return ""
        return f"package {self.name!r} is not installed: {self.install}"


def package(name: str, install: str) -> Installed:
    """Requires a Python package by the name of its import."""
    return Installed("package", name, install)


def load(name: str, need: Installed) -> ModuleType:
    """Imports a module of a peer.

    Raises:
        PluginBroken: it cannot be imported; the text has its own words.
    """
    try:
        return import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        msg = f"peer {need.name}: importing {name} fails: {type(error).__name__}: {words}"
        raise PluginBroken(msg, fix=f"{need.install}, or take it off the order list") from error


def folders(name: str) -> list[Path]:
    """Where a package lies, without importing it; also one that is a folder of libraries only."""
    spec = find_spec(name)
    return [Path(p) for p in spec.submodule_search_locations or ()] if spec else []


def loading(first: Callable[[], Any]) -> Callable[[Mapping[str, Any]], None]:
    """What an implementation gives as ``resolve``: the peer is imported when a site is bound."""

    def resolve(facts: Mapping[str, Any]) -> None:
        del facts
        first()

    return resolve
