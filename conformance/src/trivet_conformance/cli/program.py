"""The command ``trivet-conformance``."""

from __future__ import annotations

import click

from trivet_conformance.cli.listing import list_
from trivet_conformance.cli.reports import COMMANDS
from trivet_conformance.cli.run import preflight, run
from trivet_conformance.cli.selftest import selftest
from trivet_conformance.cli.write_mustpass import mustpass


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trivet-conformance")
def main() -> None:
    """Tells what is right, wrong, refused or unverified in a trivet plugin."""


for _command in (run, preflight, list_, selftest, mustpass, *COMMANDS):
    main.add_command(_command)

if __name__ == "__main__":
    main()
