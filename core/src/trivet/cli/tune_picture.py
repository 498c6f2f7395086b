"""Draws what ``trivet tune`` measured: time by rows, every config, the default and the best."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivet.errors import ConfigError

if TYPE_CHECKING:
    from trivet.kernels.triton.tuning.session import Place, Session


def draw(path: Path, session: Session) -> None:
    """Draws one panel a key.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib").use("Agg")
        plots = import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise ConfigError("a picture needs matplotlib", fix="pip install matplotlib") from error
    panels: dict[str, list[Place]] = {}
    for place in session.places:
        if place.timed:
            name = ", ".join(f"{k}={v}" for k, v in place.key.items())
            panels.setdefault(f"{place.kernel}: {name}", []).append(place)
    tall = max(len(panels), 1)
    figure, axes = plots.subplots(tall, 1, figsize=(9, 3.4 * tall), squeeze=False)
    for (title, places), (panel,) in zip(panels.items(), axes, strict=False):
        _panel(panel, title, places, session)
    figure.suptitle(f"{session.measured.get('device', session.arch)}, one call in a captured graph")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plots.close(figure)


def _panel(panel: Any, title: str, places: list[Place], session: Session) -> None:
    every = [(p.rows, t.us) for p in places for t in p.timed]
    panel.scatter(*zip(*every, strict=True), s=14, color="#b8c4c8", label="every config")
    usual = [(p.rows, t.us) for p in places for t in p.timed if t.config == session.usual(p)]
    if usual:
        panel.plot(*zip(*usual, strict=True), color="#b0562f", marker="o", ms=4, label="default")
    best = [(p.rows, p.best.us) for p in places if p.best]
    panel.plot(*zip(*best, strict=True), color="#37687a", marker="o", ms=4, label="best")
    panel.set(title=title, xlabel="rows", ylabel="us", xscale="log", yscale="log")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
