"""Starts the command: ``python examples/llm``, or ``python -m llm`` with examples on the path."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # started by the folder's path: make the package importable by its name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)


def main() -> None:
    """Runs the command; an interrupt ends it quietly even while libraries are imported."""
    try:
        from llm.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
