"""The configuration file: the first one found is the only one read, and every key must be known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trivet.errors import ConfigError
from trivet.settings.variables import (
    MODES,
    NAME,
    OPERATOR,
    PROVIDER,
    VARIABLES,
    Orders,
    Variable,
    meant,
)

Values = dict[str, Any]
"""Values by field of ``Settings``."""


class _Reader:
    """Reads the tables of one file; every refusal names file and key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse(self, key: str, problem: str, fix: str = "") -> ConfigError:
        return ConfigError(f"{self.path}: {key}: {problem}", fix=fix)

    def unknown(self, key: str, allowed: Iterable[str]) -> ConfigError:
        hint = meant(key.rpartition(".")[2], allowed) or f"allowed: {', '.join(allowed)}"
        return self.refuse(key, "unknown key", hint)

    def table(self, data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        table = data.get(name, {})
        if not isinstance(table, dict):
            raise self.refuse(name, "must be a table", f"write [{name}]")
        return table

    def strings(self, value: object, key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise self.refuse(key, f"{value!r} is not a list of names", '["a", "b"]')
        for item in value:
            if not isinstance(item, str) or not pattern.fullmatch(item):
                raise self.refuse(key, f"{item!r} is not a name", "PLUGIN/NAME, or a plain name")
        return tuple(value)

    def orders(self, table: Mapping[str, Any], name: str) -> Orders:
        orders = {}
        for operator, value in table.items():
            if not OPERATOR.fullmatch(operator):
                raise self.refuse(f"{name}.{operator}", "is not an operator's name", 'or "*"')
            orders[operator] = self.strings(value, f"{name}.{operator}", PROVIDER)
        return MappingProxyType(orders)

    def plain(self, data: Mapping[str, Any]) -> tuple[Values, dict[str, str]]:
        values: Values = {}
        keys: dict[str, str] = {}
        by_key = {v.key: v for v in VARIABLES if v.key}
        for name in dict.fromkeys(key.partition(".")[0] for key in by_key):
            for key, value in self.table(data, name).items():
                where = f"{name}.{key}"
                if where not in by_key:
                    known = [k.split(".") for k in by_key]
                    raise self.unknown(where, [k for table, k in known if table == name])
                variable = by_key[where]
                keys[variable.field] = where
                values[variable.field] = self.value(variable, where, value)
        return values, keys

    def value(self, variable: Variable, where: str, value: object) -> object:
        """What a key of the file says, as the field of ``Settings`` has it."""
        if variable.type == "names":
            return self.strings(value, where, NAME)
        if variable.type == "name":
            return self.strings([value], where, NAME)[0]
        if isinstance(value, bool):
            return value
        raise self.refuse(where, f"{value!r} is not true or false")

    def read(self) -> tuple[Values, dict[str, str]]:
        import tomllib  # only where there is a file: it costs milliseconds

        try:
            data = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:  # of TOML, UTF-8 or a long number
            raise ConfigError(
                f"{self.path} cannot be read: {error}", fix="correct the file, or remove it"
            ) from error
        own = (v.key.partition(".")[0] for v in VARIABLES if v.key)
        tables = tuple(dict.fromkeys([*own, "providers", "forbid"]))
        for key in data:
            if key not in tables:
                raise self.unknown(key, tables)
        values, keys = self.plain(data)
        providers = dict(self.table(data, "providers"))
        modes: dict[str, Any] = {mode: providers.pop(mode) for mode in MODES if mode in providers}
        for key, value in providers.items():
            if isinstance(value, dict):
                raise self.unknown(f"providers.{key}", MODES)
        values["file_providers"] = self.orders(providers, "providers")
        values["file_providers_by_mode"] = MappingProxyType(
            {mode: self.orders(self.table(modes, mode), f"providers.{mode}") for mode in modes}
        )
        values["file_forbid"] = self.orders(self.table(data, "forbid"), "forbid")
        return values, keys


def load(path: Path) -> tuple[Values, dict[str, str]]:
    """What a file says, and the key that says it, both by field of ``Settings``.

    Raises:
        ConfigError: names the file, the key and what is allowed.
    """
    return _Reader(path).read()
