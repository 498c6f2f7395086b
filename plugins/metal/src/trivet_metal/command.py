"""``trivet-metal``: what there is on this machine, and its verification on a Mac."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from trivet_metal.backend import emulated
from trivet_metal.discovery import this_machine
from trivet_metal.status import STATUS


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The Metal package of trivet."""


@main.command()
def status() -> None:
    """Says which device there is, or why none, and what the kernels were run on so far."""
    found = this_machine()
    emulator = emulated.available()
    click.echo(f"kernels   {STATUS}")
    click.echo(f"GPU       {found.device.name if found.device else f'none: {found.reason}'}")
    click.echo(f"emulator  {'here' if emulator is True else emulator}")


@main.command("verify-on-hardware")
@click.option("--quick", is_flag=True, help="Small grids and sizes: whether it works at all.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False),
              default=Path("trivet-metal-verification.json"), show_default=True,
              help="Where everything that was found goes.")  # fmt: skip
def verify_on_hardware(*, quick: bool, path: Path) -> None:
    """Runs the conformance kit at level L2 and benchmarks on this Mac's GPU, into one JSON.

    The exit status is 0 only if there is a GPU and the kit passed on it.
    """
    found = this_machine()
    if found.device is None:
        click.echo(f"nothing can be verified here: {found.reason}", err=True)
        click.echo(f"the kernels stay: {STATUS}", err=True)
        sys.exit(1)
    from trivet_metal.verification import document

    made = document(quick=quick)
    path.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    counts = ", ".join(f"{n} {word}" for word, n in sorted(made["kit"]["counts"].items()))
    click.echo(f"{found.device.name}: {counts or made['kit']['said'] or 'the kit said nothing'}")
    click.echo(f"everything is in {path}: attach it to an issue, so that the status can change")
    sys.exit(0 if made["kit"]["exit_status"] == 0 else 1)
