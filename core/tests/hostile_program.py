"""Runs a command with hostile arguments in this process, and says whether it ended well."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.testing import CliRunner, Result

CODES = (0, 1, 2)


def ended_well(
    program: click.Command, line: Sequence[str], name: str, *, streams: bool = False
) -> Result:
    """The result of a command that gave its answer, or one message on the error output.

    A command that finds a problem (1) may say so in its answer; one that cannot be done (2) says
    why on the error output, and nothing else unless it ``streams`` its answer.
    """
    result = CliRunner().invoke(program, list(line), prog_name=name)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        error.add_note(f"the line: {line!r:.2000}")
        raise error
    assert result.exit_code in CODES, (line, result.exit_code)
    assert "Traceback" not in result.output, (line, result.output)
    if result.exit_code == 2:
        assert result.stderr.strip(), line
        assert streams or not result.stdout, (line, result.stdout)
    if result.exit_code == 1:
        assert result.output.strip(), line
    return result
