"""What ``trivet doctor`` finds out, as one document of plain values."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from trivet import CONTRACT, __version__
from trivet.cli.commands import externals
from trivet.cli.declaration import effective_order
from trivet.cli.device_name import where
from trivet.cli.variables import unread_variables
from trivet.devices import Device, device
from trivet.errors import PluginBroken, PluginError, TrivetError
from trivet.plugins import Discovery, Line, Status, discover
from trivet.plugins.isolate import isolated_report
from trivet.plugins.verification import REFERENCE
from trivet.selection import lock
from trivet.settings import PREFIX, VARIABLES, Settings, read

T = TypeVar("T")

KEYS: Final = {
    "ok": "true when there is no problem",
    "problems": "[{what, fix}], what somebody must mend",
    "versions": "{trivet, contract, python, torch, platform}",
    "plugins": "[{plugin, dist, version, status, reason, fix, ...}]",
    "notes": "[text], remarks that are no problem",
    "auto": "{device, plugin, reason, error}, what `auto` takes",
    "device": "what the device says of itself; null without one",
    "defaults": "[{name, value, reason, plugin}], for engines",
    "operators": "[{operator, version, providers}], as they are tried",
    "refused": "[{plugin, dist, target, provider, reason, fix}]",
    "unmet": "[{provider, operator, form, reason}], unfit here",
    "settings": "[{name, value, source}]",
    "unknown_variables": "[{name, near}], TRIVET_ names that mean nothing",
    "memory": "{total_bytes, free_bytes, ..., source}, or null",
    "collectives": "[{provider, operations}], of two ranks on one machine",
    "commands": "[{name, dist, error}], commands of other packages",
}
"""Keys of the document, in order."""

_ISOLATED: Final = "doctor --isolate"


def examine(*, isolate: bool, seconds: float) -> dict[str, Any]:
    """Imports and asks everything, and writes down what came of it.

    Args:
        isolate: ask each plugin in a process of its own first, and leave out of this process
            those that fail there.
        seconds: time limit of each such process.
    """
    with _quiet():
        return _Examination().run(isolate=isolate, seconds=seconds)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps warnings of discovery from being written twice: as a log line and as a finding."""
    logger = logging.getLogger("trivet")
    level = logger.level
    if f"{PREFIX}LOG" not in os.environ:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Examination:
    """One visit: every part may fail, and is then a problem that hides none of the others."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.notes: list[str] = []
        self.found: dict[str, Any] = {
            "versions": _versions(), "plugins": [], "auto": _auto(None, ""), "device": None,
            "defaults": [], "operators": [], "refused": [], "unmet": [], "settings": [],
            "unknown_variables": [], "memory": None, "collectives": [], "commands": [],
        }  # fmt: skip

    def run(self, *, isolate: bool, seconds: float) -> dict[str, Any]:
        """The whole document."""
        self._unknown()
        if (settings := self._attempt(read)) is not None:
            self.found["settings"] = _settings(settings)
            if settings.lock is not None:
                self._attempt(lambda: lock.load(Path(settings.lock or "")))
            self._plugins(settings, isolate=isolate, seconds=seconds)
        else:
            self.notes.append("no plugin was asked, because the settings cannot be read")
        self._commands()
        found = self.found | {
            "ok": not self.problems,
            "problems": [{"what": w, "fix": f} for w, f in self.problems.items()],
            "notes": self.notes,
        }
        return {key: found[key] for key in KEYS}

    def _attempt(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except TrivetError as error:
            self._problem(error.what, error.fix)
            return None

    def _problem(self, what: str, fix: str) -> None:
        self.problems.setdefault(what, fix)

    def _unknown(self) -> None:
        for name, near in unread_variables().items():
            self.found["unknown_variables"].append({"name": name, "near": near})
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            self._problem(f"no variable {name} exists", f"{meant}rename or unset it")

    # --- plugins and devices ---

    def _plugins(self, settings: Settings, *, isolate: bool, seconds: float) -> None:
        alone = {(ln.plugin, ln.dist): ln for ln in isolated_report(seconds)} if isolate else {}
        lost = tuple(ln.plugin for ln in alone.values() if ln.faulty)
        if lost:
            sources = {**settings.sources, "deny": _ISOLATED}
            settings = replace(settings, deny=(*settings.deny, *lost), sources=sources)
        discovery = discover(settings)
        devices = self._devices(discovery)
        lines = [self._line(line, alone.get((line.plugin, line.dist)))
                 for line in discovery.report()]  # fmt: skip
        self.found["plugins"] = [line.to_json() for line in lines]
        self.notes += discovery.report().notes
        self.notes += [
            f"{line.plugin}: {detail}" for line in lines if line.usable for detail in line.details
            if detail.startswith("default ")
        ]  # fmt: skip
        for one in devices:
            self._offer(one)

    def _devices(self, discovery: Discovery) -> list[Device]:
        """The device of ``auto``, then the first one of every other plugin that has any."""
        auto: Device | None = None
        try:
            auto = device("auto")
            self.found["auto"] = _auto(auto, "")
            self._operators(auto)
        except TrivetError as error:
            self.found["auto"] = _auto(None, error.what)
            self._problem(f"auto: {error.what}", error.fix)
        devices = [auto] if auto else []
        for name in discovery.names:
            if not discovery.devices(name) or (auto and name == auto.plugin):
                continue
            try:
                devices.append(device(name))
            except PluginError as error:
                if not discovery.line(name).faulty:
                    self._problem(error.what, error.fix)
        return devices

    def _line(self, line: Line, alone: Line | None) -> Line:
        """The line of one plugin: what its own process says counts where that failed."""
        if alone is not None and (not alone.usable or line.status is Status.FILTERED):
            line = alone
        if line.faulty:
            who = f"{line.plugin} ({line.dist} {line.version})"
            self._problem(f"plugin {who}: {line.reason}", line.fix)
        return line

    def _offer(self, one: Device) -> None:
        for refusal in one.offer.refusals:
            error = refusal.error
            self.found["refused"].append(
                {"plugin": refusal.plugin, "dist": refusal.dist, "target": refusal.target,
                 "provider": refusal.provider, "reason": refusal.reason, "fix": error.fix}
            )  # fmt: skip
            self._problem(f"{refusal.dist}: {refusal}", error.fix)
        for unmet in one.offer.unmet:
            which = unmet.implementation
            self.found["unmet"].append(
                {"provider": which.provider, "operator": which.operator.name, "form": which.form,
                 "reason": unmet.reason}
            )  # fmt: skip

    # --- the device of auto ---

    def _operators(self, one: Device) -> None:
        self.found["device"] = one.info.to_json()
        self.found["defaults"] = [
            {"name": name, "value": value, "reason": reason, "plugin": plugin}
            for name, (value, reason, plugin) in one.defaults.items()
        ]
        forced: dict[str, int] = {}
        for name, op in one.operators.items():
            ranked = self._attempt(partial(effective_order, one, name))
            ranked = [*one.providers()[name], REFERENCE] if ranked is None else ranked
            refused = {r.provider for r in one.offer.refusals if r.operator == name}
            refused -= {i.provider for i in one.offer.implementations if i.operator is op}
            shown = [provider for provider in ranked if provider not in refused]
            row = {"operator": name, "version": op.version,
                   "providers": shown[:-1] if shown[-1] == REFERENCE else shown}  # fmt: skip
            self.found["operators"].append(row)
            # the order lists of the settings are read against the providers that there are
            for line in self._attempt(partial(one.explain, name)) or ():
                if line.preferred and line.elsewhere:
                    self.notes.append(f"{name}: {line.provider} is {line.note}: {line.reason}")
            if ranked[0] == REFERENCE and len(ranked) > 1:
                said = one.binder.policy().rank(name, [REFERENCE])[1][REFERENCE]
                source = said.rpartition(" ")[0]
                forced[source] = forced.get(source, 0) + 1
        self.notes += [
            f"{count} {'operators are' if count > 1 else 'operator is'} made to run on the "
            f"reference by {source}"
            for source, count in forced.items()
        ]
        self.found["memory"] = self._attempt(lambda: self._memory(one))
        self.found["collectives"] = self._attempt(lambda: _collectives(one)) or []

    def _memory(self, one: Device) -> dict[str, object] | None:
        try:
            return one.memory.info().to_json()
        except PluginBroken as error:  # of the memory that the plugin brings
            what = f"plugin {one.plugin}: {error.what}"
            self._problem(what, f"tell who makes {one.report[one.plugin].dist}")
            return None

    def _commands(self) -> None:
        for name, external in externals().items():
            row = {"name": name, "dist": external.homes, "error": ""}
            try:
                external.load()
            except PluginError as error:
                row["error"] = error.what
                self._problem(error.what, error.fix)
            self.found["commands"].append(row)


def _versions() -> dict[str, object]:
    return {
        "trivet": __version__,
        "contract": CONTRACT,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _collectives(one: Device) -> list[dict[str, object]]:
    """Who makes which operations of a group, by the first candidate for each."""
    from trivet.collectives.explaining import first

    table = one.collectives.imagine(2)
    found: dict[str, list[str]] = {}
    for operation in table.candidates:
        found.setdefault(first(table, operation), []).append(operation)
    return [{"provider": provider, "operations": names} for provider, names in found.items()]


def _auto(one: Device | None, error: str) -> dict[str, str]:
    return {
        "device": where(one) if one else "",
        "plugin": one.plugin if one else "",
        "reason": one.reason if one else "",
        "error": error,
    }


def _settings(settings: Settings) -> list[dict[str, object]]:
    """Every variable, then the order lists of the file, each with where it comes from."""
    rows: list[dict[str, object]] = [
        {"name": v.name, "value": _bare(getattr(settings, v.field)),
         "source": settings.source(v.field)}
        for v in VARIABLES
    ]  # fmt: skip
    for table, orders in settings.orders.items():
        if table.startswith("file."):
            rows += [
                {"name": f"{table.removeprefix('file.')}.{op}", "value": list(names),
                 "source": str(settings.config)}
                for op, names in orders.items()
            ]  # fmt: skip
    return rows


def _bare(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: list(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
