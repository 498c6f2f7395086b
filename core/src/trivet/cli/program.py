"""The command group: lazy sub-commands, and errors as one message with an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import click

from trivet import __version__
from trivet.cli.commands import OWN, externals, own
from trivet.cli.variables import unread_variables
from trivet.errors import ContractBroken, LockMismatch, NoImplementation, TrivetError
from trivet.settings import near_misses

FOUND_PROBLEM: Final = 1
FAILED: Final = 2

_MEANT: Final = {"lock": "trivet plan FILE --save LOCK (or --lock LOCK, to compare)"}
"""Guesses that no spelling is near to -> what does that."""

_PROBLEMS: Final = (ContractBroken, LockMismatch, NoImplementation)
"""Errors that are an answer to what was asked, not a failure to answer."""


class Program(click.Group):
    """Sub-commands that are imported when they are run: core's own, and those of packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of core's commands, then those of installed packages."""
        del ctx
        return [*OWN, *(name for name in externals() if name not in OWN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; one of a package that cannot be loaded says so when it is run."""
        del ctx
        if cmd_name in OWN:
            return own(cmd_name)
        external = externals().get(cmd_name)
        return external.command() if external else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names near misses of a command that does not exist."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            near = [_MEANT[name]] if name in _MEANT else near_misses(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            ctx.fail(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists all commands without importing any."""
        del ctx
        found = externals()
        rows = [(name, does) for name, (_, does) in OWN.items()]
        rows += [(n, f"From {e.homes}.") for n, e in found.items() if n not in OWN]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; an error of trivet becomes its message and an exit code."""
        for name, near in unread_variables().items():
            meant = f"; did you mean {' or '.join(near)}?" if near else "; trivet doctor lists all"
            click.echo(f"trivet: no variable {name} exists{meant}", err=True)
        with _messages(ctx):
            return super().invoke(ctx)


@contextlib.contextmanager
def _messages(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except TrivetError as error:
        click.echo(f"trivet: {error}", err=True)
        ctx.exit(FOUND_PROBLEM if isinstance(error, _PROBLEMS) else FAILED)


@click.command(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a problem was found, 2 it could not be done.",
)
@click.version_option(__version__, message="trivet %(version)s")
def program() -> None:
    """Shows what runs on this machine, and why.

    Every command prints plain text of at most the terminal's width, or one JSON document with
    --json.
    """
