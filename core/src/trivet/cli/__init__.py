"""The ``trivet`` command.

It needs the extra ``trivet[cli]`` (click and rich); without it ``main`` says so and exits with 2.
Exit codes of every sub-command: 0 done, 1 a problem was found, 2 it could not be done.
"""

from __future__ import annotations

import importlib
import io
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line of this process and exits."""
    try:
        importlib.import_module("rich")
        from trivet.cli.program import program
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        print(  # noqa: T201 - there is no click to print with
            "trivet: the command line needs click and rich: pip install 'trivet[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no crash
            stream.reconfigure(errors="backslashreplace")
    program(prog_name="trivet")
