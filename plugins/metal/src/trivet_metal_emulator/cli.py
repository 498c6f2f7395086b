"""The entry of the command `trivet-metal-emulator`.

Exit codes of every sub-command: 0 done, 1 a problem was found, 2 it could not be done.
"""

from __future__ import annotations

import importlib
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line of this process and exits."""
    try:
        for name in ("click", "rich", "numpy"):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(  # noqa: T201 - there is nothing else to print with
            f"trivet-metal-emulator: the command line needs {error.name}: "
            "pip install 'trivet-metal[emulator]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from trivet_metal_emulator.commands import program

    program(prog_name="trivet-metal-emulator")
