"""The command ``trivet new-plugin``."""

from __future__ import annotations

from pathlib import Path

import click

from trivet_conformance.scaffold import names
from trivet_conformance.scaffold.writing import DEVICES, Package, write


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the new package.  [default: trivet-NAME]",
)
@click.option(
    "--device",
    type=click.Choice(list(DEVICES)),
    default="privateuse1",
    show_default=True,
    help="What it is for, see above.",
)
@click.option("--force", is_flag=True, help="Into a folder that has files; none is overwritten.")
def new_plugin(name: str, folder: Path | None, device: str, force: bool) -> None:
    """Writes a vendor package that installs and passes what it claims.

    NAME is the name of the plugin and, with a device of its own, of that device.

    \b
    privateuse1  a torch device of its own in C++: x.device.type is NAME
    host         a device of its own whose tensors lie on torch's CPU: Python alone
    cpu          kernels for the CPU device that another package brings
    """  # noqa: D301  # click's mark of lines that stay as they are
    package = Package(name, device)
    if why := names.problem(name, own_device=package.own_device):
        msg = f"{name!r} cannot be the name of a plugin: {why}"
        raise click.UsageError(msg)
    folder = folder or Path(package.dist)
    if not force:
        if dist := names.installed(name):
            msg = f"{dist} already brings a plugin {name!r}; take another name, or --force"
            raise click.UsageError(msg)
        if folder.exists() and any(folder.iterdir()):
            msg = f"{folder} has files; choose another --dir, or --force to add what is missing"
            raise click.UsageError(msg)
    try:
        kept = write(package.render(), folder)
    except OSError as error:
        msg = f"{folder} cannot be written: {error}"
        raise click.ClickException(msg) from error
    for path in kept:
        click.echo(f"kept {folder / path}, which was there")
    click.echo(f"wrote {folder}: {'operators' if device == 'cpu' else 'a device'} {name!r}. Next:")
    click.echo(f"  pip install --no-build-isolation --no-deps -e {folder}")
    click.echo("  trivet doctor")
    click.echo(f"  trivet-conformance run --plugin {name} --quick")
