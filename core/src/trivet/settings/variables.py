"""The table of environment variables; nothing else in this project reads its own variables."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from trivet.errors import ConfigError

PREFIX: Final = "TRIVET_"

Orders = Mapping[str, tuple[str, ...]]

OPERATOR: Final = re.compile(r"\*|[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
PROVIDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
NO_ORDERS: Final[Orders] = MappingProxyType({})

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_LEVELS = ("debug", "info", "warning", "error")


def _text(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("one name, such as cpu or NAME:1")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"one of {', '.join(_TRUE + _FALSE)}")
    return text.lower() in _TRUE


def _level(text: str) -> str:
    if text.lower() not in _LEVELS:
        raise ValueError(f"one of {', '.join(_LEVELS)}")
    return text.lower()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(NAME.fullmatch(name) for name in names):
        raise ValueError("names separated by commas")
    return names


def _orders(text: str) -> Orders:
    orders: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        operator, equals, names = part.partition("=")
        operator = operator.strip()
        providers = tuple(name.strip() for name in names.split(","))
        if not (equals and OPERATOR.fullmatch(operator)) or operator in orders:
            raise ValueError("OPERATOR=PLUGIN/NAME,...;*=PLUGIN/NAME, each operator once")
        if not all(PROVIDER.fullmatch(name) for name in providers):
            raise ValueError("providers as PLUGIN/NAME, separated by commas")
        orders[operator] = providers
    return MappingProxyType(orders)


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, type in words, default, meaning and parser."""

    name: str
    type: str
    default: object
    doc: str
    parse: Callable[[str], object] = field(repr=False)

    @property
    def field(self) -> str:
        """The attribute of ``Settings`` that it sets."""
        return self.name.removeprefix(PREFIX).lower()

    def read(self, text: str) -> object:
        """The parsed value.

        Raises:
            ConfigError: names the variable, the value and what is allowed.
        """
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(
                f"{self.name}={text!r} is not understood", fix=f"allowed: {error}"
            ) from None


VARIABLES: Final = tuple(
    Variable(f"{PREFIX}{name}", *rest)
    for name, *rest in (
        ("DEVICE", "name", "", "device that `auto` means; no other plugin is imported", _text),
        ("ALLOW", "names", (), "only these plugins or distributions may be used", _names),
        ("DENY", "names", (), "these plugins or distributions are not used", _names),
        ("PROVIDERS", "orders", NO_ORDERS, "preferred providers: `rms_norm=a/b,c/d;*=a/b`",
         _orders),
        ("FORBID", "orders", NO_ORDERS, "forbidden providers: `rms_norm=a/b;*=c/d`", _orders),
        ("STRICT", "flag", False, "refuse the reference and any change to another device", _flag),
        ("CHECK", "flag", False, "compare every call with declaration and promises (slow)", _flag),
        ("TRACE", "flag", False, "count calls and record events of plans made from now on", _flag),
        ("LOCK", "path", None, "lock file that plans must agree with", Path),
        ("CONFIG", "path", None, "configuration file, instead of searching for one", Path),
        ("CACHE_DIR", "path", None, "folder for built kernels and downloaded models", Path),
        ("LOG", "level", "warning", "log level: debug, info, warning or error", _level),
        ("REQUIRE", "names", (), "tools whose absence is a failure, not a remark", _names),
    )
)  # fmt: skip


def near_misses(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like this one, best first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def unknown_variables(environ: Mapping[str, str]) -> Mapping[str, list[str]]:
    """Variables with our prefix that mean nothing -> the names that were perhaps meant."""
    known = {variable.name.removeprefix(PREFIX): variable.name for variable in VARIABLES}
    return {
        name: [known[near] for near in near_misses(name.removeprefix(PREFIX), known)]
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known.values()
    }


def markdown_table() -> str:
    """The table of variables for the documentation."""
    rows = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for v in VARIABLES:
        default = v.default if v.default or v.default is False else None
        shown = "" if default is None else f"`{json.dumps(default)}`"
        rows.append(f"| `{v.name}` | {v.type} | {shown} | {v.doc} |")
    return "\n".join(rows) + "\n"
