"""``mustpass``, for who develops the kit: makes the lists of a suite that is not released."""

from __future__ import annotations

import click


@click.command(hidden=True)
def mustpass() -> None:
    """Writes the must-pass lists of the current suite and their hashes."""
    from trivet_conformance.suite.generate import write

    try:
        click.echo(str(write()))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
