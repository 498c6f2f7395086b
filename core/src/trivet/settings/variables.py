"""The one table of settings; nothing else in this project reads its own variables."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trivet.errors import ConfigError

PREFIX: Final = "TRIVET_"

Orders = Mapping[str, tuple[str, ...]]

OPERATOR: Final = re.compile(r"\*|[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
PROVIDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
NO_ORDERS: Final[Orders] = MappingProxyType({})

DEFAULT: Final = "default"
MODES: Final = ("eager", "compiled", "captured", "exported")
"""Of plans; order lists of the file may differ by mode."""

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Order:
    """Provider ids in order, and the layer that says so."""

    providers: tuple[str, ...]
    source: str


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


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError("a folder that is there")
    return Path(text)


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
    """One setting: its environment variable, and the key of the file that says the same.

    Args:
        field: the attribute of ``Settings``.
        default: its value where nobody says anything.
        type: its type in words.
        doc: what it means.
        parse: reads the variable's text; its ``ValueError`` says what is allowed.
        key: ``table.key`` in the file; empty when only the environment can say it.
        decides: whether it can change what a plan chooses.
    """

    field: str
    default: object
    type: str
    doc: str
    parse: Callable[[str], object]
    key: str
    decides: bool

    @property
    def name(self) -> str:
        """The environment variable."""
        return PREFIX + self.field.upper()

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


def _setting(
    default: Any,
    type: str,  # noqa: A002  # the word of the documentation
    doc: str,
    parse: Callable[[str], object],
    *,
    key: str = "",
    decides: bool = True,
) -> Any:
    """A field of ``Settings`` that a variable of its name sets."""
    row = (default, type, doc, parse, key, decides)
    return field(default_factory=lambda: default, metadata={"row": row})


@dataclass(frozen=True)
class Settings:
    """Every effective setting, immutable; ``sources`` says where each comes from.

    A setting is one row of this class; variable, key of the file, documentation and parsing
    derive from it. ``providers`` and ``forbid`` are the environment's; the file's lie in
    ``file_*`` beside them, because an order list of one layer is never merged with another's.
    """

    device: str = _setting(
        "",
        "name",
        "device that `auto` means; no other plugin is imported",
        _text,
        key="device.auto",
    )
    allow: tuple[str, ...] = _setting(
        (), "names", "only these plugins or distributions may be used", _names, key="device.allow"
    )
    deny: tuple[str, ...] = _setting(
        (), "names", "these plugins or distributions are not used", _names, key="device.deny"
    )
    providers: Orders = _setting(
        NO_ORDERS, "orders", "preferred providers: `rms_norm=a/b,c/d;*=a/b`", _orders
    )
    forbid: Orders = _setting(
        NO_ORDERS, "orders", "forbidden providers: `rms_norm=a/b;*=c/d`", _orders
    )
    strict: bool = _setting(
        False, "flag", "refuse the reference and any change to another device", _flag,
        key="run.strict",
    )  # fmt: skip
    check: bool = _setting(
        False, "flag", "compare every call with declaration and promises (slow)", _flag,
        key="run.check",
    )  # fmt: skip
    trace: bool = _setting(
        False, "flag", "count calls and record events of plans made from now on", _flag,
        key="run.trace",
    )  # fmt: skip
    lock: Path | None = _setting(None, "path", "lock file that plans must agree with", Path)
    config: Path | None = _setting(
        None, "path", "configuration file, instead of searching for one", Path
    )
    tuned: Path | None = _setting(
        None, "path", "folder of tables by `trivet tune` that come before a package's own", _folder
    )
    cache_dir: Path | None = _setting(
        None, "path", "folder for built kernels and downloaded models", Path, decides=False
    )
    memory_snapshot: Path | None = _setting(
        None, "path", "folder where programs say who holds memory, for `trivet memory`", Path,
        decides=False,
    )  # fmt: skip
    comm_check: bool = _setting(
        False, "flag", "compare every call of a group across its ranks before it is made (slow)",
        _flag, key="run.comm_check", decides=False,
    )  # fmt: skip
    comm_dump: Path | None = _setting(
        None, "path", "folder where groups write their last calls, for `trivet comm dump`", Path,
        decides=False,
    )  # fmt: skip
    topology: Path | None = _setting(
        None, "path", "file of `trivet topo --dump` that stands for how devices are connected",
        Path, decides=False,
    )  # fmt: skip
    log: str = _setting(
        "warning", "level", "log level: debug, info, warning or error", _level, decides=False
    )
    require: tuple[str, ...] = _setting(
        (), "names", "tools whose absence is a failure, not a remark", _names, decides=False
    )
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

    @property
    def orders(self) -> dict[str, Orders]:
        """Every order list of the environment and the file, by where it stands."""
        return {
            "providers": self.providers,
            "forbid": self.forbid,
            "file.providers": self.file_providers,
            "file.forbid": self.file_forbid,
            **{f"file.providers.{m}": o for m, o in self.file_providers_by_mode.items()},
        }

    def fingerprint(self) -> Mapping[str, object]:
        """Plain values of everything that can change a choice, for ``plan.stale()``."""
        plain: dict[str, object] = {}
        for v in VARIABLES:
            value = getattr(self, v.field)
            if v.decides and v.type != "orders":
                plain[v.field] = sorted(value) if isinstance(value, tuple) else _plain(value)
        if self.tuned:
            plain["tuned"] = _digest(self.tuned)
        for layer, orders in self.orders.items():
            plain |= {f"{layer}.{key}": list(names) for key, names in orders.items()}
        return MappingProxyType(plain)


def _digest(tables: Path) -> str:
    """Sixteen hex digits over the tables of a folder, whose name does not count."""
    import hashlib  # most processes have no such folder

    total = hashlib.sha256()
    for file in sorted(tables.glob("*.json")):
        total.update(f"{file.name}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, str)) else str(value or "")


VARIABLES: Final = tuple(
    Variable(f.name, *f.metadata["row"]) for f in fields(Settings) if f.metadata
)


def near_misses(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like this one, best first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def meant(name: str, known: Iterable[str], before: str = "") -> str:
    """The near misses as a question, behind ``before``; empty when there are none."""
    near = near_misses(name, known)
    return f"{before}did you mean {' or '.join(near)}?" if near else ""


def likely(name: str, known: Iterable[str]) -> str:
    """The near misses as a list, then names that contain it; all that is known without any."""
    known = list(known)
    near = near_misses(name, known)
    near += [other for other in known if len(name) > 2 and name in other and other not in near]
    return ", ".join(near or known)


def unknown_variables(environ: Mapping[str, str]) -> Mapping[str, list[str]]:
    """Variables with our prefix that mean nothing -> the names that were perhaps meant.

    The prefix counts in any case: where variables differ by case, ``trivet_device`` is no setting.
    """
    known = {variable.name.removeprefix(PREFIX): variable.name for variable in VARIABLES}
    return {
        name: [known[near] for near in near_misses(name.upper().removeprefix(PREFIX), known)]
        for name in sorted(environ)
        if name.upper().startswith(PREFIX) and name not in known.values()
    }


def markdown_table() -> str:
    """The table of variables for the documentation."""
    rows = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for v in VARIABLES:
        default = v.default if v.default or v.default is False else None
        shown = "" if default is None else f"`{json.dumps(default)}`"
        rows.append(f"| `{v.name}` | {v.type} | {shown} | {v.doc} |")
    return "\n".join(rows) + "\n"
