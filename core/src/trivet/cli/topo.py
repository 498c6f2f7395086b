"""``trivet topo``: how the devices are connected, and which rank should run where."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from trivet import topology
from trivet.cli.screen import Screen, emit, json_option, key_page, printable, size_text
from trivet.cli.values import finite
from trivet.topology import Access, Placement, Plan, Verdict

KEYS: Final = {
    "trivet_topology": "version of the document",
    "source": "this machine, or the file of TRIVET_TOPOLOGY",
    "nodes": "[{name, kind, near, cores, memory_bytes}]",
    "links": "[{a, b, kind, bytes_per_second, measured, hops}]; unknown is null",
    "access": "[{reader, owner, claimed, probed, reason}]; not probed is null",
    "remarks": "[text], what could not be found out",
}
ADVICE: Final = {
    "plan": "{tp, pp, dp, ep}",
    "devices": "[name], by rank",
    "groups": "{kind: [[rank]]}",
    "reasons": "[text]",
    "warnings": "[text]",
}
_file = click.Path(path_type=Path, dir_okay=False)


@click.group("topo", invoke_without_command=True, epilog=key_page(KEYS))
@click.option("--probe", is_flag=True, help="Copy bytes between devices, compare and time them.")
@click.option("--dump", type=_file, metavar="FILE", help="Keep it, for TRIVET_TOPOLOGY=FILE.")
@click.option("--picture", type=_file, metavar="FILE", help="Draw it (needs matplotlib).")
@json_option
@click.pass_context
def command(
    ctx: click.Context, *, probe: bool, dump: Path | None, picture: Path | None, as_json: bool
) -> None:
    """Says how the devices of this machine are connected.

    No device is started, but by --probe. A probe takes away what a driver claims and does not do;
    it adds nothing.
    """
    if ctx.invoked_subcommand is not None:
        return
    verdict = topology.machine(probes=probe)
    if dump is not None:
        topology.dump(verdict, dump)
    if picture is not None:
        from trivet.cli.topo_picture import draw

        draw(verdict, picture)
    if as_json:
        emit(verdict.to_json())
    else:
        _show(verdict)


@command.command("advise", epilog=key_page(ADVICE))
@click.option("--tp", default=1, type=click.IntRange(1), help="Ranks that share every layer.")
@click.option("--pp", default=1, type=click.IntRange(1), help="Stages of layers.")
@click.option("--dp", default=1, type=click.IntRange(1), help="Copies of all that.")
@click.option("--ep", default=1, type=click.IntRange(1), help="Ranks that share the experts.")
@click.option(
    "--kind", default="", help="Kind of device, or numa; by default that of most devices."
)
@json_option
def advise(*, tp: int, pp: int, dp: int, ep: int, kind: str, as_json: bool) -> None:
    """Says which rank should run on which device, and why."""
    placement = topology.advise(topology.machine(), Plan(tp, pp, dp, ep), kind)
    if as_json:
        emit(placement.to_json())
    else:
        _advice(placement)


@command.command("join", epilog=key_page(KEYS))
@click.argument("files", nargs=-1, required=True, type=_file)
@click.option("--dump", type=_file, metavar="FILE", help="Keep it, for TRIVET_TOPOLOGY=FILE.")
@click.option("--kind", default="network", help="What connects the hosts.")
@click.option("--rate", type=click.FloatRange(min=0, max=1e6, min_open=True), callback=finite,
              metavar="GB/s", help="Of one direction between two hosts.")  # fmt: skip
@json_option
def join(
    *, files: tuple[Path, ...], dump: Path | None, kind: str, rate: float | None, as_json: bool
) -> None:
    """Makes one topology of those of several machines."""
    each = [topology.load(file) for file in files]
    verdict = topology.join(each, kind, None if rate is None else rate * 1e9)
    if dump is not None:
        topology.dump(verdict, dump)
    if as_json:
        emit(verdict.to_json())
    else:
        _show(verdict)


def _show(verdict: Verdict) -> None:
    screen = Screen()
    screen.heading(f"Nodes ({printable(verdict.source)})")
    screen.table(
        ("node", "kind", "near", "cores", "memory"),
        [
            (printable(n.name), n.kind, printable(n.near), _spans(n.cores),
             "" if n.memory_bytes is None else size_text(n.memory_bytes))
            for n in verdict.nodes
        ],
    )  # fmt: skip
    if verdict.links:
        screen.heading("Links")
        screen.table(("from", "to", "each way", "hops", "made of"), _links(verdict),
                     flexible=(1, -1))  # fmt: skip
    if verdict.access:
        screen.heading("Direct access to another's memory")
        by_answer: dict[tuple[str, str], list[str]] = {}
        for one in verdict.access:
            by_answer.setdefault((one.reader, _access(one)), []).append(one.owner)
        rows = [
            (printable(reader), printable(", ".join(owners)), answer)
            for (reader, answer), owners in by_answer.items()
        ]
        screen.table(("reader", "owners", "is it so"), rows, flexible=(1, -1))
    for remark in verdict.remarks:
        screen.line(f"note: {printable(remark)}", 2)


def _links(verdict: Verdict) -> list[tuple[str, ...]]:
    """Rows of equal links of one node."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for way in verdict.links:
        key = (way.a, way.kind, way.bytes_per_second, way.measured, way.hops)
        alike.setdefault(key, []).append(way.b)
    shown = {(w.a, w.kind, w.bytes_per_second, w.measured, w.hops): w for w in verdict.links}
    return [
        (printable(w.a), printable(", ".join(alike[key])), _rate(w.bytes_per_second, w.measured),
         "" if w.hops is None else str(w.hops), printable(w.kind))
        for key, w in shown.items()
    ]  # fmt: skip


def _advice(placement: Placement) -> None:
    screen = Screen()
    screen.heading("Ranks")
    kinds = list(placement.groups)
    rows = []
    for rank, device in enumerate(placement.devices):
        where = [
            next(str(i) for i, group in enumerate(placement.groups[kind]) if rank in group)
            for kind in kinds
        ]
        rows.append((str(rank), printable(device), *where))
    screen.table(("rank", "device", *(f"{kind} group" for kind in kinds)), rows)
    screen.heading("Why")
    for sentence in placement.reasons:
        screen.line(printable(sentence), 2)
    for sentence in placement.warnings:
        screen.line(f"warning: {printable(sentence)}", 2)


def _rate(value: float | None, measured: bool) -> str:
    if value is None:
        return "unknown"
    return f"{value / 1e9:.3g} GB/s {'measured' if measured else 'stated'}"


def _access(one: Access) -> str:
    if not one.direct:
        return f"no: {printable(one.reason) or 'nobody claims it'}"
    return "yes, probed" if one.probed else "claimed, not probed"


def _spans(cores: tuple[int, ...]) -> str:
    """Processors as ranges."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in spans)
