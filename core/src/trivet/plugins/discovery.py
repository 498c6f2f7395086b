"""The one discovery of a process: which plugins there are, and what each answered.

Metadata is read once; a plugin's code is imported when it is first needed and never twice. What
goes wrong is kept as that plugin's line in the report and takes nothing from the others.
"""

from __future__ import annotations

import logging
import os
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any, Final, TypeVar

from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.hooks import ENTRY_POINTS
from trivet.contracts.version import CONTRACT
from trivet.errors import (
    OrderError,
    PluginBroken,
    PluginError,
    PluginIncompatible,
    PluginNotFound,
    TrivetError,
)
from trivet.plugins import capture
from trivet.plugins.answers import devices_problem, plain, probe_problem
from trivet.plugins.describe import clean, place, said, shown
from trivet.plugins.hook_calls import NAMES, Hooks, problems
from trivet.plugins.metadata import Candidate, candidates, normalised, with_rivals
from trivet.plugins.report import Line, Report, Status
from trivet.settings import Settings, meant, read

T = TypeVar("T")

LOG: Final = logging.getLogger("trivet.plugins")


@dataclass(eq=False, repr=False)
class _Entry:
    """What is known of one plugin; only ``Discovery`` changes it, under its lock."""

    candidate: Candidate
    line: Line
    hooks: Hooks | None = None
    devices: tuple[DeviceInfo, ...] | None = None
    busy: int = 0  # the thread in which its code runs


class Discovery:
    """The installed plugins, under one lock; see ``discover``.

    Args:
        settings: whose ``allow`` and ``deny`` filter plugins by plugin or distribution name.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._others: list[Line] = []
        apart: list[Candidate] = []
        kept: list[Candidate] = []
        for candidate in candidates():
            unfit = candidate.damage or self._filter(candidate)
            (apart if unfit else kept).append(candidate)
        for candidate in (*with_rivals(kept), *apart):
            line = self._judge(candidate)
            if candidate.name in self._entries:
                self._others.append(line)
            else:
                self._entries[candidate.name] = _Entry(candidate, line)

    # --- before any import ---

    def _judge(self, candidate: Candidate) -> Line:
        """The line of a plugin from its metadata and the settings alone."""
        who = candidate.name, candidate.dist, candidate.version, candidate.module
        line = Line(*who, candidate.extends, reason="not imported, nothing has asked for it")
        if reason := self._filter(candidate):
            return replace(line, status=Status.FILTERED, reason=reason, fix="change that setting")
        if flaw := candidate.flaw():
            fix = f"uninstall one of them, or deny one by TRIVET_DENY={candidate.dist}"
            fix = fix if candidate.rivals else f"tell who makes {candidate.dist}"
            fix = f"install it again; {fix}" if candidate.damage else fix
            return replace(line, status=Status.BROKEN, reason=flaw, fix=fix)
        misfit, fix = candidate.misfit(CONTRACT)
        if misfit:
            return replace(line, status=Status.INCOMPATIBLE, reason=misfit, fix=fix)
        return line

    def _filter(self, candidate: Candidate) -> str:
        """Why the settings exclude it; empty when they do not."""
        names = {normalised(candidate.name), normalised(candidate.dist)}
        settings = self.settings
        if names & {normalised(name) for name in settings.deny}:
            return f"denied by {settings.source('deny')}"
        if settings.allow and not names & {normalised(name) for name in settings.allow}:
            return f"not among those allowed by {settings.source('allow')}"
        return ""

    # --- questions ---

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all installed plugins, usable or not."""
        return tuple(self._entries)

    def candidate(self, name: str) -> Candidate:
        """The metadata of a plugin; see ``line`` for what is raised."""
        return self._entry(name).candidate

    def line(self, name: str) -> Line:
        """What is known of a plugin now.

        Raises:
            PluginNotFound: no installed distribution brings it; near misses are listed.
        """
        return self._entry(name).line

    def usable(self, extends: str = "") -> tuple[str, ...]:
        """Plugins that nothing speaks against, in order of name.

        Args:
            extends: the device kind that they add to; empty for those with one of their own.
        """
        entries = self._entries.items()
        return tuple(n for n, e in entries if e.line.usable and e.candidate.extends == extends)

    def report(self) -> Report:
        """Everything known at this moment."""
        from trivet.plugins.notes import notes  # a device asks for no report

        with self._lock:
            lines = [entry.line for entry in self._entries.values()] + self._others
            return Report(
                lines=tuple(sorted(lines, key=lambda line: (line.plugin, line.dist))),
                notes=tuple(notes([e.candidate for e in self._entries.values()], self.settings)),
                contract=CONTRACT,
            )

    def failure(self, name: str) -> PluginError:
        """The error that says why a plugin cannot be used, from its line."""
        line = self.line(name)
        if line.status is Status.INCOMPATIBLE:
            kind: type[PluginError] = PluginIncompatible
        else:
            kind = PluginNotFound if line.status is Status.FILTERED else PluginBroken
        error = kind(str(replace(line, fix="")), fix=line.fix)
        error.__cause__ = line.error
        return error

    # --- acts: each changes at most the line of one plugin ---

    def load(self, name: str) -> Hooks | None:
        """Imports a plugin and checks its hooks, once; None when its line speaks against it."""
        with self._lock:
            entry = self._entry(name)
            if entry.hooks is None and entry.line.usable:
                entry.hooks = self._import(entry)
            return entry.hooks if entry.line.usable else None

    def devices(self, name: str) -> tuple[DeviceInfo, ...]:
        """Probes a plugin and asks for its devices, once; none when its line says why."""
        with self._lock:
            hooks = self.load(name)
            entry = self._entry(name)
            if hooks is None:
                return ()
            if entry.devices is None:
                entry.devices = self._probe(entry, hooks)
            return entry.devices

    def ask(
        self,
        name: str,
        hook: str,
        *,
        check: Callable[[object], str] | None = None,
        **arguments: object,
    ) -> Any:
        """Calls a hook of a plugin and checks the answer.

        Args:
            name: the plugin.
            hook: name of the hook.
            check: says why an answer cannot be used; empty when it can.
            arguments: arguments of the hook.

        Returns:
            The answer; None when there is no such hook, or the plugin's line says what happened.
        """
        with self._lock:
            hooks = self.load(name)
            if hooks is None or hook not in hooks:
                return None
            entry = self._entry(name)

            def call() -> tuple[Any, str]:
                answer = hooks.call(hook, **arguments)
                if check is None:
                    return answer, ""
                answer = plain(answer)  # the checks, too, touch foreign objects
                return answer, check(answer)

            answer, wrong = self._guard(entry, f"{hook} raises", Status.RAISED, call) or (None, "")
            if self._usable(name) and wrong:
                fix = f"tell who makes {entry.candidate.dist}"
                self.refuse(name, Status.BROKEN, wrong, fix)
            return answer if self._usable(name) else None

    def refuse(self, name: str, status: Status, reason: str, fix: str = "") -> None:
        """Records that a plugin answered something that cannot be used."""
        with self._lock:
            entry = self._entry(name)
            entry.line = replace(entry.line, status=status, reason=clean(reason), fix=fix)
            LOG.log(logging.WARNING if entry.line.faulty else logging.INFO, "%s", entry.line)

    def remark(self, name: str, reason: str, details: tuple[str, ...]) -> None:
        """Records what a usable plugin brought, and which parts of it were refused."""
        with self._lock:
            entry = self._entry(name)
            entry.line = replace(entry.line, reason=reason, details=details)

    def after_fork(self) -> None:
        """Lets a child ask again what another thread was asking when the process was forked.

        A module that was half imported there can never be: its import lock is held for ever.
        """
        self._lock = threading.RLock()
        for name, entry in self._entries.items():
            if entry.busy in {0, threading.get_ident()}:
                continue
            entry.busy = 0
            if not entry.line.loaded:
                why = "this process was forked while another thread imported it"
                self.refuse(
                    name, Status.IMPORT_FAILED, why, "start devices before a fork; or spawn"
                )

    # --- inside ---

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            msg = f"no installed distribution brings a device or plugin {name!r}"
            installed = f"installed: {', '.join(self._entries) or 'none'}"
            fix = f"{meant(name, self._entries)} {installed}".lstrip()
            raise PluginNotFound(msg, fix=fix) from None

    def _guard(self, entry: _Entry, what: str, status: Status, call: Callable[[], T]) -> T | None:
        """Calls foreign code; keeps its output and what it raises in its line."""
        if entry.busy:
            raise OrderError(
                f"plugin {entry.candidate.name!r} is asked while it is answering",
                fix="start devices and load plugins outside imports and hooks",
            )
        printed = capture.Captured()
        entry.busy = threading.get_ident()
        try:
            with capture.stdout(printed):
                return call()
        except KeyboardInterrupt:
            raise
        except SystemExit as error:
            self._caught(entry, status, f"{what}: it calls sys.exit({shown(error.code)})", error)
        except BaseException as error:  # noqa: BLE001 - foreign code, reported in its line
            self._caught(entry, status, f"{what}: {said(error)}{place(error)}", error)
        finally:
            entry.busy = 0
            if printed.text:
                both = f"{entry.line.printed}\n{printed.text}".strip()[: capture.LIMIT]
                entry.line = replace(entry.line, printed=both)
        return None

    def _caught(self, entry: _Entry, status: Status, reason: str, error: BaseException) -> None:
        candidate = entry.candidate
        module = candidate.module.partition(":")[0]
        entry.line = replace(entry.line, error=error)
        fix = f"tell who makes {candidate.dist}"
        if status is Status.IMPORT_FAILED:
            fix = f"`python -c 'import {module}'` shows more; {fix}"
        if isinstance(error, TrivetError) and error.fix:
            fix = f"{error.fix}; {fix}"
        self.refuse(candidate.name, status, reason, fix)

    def _import(self, entry: _Entry) -> Hooks | None:
        name, what = entry.candidate.name, "raises while it is imported"
        point = EntryPoint(name, entry.candidate.module, ENTRY_POINTS)
        module = self._guard(entry, what, Status.IMPORT_FAILED, point.load)
        if not entry.line.usable:
            return None
        entry.line = replace(entry.line, loaded=True)
        if not isinstance(module, types.ModuleType):
            kind = type(module).__name__
            self.refuse(name, Status.BROKEN, f"its entry point names a {kind}, not a module")
            return None

        def register() -> tuple[str, Hooks | None]:
            wrong = "; ".join(problems(module))
            return wrong, None if wrong else Hooks(name, module)

        what = "its hooks cannot be read"
        wrong, hooks = self._guard(entry, what, Status.BROKEN, register) or ("", None)
        if wrong:
            self.refuse(name, Status.BROKEN, wrong, f"hooks are {', '.join(NAMES)}")
        if hooks is None:
            return None
        if hooks.names:
            entry.line = replace(entry.line, reason=f"has {', '.join(hooks.names)}")
        else:
            fix = f"define hooks in it: {', '.join(NAMES)}"
            self.refuse(name, Status.REGISTERED_NOTHING, "its module has no hook", fix)
        return hooks

    def _probe(self, entry: _Entry, hooks: Hooks) -> tuple[DeviceInfo, ...]:
        name = entry.candidate.name
        answer = self.ask(name, "trivet_probe", check=probe_problem)
        if self._usable(name) and "trivet_probe" in hooks and answer is not True:
            self.refuse(name, Status.NO_HARDWARE, answer or "the probe gives no reason")
        check = partial(devices_problem, name, entry.candidate.extends)
        return tuple(self.ask(name, "trivet_devices", check=check) or ())

    def _usable(self, name: str) -> bool:
        return self._entries[name].line.usable


# --- the one of this process -----------------------------------------------------------------

_lock = threading.RLock()
_discovery: Discovery | None = None


def discover(settings: Settings | None = None) -> Discovery:
    """The discovery of this process, made at the first call.

    Args:
        settings: used by the first call only; by default those of the environment.
    """
    global _discovery
    with _lock:
        if _discovery is None:
            _discovery = Discovery(settings or read())
        return _discovery


def reset() -> None:
    """Forgets the discovery, so that the next one reads everything anew; for tests."""
    global _discovery
    with _lock:
        _discovery = None


def _after_fork() -> None:
    """A lock that another thread held at the fork would never be released in the child."""
    global _lock
    _lock = threading.RLock()
    capture.after_fork()
    if _discovery is not None:
        _discovery.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
