"""A topology as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from trivet.cli.screen import printable
from trivet.contracts.topology import Link
from trivet.errors import ConfigError
from trivet.topology import Verdict

_COLOURS: Final = {"device": "tab:blue", "numa": "tab:gray", "host": "black"}


def draw(verdict: Verdict, target: Path) -> None:
    """Nodes in rings, devices outside; a wider line is a faster link, a dashed one is not direct.

    A colour is a kind of link; of the links of a pair the fastest is drawn.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--picture needs matplotlib", fix="pip install matplotlib") from error
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes: Any = figure.subplots()
    places = _places(verdict)
    ways = [way for way in verdict.links if verdict.link(way.a, way.b) is way]
    kinds = sorted({way.kind for way in ways})
    fastest = max((way.bytes_per_second or 0 for way in ways), default=0) or 1
    for node in verdict.nodes:
        if node.near in places:
            (x, y), (u, v) = places[node.name], places[node.near]
            axes.plot([x, u], [y, v], color="lightgray", linewidth=1, zorder=0)
    for way in ways:
        (x, y), (u, v) = places[way.a], places[way.b]
        share = (way.bytes_per_second or 0) / fastest
        indirect = verdict.vetoes(way.a, way.b) or verdict.vetoes(way.b, way.a)
        colour = f"C{kinds.index(way.kind) % 10}"
        axes.plot(
            [x, u], [y, v], color=colour, linewidth=0.6 + 4 * share, alpha=0.6,
            linestyle="--" if indirect else "-", zorder=1,
        )  # fmt: skip
    for node in verdict.nodes:
        x, y = places[node.name]
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": _COLOURS[node.kind]}
        axes.text(x, y, _word(node.name), ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    for number, kind in enumerate(kinds):
        axes.plot([], [], color=f"C{number % 10}", label=_legend(ways, kind))
    if kinds:
        axes.legend(loc="upper left", fontsize=7)
    axes.set_title(_word(verdict.source), fontsize=8)
    axes.set_aspect("equal")
    axes.margins(0.15)
    axes.axis("off")
    try:
        figure.savefig(target)
    except (OSError, ValueError) as error:  # an ending that names no format is a ValueError
        msg = f"the picture cannot be written to {target}: {error}"
        raise ConfigError(msg, fix="name a .png, .svg or .pdf in a folder of yours") from error


def _places(verdict: Verdict) -> dict[str, tuple[float, float]]:
    """Where each node stands: hosts in the middle, NUMA nodes around, devices outside."""
    found = {}
    for kind, radius in (("host", 0.5), ("numa", 1.2), ("device", 2.2)):
        ring = [node for node in verdict.nodes if node.kind == kind]
        if kind != "host":
            order = {node.name: i for i, node in enumerate(verdict.nodes)}
            ring.sort(key=lambda node: (verdict.host(node.name), order.get(node.near, -1)))
        alone = kind == "host" and len(ring) == 1
        for i, node in enumerate(ring):
            angle = 2 * math.pi * (i + 0.5) / len(ring)
            r = 0 if alone else radius
            found[node.name] = (r * math.cos(angle), r * math.sin(angle))
    return found


def _legend(every: Iterable[Link], kind: str) -> str:
    """A kind of link with the rates that it has here."""
    ways = [way for way in every if way.kind == kind]
    rates = [way.bytes_per_second / 1e9 for way in ways if way.bytes_per_second is not None]
    if not rates:
        return _word(kind)
    span = f"{min(rates):.3g}" + (f" to {max(rates):.3g}" if max(rates) > min(rates) else "")
    how = "measured" if all(way.measured for way in ways) else "stated"
    return f"{_word(kind)}: {span} GB/s {how}"


def _word(text: str) -> str:
    """Text of somebody else as a figure shows it: a dollar would begin a formula."""
    return printable(text).replace("$", r"\$")
