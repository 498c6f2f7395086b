"""Whether a plugin loads, and whether its device can do what every check needs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import trivet
from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.implementation import claims_of
from trivet.devices import Device
from trivet.errors import TrivetError
from trivet.plugins import Status as Known
from trivet.plugins import discover
from trivet.plugins.resolve import REFERENCE
from trivet_conformance.result import Finding, Status
from trivet_conformance.running.run import Place

Check = tuple[Place, Callable[[], Finding]]

_ORDINARY: Final = ("/dev/null", "/dev/zero", "/dev/tty", "/dev/pts", "/dev/urandom", "/dev/random",
                    "/dev/shm", "/dev/stdin", "/dev/stdout", "/dev/stderr")  # fmt: skip  # noqa: S108 - compared as text
_PASS: Final = Finding(Status.PASS)


def load_place(plugin: str, name: str) -> Place:
    """The place of a check of the plugin as a whole."""
    return Place("load", "plugin", plugin, case=name)


class Loading:
    """The steps of loading one plugin; each later one needs the earlier ones.

    Args:
        plugin: its name.
    """

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self.failed = False
        self.kind = plugin
        self.infos: Sequence[DeviceInfo] = ()

    @property
    def printed(self) -> str:
        """What it wrote to standard output while it was loaded."""
        return "" if self.plugin == REFERENCE else discover().line(self.plugin).printed

    def steps(self) -> Iterator[Check]:
        """The checks, in order; after a failure the others are left out."""
        if self.plugin == REFERENCE:
            return
        steps = (self.discovered, self.imported, self.probed, self.listed, self.repeated)
        for step in steps:
            yield load_place(self.plugin, step.__name__), self._kept(step)
            if self.failed:
                return

    def _kept(self, step: Callable[[], Finding]) -> Callable[[], Finding]:
        def check() -> Finding:
            self.failed = True  # until the step says otherwise; it may raise
            found = step()
            self.failed = found.status is not Status.PASS and step.__name__ != "repeated"
            return found

        return check

    def discovered(self) -> Finding:
        """Its metadata is found, whole, and covers this contract."""
        line = discover().line(self.plugin)
        self.kind = line.extends or self.plugin
        return _PASS if line.usable else Finding(Status.FAIL, _said(line), 1.0)

    def imported(self) -> Finding:
        """It is imported, its hooks are of the contract, and no device was touched for that."""
        files, threads = _device_files(), threading.active_count()
        hooks = discover().load(self.plugin)
        if hooks is None:
            return Finding(Status.FAIL, _said(discover().line(self.plugin)), 1.0)
        if opened := sorted(_device_files() - files):
            reason = f"importing it opens {', '.join(opened)}: only the probe may touch a device"
            return Finding(Status.FAIL, reason, 1.0)
        if (more := threading.active_count() - threads) > 0:
            return Finding(Status.FAIL, f"importing it starts {more} threads", 1.0)
        return _PASS

    def probed(self) -> Finding:
        """Its probe says yes, and torch has its devices."""
        self.infos = discover().devices(self.plugin)
        line = discover().line(self.plugin)
        if line.status is Known.NO_HARDWARE:
            return Finding(Status.NOT_RUN, _said(line))
        return _PASS if line.usable else Finding(Status.FAIL, _said(line), 1.0)

    def listed(self) -> Finding:
        """The device starts, and says what the plugin brings for it."""
        try:
            trivet.device(self.kind)
        except TrivetError as error:
            return Finding(Status.FAIL, error.what, 1.0)
        line = discover().line(self.plugin)
        if not line.usable:
            return Finding(Status.FAIL, _said(line), 1.0)
        return Finding(Status.PASS, notes=(line.reason, *line.details))

    def repeated(self) -> Finding:
        """Hooks that are called again give equal answers."""
        hooks = discover().load(self.plugin)
        info = trivet.device(self.kind).info
        wanted = ("trivet_probe", "trivet_devices", "trivet_operators", "trivet_implementations",
                  "trivet_defaults")  # fmt: skip
        for name in wanted:
            if hooks is None or name not in hooks:
                continue
            given = {"device": info} if name in wanted[3:] else {}
            first, second = (_plain(hooks.call(name, **given)) for _ in range(2))
            if first != second:
                return Finding(Status.FAIL, f"{name} gives {second!r} after {first!r}", 1.0)
        return _PASS

    def device_checks(self, device: Device) -> Iterator[Check]:
        """What every check needs of a device, whoever made it."""
        for name, check in BASICS.items():

            def run(check: Callable[[torch.device], str] = check) -> Finding:
                try:
                    wrong = check(device.torch)
                except Exception as error:  # noqa: BLE001 - a backend may raise anything
                    wrong = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
                return Finding(Status.FAIL, wrong, 1.0) if wrong else _PASS

            yield load_place(self.plugin, f"device:{name}"), run


def _said(line: Any) -> str:
    return f"{line.status.value}: {line.reason}" + (f"; fix: {line.fix}" if line.fix else "")


def _plain(answer: Any) -> Any:
    """An answer as values that compare by content."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if not isinstance(answer, list | tuple):
        return answer
    return [_member(a) for a in answer]


def _member(value: Any) -> Any:
    claims = claims_of(value)
    if claims:
        return [(c.target, c.name, getattr(value, "__qualname__", "")) for c in claims]
    name = getattr(value, "name", None)
    return value if isinstance(value, DeviceInfo) or name is None else (type(value).__name__, name)


def _device_files() -> set[str]:
    """Device files that this process has open; none where the system does not tell."""
    found = set()
    folder = Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            target = os.readlink(entry)  # noqa: PTH115 - the text, not a path
        except OSError:
            continue
        if target.startswith("/dev/") and not target.startswith(_ORDINARY):
            found.add(target)
    return found


# --- what a device must be able to do --------------------------------------------------------


def _numbers() -> torch.Tensor:
    return torch.arange(1000, dtype=torch.float32).reshape(10, 100)


def _copies(where: torch.device) -> str:
    there = _numbers().to(where)
    if there.device.type != where.type:
        return f"a tensor moved to {where} lies on {there.device}"
    return _differ(there, _numbers(), "a copy there and back")


def _fills(where: torch.device) -> str:
    return _differ(torch.full((7, 3), 2.5, device=where), torch.full((7, 3), 2.5), "a filled one")


def _compares(where: torch.device) -> str:
    one, other = _numbers().to(where), _numbers().to(where)
    if not torch.equal(one, other):
        return "equal tensors compare unequal"
    other[3, 5] += 1
    return "unequal tensors compare equal" if torch.equal(one, other) else ""


def _synchronises(where: torch.device) -> str:
    if where.type != "cpu":
        torch.get_device_module(where).synchronize()
    return ""


def _empties(where: torch.device) -> str:
    shape = tuple(torch.empty((0, 5), device=where).cpu().shape)
    return "" if shape == (0, 5) else f"an empty tensor has shape {shape}"


def _strides(where: torch.device) -> str:
    there = _numbers().to(where)
    view = there[::3, 1::7]
    wrong = _differ(view, _numbers()[::3, 1::7], "a strided view")
    view.copy_(torch.zeros(view.shape))
    want = _numbers()
    want[::3, 1::7] = 0
    return wrong or _differ(there, want, "a tensor after a copy into a strided view of it")


def _differ(there: torch.Tensor, want: torch.Tensor, what: str) -> str:
    return "" if torch.equal(there.cpu(), want) else f"{what} has other numbers"


BASICS: Final[Mapping[str, Callable[[torch.device], str]]] = {
    "copy": _copies,
    "fill": _fills,
    "compare": _compares,
    "synchronize": _synchronises,
    "empty": _empties,
    "strided": _strides,
}
"""The things without which no check means anything."""
