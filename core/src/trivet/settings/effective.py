"""The effective settings of a moment, each with the layer that it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trivet.settings.file import find_file, load
from trivet.settings.variables import NO_ORDERS, PREFIX, VARIABLES, Orders

DEFAULT: Final = "default"


@dataclass(frozen=True)
class Order:
    """Provider ids in order, and the layer that says so."""

    providers: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Settings:
    """Every effective setting, immutable; ``sources`` says where each comes from.

    ``providers`` and ``forbid`` are the environment's; the file's lie in ``file_*`` beside them,
    because an order list of one layer is never merged with another layer's.
    """

    device: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    providers: Orders = field(default_factory=dict)
    forbid: Orders = field(default_factory=dict)
    strict: bool = False
    check: bool = False
    trace: bool = False
    lock: Path | None = None
    config: Path | None = None
    cache_dir: Path | None = None
    log: str = "warning"
    require: tuple[str, ...] = ()
    file_providers: Orders = field(default_factory=dict)
    file_providers_by_mode: Mapping[str, Orders] = field(default_factory=dict)
    file_forbid: Orders = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Where the value of a field comes from: a variable, a key of a file, or ``default``."""
        return self.sources.get(name, DEFAULT)

    def order(self, operator: str, mode: str = "eager") -> Order | None:
        """The order list that applies, or None.

        The environment speaks before the file; within a layer an operator's own entry speaks
        before ``*``, and in the file a mode's table before the general one.
        """
        by_mode = self.file_providers_by_mode.get(mode, NO_ORDERS)
        file = f"{self.config} [providers"
        for key in (operator, "*"):
            if key in self.providers:
                return Order(self.providers[key], f"{PREFIX}PROVIDERS {key}")
        for key in (operator, "*"):
            if key in by_mode:
                return Order(by_mode[key], f"{file}.{mode}] {key}")
            if key in self.file_providers:
                return Order(self.file_providers[key], f"{file}] {key}")
        return None

    def forbidden(self, operator: str) -> Mapping[str, str]:
        """Providers that must not run this operator -> the layer that forbids them."""
        found: dict[str, str] = {}
        layers = (
            (self.forbid, f"{PREFIX}FORBID"),
            (self.file_forbid, f"{self.config} [forbid]"),
        )
        for orders, layer in layers:
            for key in (operator, "*"):
                for provider in orders.get(key, ()):
                    found.setdefault(provider, f"{layer} {key}")
        return MappingProxyType(found)

    def fingerprint(self) -> Mapping[str, object]:
        """Plain values of everything that can change a choice, for ``plan.stale()``."""
        plain: dict[str, object] = {
            "device": self.device,
            "allow": sorted(self.allow),
            "deny": sorted(self.deny),
            "strict": self.strict,
            "check": self.check,
            "trace": self.trace,
            "lock": str(self.lock or ""),
            "config": str(self.config or ""),
        }
        layers = {
            "providers": self.providers,
            "forbid": self.forbid,
            "file.providers": self.file_providers,
            "file.forbid": self.file_forbid,
            **{f"file.providers.{m}": o for m, o in self.file_providers_by_mode.items()},
        }
        for layer, orders in layers.items():
            plain |= {f"{layer}.{key}": list(names) for key, names in orders.items()}
        return MappingProxyType(plain)


def read(environ: Mapping[str, str] | None = None, *, folder: Path | None = None) -> Settings:
    """The settings of this moment; ``environ`` and ``folder`` default to the process's own.

    Raises:
        ConfigError: a variable or the file is not understood; names it and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = find_file(environ, Path.cwd() if folder is None else folder)
    file = load(path) if path else None
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file:
        values |= file.values
        sources |= {name: f"{file.path} {key}" for name, key in file.keys.items()}
    for variable in VARIABLES:
        text = environ.get(variable.name, "")
        if text:
            values[variable.field] = variable.read(text)
            sources[variable.field] = variable.name
    values["config"] = path
    if path:
        sources.setdefault("config", "found")
    settings = Settings(**values, sources=MappingProxyType(sources))
    if file is None:
        return settings
    return replace(
        settings,
        file_providers=file.providers,
        file_providers_by_mode=file.by_mode,
        file_forbid=file.forbid,
    )
