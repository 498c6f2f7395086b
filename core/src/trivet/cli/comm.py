"""``trivet comm``: who makes the operations of groups, and what the ranks of a job are doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import torch

from trivet.cli.screen import Screen, emit, json_option, key_page, size_text
from trivet.devices import device
from trivet.errors import ConfigError
from trivet.settings import read as read_settings

_DUMP_KEYS: Final = {
    "folder": "where the ranks write",
    "groups": "[{group, size, ranks, missing, verdict}]",
    "remarks": "[text], files that could not be read",
}
_TABLE_KEYS: Final = {
    "device": "the device",
    "size": "members of the group",
    "hosts": "machines that they are on",
    "rows": "[{operation, dtype, reduction, from_bytes, to_bytes, providers, determinism}]",
}


@click.group("comm")
def command() -> None:
    """Says who makes the operations of groups, and what the ranks of a job are doing."""


def _imagined(function: Any) -> Any:
    """Options that say which group is meant."""
    for option in (
        click.option("--device", "name", default="auto", help="Device, as for trivet doctor."),
        click.option("--size", default=2, type=click.IntRange(1), help="Members of the group."),
        click.option("--hosts", default=1, type=click.IntRange(1), help="Machines they are on."),
        click.option("--backend", default="", help="Backend of torch underneath."),
        click.option("--determinism", multiple=True, help="Level that reductions must reach."),
    ):
        function = option(function)
    return function


@command.command("table", epilog=key_page(_TABLE_KEYS))
@_imagined
@click.option("--dtype", "dtypes", multiple=True, default=("float32", "bfloat16"))
@click.option("--op", default="sum", help="Reduction.")
@json_option
def table(
    *,
    name: str,
    size: int,
    hosts: int,
    backend: str,
    determinism: tuple[str, ...],
    dtypes: tuple[str, ...],
    op: str,
    as_json: bool,
) -> None:
    """Shows who would make what at which sizes in a group; no other process is needed."""
    from trivet.collectives.explaining import rows

    dev = device(name)
    imagined = dev.collectives.imagine(size, hosts=hosts, backend=backend, determinism=determinism)
    found = list(rows(imagined, {d: _dtype(d) for d in dtypes}, op))
    if as_json:
        emit({"device": str(dev.torch), "size": size, "hosts": hosts, "rows": found})
        return
    screen = Screen()
    screen.heading(f"{size} ranks on {hosts} machine(s), {dev.torch}, {op}")
    screen.table(
        ("operation", "dtype", "up to", "made by", "determinism"),
        [
            (r["operation"], r["dtype"], size_text(r["to_bytes"]) or "any size",
             " or ".join(r["providers"]) or "nobody", ", ".join(r["determinism"]))
            for r in found
        ],
    )  # fmt: skip


@command.command("explain")
@_imagined
@click.argument("operation", default="")
@click.option("--dtype", default="float32")
@click.option("--op", default="sum", help="Reduction.")
@click.option("--bytes", "nbytes", default=0, type=click.IntRange(0), help="Size of the call.")
def explain(
    *,
    name: str,
    size: int,
    hosts: int,
    backend: str,
    determinism: tuple[str, ...],
    operation: str,
    dtype: str,
    op: str,
    nbytes: int,
) -> None:
    """Says of every candidate for one call whether it makes it, and why not."""
    from trivet.collectives.explaining import bands, call
    from trivet.contracts.collectives import OPERATIONS

    imagined = device(name).collectives.imagine(
        size, hosts=hosts, backend=backend, determinism=determinism
    )
    if not operation:
        click.echo("\n".join(bands(imagined)))
        return
    if operation not in OPERATIONS:
        raise ConfigError(f"no operation {operation!r}", fix=f"one of {', '.join(OPERATIONS)}")
    click.echo(call(imagined, operation, _dtype(dtype), op, nbytes))


@command.command("dump", epilog=key_page(_DUMP_KEYS))
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@json_option
def dump(*, folder: Path | None, as_json: bool) -> None:
    """Merges what the ranks of a job wrote: who waits for whom, who differs, who has ended.

    The job runs with TRIVET_COMM_DUMP=FOLDER, one folder that all ranks reach. Each rank writes
    there once a second while it makes calls, and when a call fails.
    """
    from trivet.collectives.dump import merge, read, shown

    folder = folder or read_settings().comm_dump
    if folder is None:
        raise ConfigError("no folder is named", fix="trivet comm dump FOLDER, or TRIVET_COMM_DUMP")
    groups, remarks = read(folder)
    merged = [merge(records) for records in groups.values()]
    if as_json:
        for one in merged:
            for rank in one["ranks"]:
                del rank["by_seq"]
        emit({"folder": str(folder), "groups": merged, "remarks": remarks})
        return
    screen = Screen()
    for one in merged:
        screen.heading(f"group {one['group']}, {one['size']} ranks")
        rows = []
        for r in one["ranks"]:
            state = {True: "runs", False: "ended", None: "elsewhere"}[r["alive"]]
            doing = "in " if r["waits_in"] else "after "
            call = r["waits_in"] or r["last"]
            rows.append((str(r["rank"]), str(r["pid"]), state,
                         doing + shown(call) if call else "no call"))  # fmt: skip
        screen.table(("rank", "process", "state", "where"), rows)
        for sentence in one["verdict"]:
            screen.line(sentence, 2)
    if not merged:
        screen.line(f"no rank has written to {folder}")
    for remark in remarks:
        screen.line(f"note: {remark}", 2)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"torch has no dtype {name!r}", fix="float32, bfloat16, int64, ...")
    return found
