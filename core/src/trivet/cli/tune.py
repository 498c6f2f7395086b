"""``trivet tune``: constants of Triton kernels, measured on this device, as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from trivet.cli.kernel_sets import kernel_set
from trivet.cli.program import FOUND_PROBLEM
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.cli.values import device_option, split, value
from trivet.contracts import Execution
from trivet.devices import Device, device
from trivet.errors import DomainError

if TYPE_CHECKING:
    from rich.progress import Progress

    from trivet.kernels.triton import KernelSet
    from trivet.kernels.triton.tuning.session import Session

KEYS: Final = {
    "table": "the file that was written",
    "arch": "architecture that it is for",
    "measured": "device, driver, torch, triton",
    "complete": "false when --seconds ended it",
    "rows": "[{kernel, key, rows, config, us, cold_us, default_us, gb_s}]",
    "refused": "[{kernel, key, rows, config, word, reason}]: failed, or wrong results",
}
"""Keys of the document; times are microseconds: of one call in a captured graph, and cold."""

Wanted = list[tuple[str, dict[str, Any], tuple[int, ...]]]


def _key(text: str) -> dict[str, Any]:
    pairs = (split(part, "NAME=VALUE,...") for part in text.split(","))
    return {name: value(given) for name, given in pairs}


def _rows(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = (0,)
    if any(n < 1 for n in found):
        raise click.BadParameter(f"{text!r} is not of the form 1,16,256")
    return found


@click.command("tune", epilog=key_page(KEYS))
@click.option(
    "--plugin", default="", metavar="NAME", help="Whose kernels; by default the device's."
)
@device_option
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only this kernel; repeat.")
@click.option(
    "--keys", multiple=True, metavar="NAME=VALUE,...", help="One key of the kernel; repeat."
)
@click.option("--rows", default="", callback=_rows, metavar="N,N,...", help="Numbers of rows.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the table."
)
@click.option("--seconds", type=float, default=inf, help="Begin nothing new after this long.")
@click.option(
    "--processes", type=int, default=os.cpu_count() or 1, help="That try configs at once."
)
@click.option("--again", is_flag=True, help="Measure also what earlier runs measured.")
@click.option("--list", "only_list", is_flag=True, help="Say what would be measured, and end.")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it there.")
@json_option
def command(
    *, plugin: str, device_name: str, names: tuple[str, ...], keys: tuple[str, ...],
    rows: tuple[int, ...], out: Path | None, seconds: float, processes: int, again: bool,
    only_list: bool, picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measures every config of tuned kernels, in a captured graph and cold, and writes a table.

    Each config first runs in a process of its own and must compute what the default one does;
    exit status 1 says that one did not. Tables count where TRIVET_TUNED names their folder.
    """
    from trivet.kernels.triton.tuning.kept import Kept, cache_folder
    from trivet.kernels.triton.tuning.session import Session

    dev = None if only_list and plugin else device(device_name)
    kernels = kernel_set(plugin or (dev.plugin if dev else ""))
    wanted = _wanted(kernels, names, [_key(text) for text in keys], rows)
    if only_list or dev is None:
        _list(kernels, dev, wanted, as_json=as_json)
        return
    _refuse_what_is_no_hardware(dev)
    folder = cache_folder()
    with _Bars(quiet=as_json) as bars:
        session = Session(
            kernels,
            dev.torch,
            (out or folder / "tuned") / f"{kernels.arch_of(dev.torch)}.json",
            kept=None if again else Kept(folder / "measured"),
            processes=processes,
            seconds=seconds,
            say=bars.say,
        )
        session.run(wanted)
    document = _document(session)
    if picture:
        from trivet.cli.tune_picture import draw

        draw(picture, session)
    if as_json:
        emit(document)
    else:
        _show(session, document)
    if any(r["word"] == "wrong" for r in document["refused"]):
        click.get_current_context().exit(FOUND_PROBLEM)


def _wanted(
    kernels: KernelSet, names: Sequence[str], keys: Sequence[dict[str, Any]], rows: tuple[int, ...]
) -> Wanted:
    known = kernels.tuned()
    if unknown := set(names) - known.keys():
        msg = f"no kernel {', '.join(sorted(unknown))} can be tuned"
        raise DomainError(msg, fix=f"known: {', '.join(known) or 'none'}")
    if keys and len(names) != 1:
        raise click.UsageError("--keys are those of one kernel: name it by --kernel")
    return [
        (name, dict(key), rows or one.trials.rows)
        for name, one in known.items()
        if not names or name in names
        for key in keys or one.trials.keys
    ]


def _refuse_what_is_no_hardware(dev: Device) -> None:
    if dev.info.execution != Execution.HARDWARE:
        msg = f"device {dev.info.kind} is {dev.info.execution}: its times mean nothing"
        raise DomainError(msg, fix="tune where the hardware is; --list says what there is")


class _Bars:
    """Progress on the terminal's error stream; nothing where it is none."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._bars: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if not self._quiet:
            from rich.console import Console
            from rich.progress import Progress

            self._bars = Progress(console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def say(self, what: str, done: int, of: int) -> None:
        if self._bars:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what)
            self._bars.update(self._tasks[what], completed=done, total=of)


def _document(session: Session) -> dict[str, Any]:
    rows, refused = [], []
    for place in session.places:
        who = {"kernel": place.kernel, "key": dict(place.key), "rows": place.rows}
        refused += [
            who | {"config": dict(t.config), "word": t.word, "reason": t.reason}
            for t in place.tried
            if t.word != "ok"
        ]
        if place.best:
            gb_s = {"gb_s": place.bytes_moved / place.best.us / 1e3}
            rows.append(place.row(session.usual(place)) | gb_s)
    return {
        "table": str(session.table), "arch": session.arch, "measured": session.measured,
        "complete": session.complete, "rows": rows, "refused": refused,
    }  # fmt: skip


def _show(session: Session, document: dict[str, Any]) -> None:
    screen = Screen()
    measured = ", ".join(f"{name} {said}" for name, said in session.measured.items())
    screen.heading(f"Tuned for {session.arch}")
    screen.line(measured, 2)
    screen.table(
        ("kernel", "key", "rows", "us", "cold", "default", "GB/s", "config"),
        [
            (r["kernel"], _pairs(r["key"]), str(r["rows"]), f"{r['us']:.2f}", f"{r['cold_us']:.2f}",
             f"{r['default_us']:.2f}" if "default_us" in r else "", f"{r['gb_s']:.0f}",
             _pairs(r["config"]))
            for r in document["rows"]
        ],
        flexible=[1, 7],
    )  # fmt: skip
    if document["refused"]:
        screen.heading("Refused")
        told = [(f"{r['kernel']} {r['rows']}", f"{r['word']}: {_pairs(r['config'])}: {r['reason']}")
                for r in document["refused"]]  # fmt: skip
        screen.table(("at", "why"), told)
    if not session.complete:
        screen.line("stopped by --seconds; the same command goes on from here", 2)
    if document["rows"]:
        screen.line(f"wrote {session.table}; used where TRIVET_TUNED={session.table.parent}", 2)


def _list(kernels: KernelSet, dev: Device | None, wanted: Wanted, *, as_json: bool) -> None:
    import torch

    from trivet.kernels.triton.tuning.trials import choices

    arch = kernels.arch_of(dev.torch if dev else torch.device("cpu"))
    tuned = {name: one.tuned for name, one in kernels.tuned().items()}
    rows: list[dict[str, Any]] = [
        {"kernel": name, "key": key, "rows": list(counts),
         "configs": sum(len(choices(tuned[name], arch, key, n)) for n in counts)}
        for name, key, counts in wanted
    ]  # fmt: skip
    if as_json:
        emit({"kernels": list(tuned), "wanted": rows})
        return
    screen = Screen()
    screen.heading("What trivet tune measures")
    screen.table(
        ("kernel", "key", "rows", "configs"),
        [(r["kernel"], _pairs(r["key"]), " ".join(map(str, r["rows"])), str(r["configs"]))
         for r in rows],
        flexible=[1, 2],
    )  # fmt: skip
    for name in tuned.keys() - {r["kernel"] for r in rows}:
        screen.line(f"{name} has no typical keys: give --kernel {name} --keys NAME=VALUE,...", 2)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={said}" for name, said in values.items())
