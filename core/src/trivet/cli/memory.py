"""``trivet memory``: who holds how much of which device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from trivet.cli.device_name import where
from trivet.cli.screen import Screen, emit, json_option, key_page, printable, size_text
from trivet.cli.values import finite
from trivet.devices import device
from trivet.errors import ConfigError, PluginError
from trivet.memory import snapshot
from trivet.plugins import discover
from trivet.settings import read

KEYS: Final = {
    "folder": "where programs publish; null when none is named",
    "programs": "[{pid, program, alive, age, devices}], as published",
    "devices": "[{device, total_bytes, free_bytes, ..., source}]",
    "remarks": "[text], files and devices that could not be read",
}
"""Keys of the document; a number that nobody knows is null."""

_TOTALS: Final = (
    ("total_bytes", "total"), ("free_bytes", "free"), ("limit_bytes", "limit of this process"),
    ("recommended_bytes", "recommended"), ("max_buffer_bytes", "largest buffer"),
)  # fmt: skip


@click.command("memory", epilog=key_page(KEYS))
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False),
              help="Where programs publish, instead of TRIVET_MEMORY_SNAPSHOT.")  # fmt: skip
@click.option("--watch", type=click.FloatRange(min=0.1), callback=finite, metavar="SECONDS",
              help="Again every so many seconds, until interrupted.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Draw what was held over time, by tag (needs matplotlib).")  # fmt: skip
@json_option
def command(*, folder: Path | None, watch: float | None, plot: Path | None, as_json: bool) -> None:
    """Says who holds how much of which device, by tag and tier.

    A program is seen when it runs with TRIVET_MEMORY_SNAPSHOT=FOLDER, the same as here. Without
    any, the totals of the devices are shown.
    """
    folder = folder or read().memory_snapshot
    if plot is not None:
        _plot(folder, plot)
        return
    try:
        for document in _documents(folder, watch):
            if as_json:
                emit(document)
            else:
                _show(document)
    except KeyboardInterrupt:
        if watch is None:
            raise


def _documents(folder: Path | None, watch: float | None) -> Iterator[dict[str, Any]]:
    totals, unread = _totals()
    while True:
        programs, remarks = ([], []) if folder is None else snapshot.read(folder)
        for program in programs:
            for one in program["devices"]:
                del one["timeline"]
        yield {
            "folder": None if folder is None else str(folder),
            "programs": programs,
            "devices": totals,
            "remarks": [*unread, *remarks],
        }
        if watch is None:
            return
        time.sleep(watch)
        totals, unread = _totals()


def _totals() -> tuple[list[dict[str, Any]], list[str]]:
    """What each device of each plugin has, and what could not be asked."""
    found, remarks = [], []
    discovery = discover()
    names = [f"{name}:{i}" for name in discovery.names
             for i in range(len(discovery.devices(name)))]  # fmt: skip
    for name in names or ["auto"]:
        try:
            one = device(name)
            found.append({"device": where(one), **one.memory.info().to_json()})
        except PluginError as error:
            remarks.append(f"{name}: {error.what}")
        except Exception as error:  # noqa: BLE001 - a plugin's own memory answers; named here
            remarks.append(f"{name}: memory info raises {type(error).__name__}: {error}")
    return found, remarks


def _show(document: dict[str, Any]) -> None:
    screen = Screen()
    for program in document["programs"]:
        name = printable(program["program"]) or "a program"
        screen.heading(f"{name}, process {program['pid']}")
        said = f"said {program['age']:.0f} s ago"
        if program["alive"] is None:
            said += ", on another machine or in another container: it may have ended"
        screen.line(said, 2)
        for one in program["devices"]:
            _device(screen, one)
    screen.heading("Devices")
    screen.table(
        ("device", "memory", "source"),
        [
            (d["device"], "\n".join(f"{what} {size_text(d[key])}" for key, what in _TOTALS
                                    if d[key] is not None) or "unknown", printable(d["source"]))
            for d in document["devices"]
        ],
    )  # fmt: skip
    if not document["programs"]:
        name = document["folder"] or "FOLDER"
        screen.line(f"no program publishes: start one with TRIVET_MEMORY_SNAPSHOT={name}", 2)
    for remark in document["remarks"]:
        screen.line(f"note: {printable(remark)}", 2)


def _device(screen: Screen, one: dict[str, Any]) -> None:
    rows = [
        (printable(h["tag"]) or "no tag", printable(h["tier"]) or "own", size_text(h["nbytes"]))
        for h in one["held"]
    ]
    rows.append(("all that is accounted", "", size_text(one["accounted_bytes"])))
    rows.append(("its peak", "", size_text(one["peak_bytes"])))
    rows.append(("outside of the account", "", size_text(one["outside_bytes"]) or "unknown"))
    if one["unseen_bytes"] is not None:
        rows.append(("others and contexts", "", size_text(one["unseen_bytes"])))
    rows += [
        (f"{which} limit", "", size_text(one[f"{which}_bytes"]))
        for which in ("soft", "hard")
        if one[f"{which}_bytes"] is not None
    ]
    screen.table((printable(one["device"]), "tier", "bytes"), rows)


def _plot(folder: Path | None, target: Path) -> None:
    programs, remarks = ([], []) if folder is None else snapshot.read(folder)
    for remark in remarks:
        click.echo(f"trivet: {printable(remark)}", err=True)
    if not any(one["timeline"] for program in programs for one in program["devices"]):
        msg = f"no program publishes its memory in {folder or 'any folder'}"
        raise ConfigError(msg, fix="start it with TRIVET_MEMORY_SNAPSHOT=FOLDER")
    from trivet.cli.memory_plot import draw

    draw(programs, target)
    click.echo(target)
