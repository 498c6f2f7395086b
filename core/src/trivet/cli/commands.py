"""Where sub-commands come from: core's own modules, and entry points of installed packages.

An entry point of group ``trivet.commands`` is a click command; its name is the sub-command. It is
imported when it is run, and one that cannot be imported takes nothing from the others.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final, NoReturn

import click

from trivet.errors import PluginBroken

GROUP: Final = "trivet.commands"

OWN: Final = MappingProxyType(
    {
        "doctor": ("trivet.cli.doctor", "Say what is installed, what works, and what to mend."),
        "ops": ("trivet.cli.ops", "List the operators, or show one declaration."),
        "explain": ("trivet.cli.explain", "Say which implementation runs a call, and why."),
        "plan": ("trivet.cli.plan", "Bind the sites of a file; save or verify a lock."),
        "memory": ("trivet.cli.memory", "Say who holds how much memory, by device and tag."),
        "comm": (
            "trivet.cli.comm",
            "Say who makes the operations of groups, and who waits for whom.",
        ),
        "topo": (
            "trivet.cli.topo",
            "Say how devices are connected, and which rank should run where.",
        ),
        "ab": ("trivet.cli.ab", "Compare two providers: results and time."),
        "kernels": (
            "trivet.cli.kernels",
            "Compile Triton kernels without a device; judge the code.",
        ),
        "tune": ("trivet.cli.tune", "Measure constants of Triton kernels; write a table."),
    }
)
"""Core's commands: name -> (module with ``command``, what it does)."""


@dataclass(frozen=True)
class External:
    """A command that an installed package brings.

    Args:
        name: name of the sub-command.
        points: the entry points of that name; more than one is a conflict.
    """

    name: str
    points: tuple[EntryPoint, ...]

    @property
    def homes(self) -> str:
        """Distribution and version of each entry point."""
        found = [f"{p.dist.name} {p.dist.version}" if p.dist else "unknown" for p in self.points]
        return " and ".join(found)

    def load(self) -> click.Command:
        """Imports the command.

        Raises:
            PluginBroken: the name is taken, or the import fails or gives no click command.
        """
        who = f"the command {self.name!r} of {self.homes}"
        if self.name in OWN:
            raise PluginBroken(f"{who} has the name of one of trivet's own", fix="rename it")
        if len(self.points) > 1:
            raise PluginBroken(f"{who}: both claim the name", fix="uninstall one of them")
        fix = f"tell who makes {self.homes}"
        try:
            found = self.points[0].load()
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}"
            raise PluginBroken(f"{who} cannot be imported: {what}", fix=fix) from error
        if not isinstance(found, click.Command):
            raise PluginBroken(f"{who} is a {type(found).__name__}, no click command", fix=fix)
        return found

    def command(self) -> click.Command:
        """The command, or one of that name which says why it cannot be loaded."""
        try:
            return self.load()
        except PluginBroken as error:
            return _refusing(self.name, error)


def _refusing(name: str, error: PluginBroken) -> click.Command:
    def refuse() -> NoReturn:
        raise error

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, settings, callback=refuse, add_help_option=False)


def externals() -> dict[str, External]:
    """The commands of installed packages by name; nothing is imported."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, []).append(point)
    return {name: External(name, tuple(points[name])) for name in sorted(points)}


def own(name: str) -> click.Command:
    """One of core's commands, imported now."""
    command: click.Command = importlib.import_module(OWN[name][0]).command
    return command
