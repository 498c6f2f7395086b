"""Starts the command: ``python examples/llm``, or ``python -m llm`` with examples on the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not __package__:  # started by the folder's path: make the package importable by its name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)


def main() -> None:
    """Runs the command; an interrupt ends it quietly even while libraries are imported."""
    # OpenMP reads it once, when torch is imported: threads that wait by spinning starve each other
    # on a machine that does anything else (measured: 1.1 against 16 tokens a second)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch's C++ warns with a stack trace, each time, when the store of a lost rank does not answer
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from llm.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
