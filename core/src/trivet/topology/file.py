"""Topologies as files: of machines, and mocks for tests; what is in one is not trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NoReturn

from trivet.contracts.topology import Link, Node
from trivet.errors import ConfigError
from trivet.topology.verdict import LONGEST, Access, Verdict, sentence

KINDS: Final = ("device", "numa", "host")
_BYTES: Final = 8 << 20
_MOST: Final = {"nodes": 4096, "links": 65536, "access": 65536, "remarks": 4096}
_CORES: Final = 1 << 16
_MADE: Final = "trivet topo --dump FILE makes one"
_NONE: Final = "is no object"


def dump(verdict: Verdict, path: str | Path) -> None:
    """Write a verdict.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json.dumps(verdict.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        msg = f"the topology cannot be written to {path}: {error}"
        raise ConfigError(msg, fix="name a file in a folder of yours") from error


def load(path: str | Path) -> Verdict:
    """Read a verdict.

    Raises:
        ConfigError: the file cannot be read, or is no topology; the text says where.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the topology {path} cannot be read: {error}", fix=_MADE) from error
    if len(data) > _BYTES:
        raise ConfigError(f"the topology {path} has more than {_BYTES} bytes", fix=_MADE)
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the topology {path} is no JSON: {error}", fix=_MADE) from error
    return from_json(document, str(path))


def from_json(document: object, source: str = "") -> Verdict:
    """A verdict of plain values.

    Args:
        document: what ``Verdict.to_json`` gives.
        source: the file, for errors; it becomes the verdict's source.

    Raises:
        ConfigError: it is no topology; the text says where.
    """
    row = _Row(document, source or "a topology")
    if row.get("trivet_topology", _whole) != 1:
        row.refuse("trivet_topology is not 1", "use the trivet that wrote it, or write it again")
    nodes = tuple(_node(one) for one in row.rows("nodes"))
    names = {node.name for node in nodes}
    if len(names) < len(nodes):
        row.refuse("two nodes have the same name")
    for node in nodes:
        if node.near and (node.near not in names or node.near == node.name):
            row.refuse(f"node {node.name!r} is near {node.near!r}, which is no other node")
    links = tuple(_link(one, names) for one in row.rows("links"))
    devices = {node.name for node in nodes if node.kind == "device"}
    access = tuple(_access(one, devices) for one in row.rows("access"))
    if len({(one.reader, one.owner) for one in access}) < len(access):
        row.refuse("a pair stands in access twice")
    remarks = tuple(row.texts("remarks"))
    origin = sentence(source) if source else row.get("source", _text, "")
    return Verdict(nodes, links, access, remarks, origin)


def checked(told: object) -> Node | Link:
    """A node or link of a vendor, as a file could have it.

    Raises:
        ConfigError: it is neither, or a field of it cannot be right.
    """
    if type(told) is Node:
        return _node(_Row({f.name: getattr(told, f.name) for f in fields(told)}, "a node"))
    if type(told) is not Link:  # a subclass would bring foreign code into every question
        raise ConfigError("neither a node nor a link", fix="return Node and Link of the contract")
    row = _Row({f.name: getattr(told, f.name) for f in fields(told)}, "a link")
    return _link(row, None)


def _node(row: _Row) -> Node:
    kind = row.get("kind", _text)
    if kind not in KINDS:
        row.refuse(f"kind {kind!r} is none of {', '.join(KINDS)}")
    cores = row.get("cores", _cores, ())
    return Node(
        row.get("name", _name), kind, row.get("near", _text, ""), cores,
        row.get("memory_bytes", _optional(_whole), None),
    )  # fmt: skip


def _link(row: _Row, names: set[str] | None) -> Link:
    """A link; where ``names`` are given its ends are two of them."""
    a, b = row.get("a", _name), row.get("b", _name)
    if a == b or (names is not None and not {a, b} <= names):
        row.refuse(f"{a!r} and {b!r} are not two of the nodes")
    return Link(
        a, b, row.get("kind", _text), row.get("bytes_per_second", _optional(_rate), None),
        row.get("measured", _flag, default=False), row.get("hops", _optional(_whole), None),
    )  # fmt: skip


def _access(row: _Row, devices: set[str]) -> Access:
    reader, owner = row.get("reader", _name), row.get("owner", _name)
    if reader not in devices or owner not in devices:
        row.refuse(f"{reader!r} and {owner!r} are not both devices")
    return Access(
        reader, owner, row.get("claimed", _flag), row.get("probed", _optional(_flag), None),
        row.get("reason", _text, ""),
    )  # fmt: skip


class _Row:
    """A mapping of a document, and where it stands there."""

    def __init__(self, value: object, where: str) -> None:
        self.where = where
        self.value: dict[str, Any] = value if isinstance(value, dict) else self.refuse(_NONE)

    def refuse(self, why: str, fix: str = _MADE) -> NoReturn:
        raise ConfigError(f"{self.where}: {why}", fix=fix)

    def get(self, key: str, take: Callable[[Any], Any], default: Any = ...) -> Any:
        found = self.value.get(key, default)
        if found is ...:
            self.refuse(f"{key} is missing")
        if found is default:
            return found
        try:
            return take(found)
        except ValueError as error:
            self.refuse(f"{key} is not {error}")

    def members(self, key: str) -> list[Any]:
        found = self.value.get(key, [])
        if not isinstance(found, list) or len(found) > _MOST[key]:
            self.refuse(f"{key} is no list of at most {_MOST[key]}")
        return list(found)

    def rows(self, key: str) -> list[_Row]:
        found = self.members(key)
        return [_Row(one, f"{self.where}: {key}[{i}]") for i, one in enumerate(found)]

    def texts(self, key: str) -> list[str]:
        try:
            return [_text(one) for one in self.members(key)]
        except ValueError as error:
            self.refuse(f"{key} has in it what is not {error}")


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > LONGEST or not value.isprintable():
        raise ValueError(f"printable text of at most {LONGEST} characters")
    return value


def _name(value: Any) -> str:
    if not _text(value):
        raise ValueError("a name")
    return str(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("a number from 0 up, without a fraction")
    return value


def _rate(value: Any) -> float:
    if type(value) not in {int, float} or not 0 < value < 1e18 or not math.isfinite(value):
        raise ValueError("a number above 0")
    return float(value)


def _cores(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > _CORES:
        raise ValueError("a list of processors")
    return tuple(map(_whole, value))


def _optional(take: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else take(value)
