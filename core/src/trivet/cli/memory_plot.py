"""What programs held over time, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trivet.cli.screen import printable
from trivet.errors import ConfigError

MIB: Final = 1 << 20


def levels(one: dict[str, Any], until: float) -> tuple[list[float], dict[str, list[int]]]:
    """Bytes by tag after each recorded change: seconds before ``until``, and a row for each tag.

    The record is a ring, so that it is read backwards from what is held now.

    Args:
        one: a device as it was published.
        until: when it was.
    """
    now: dict[str, int] = {}
    for held in one["held"]:
        now[held["tag"]] = now.get(held["tag"], 0) + held["nbytes"]
    tags = sorted({tag for _, tag, _ in one["timeline"]} | set(now))
    times, steps = [0.0], [dict(now)]
    for when, tag, delta in reversed(one["timeline"]):
        times.append(when - until)
        steps.append(dict(now))
        now[tag] = now.get(tag, 0) - delta
    return times[::-1], {tag: [step.get(tag, 0) for step in reversed(steps)] for tag in tags}


def draw(programs: Sequence[dict[str, Any]], target: Path) -> None:
    """One panel for each program and device, bytes stacked by tag.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib", fix="pip install matplotlib") from error
    panels = [(p, one) for p in programs for one in p["devices"] if one["timeline"]]
    figure = Figure(figsize=(8, 3 * len(panels)), layout="constrained")
    for axes, (program, one) in zip(
        figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
    ):
        times, by_tag = levels(one, program["time"])
        rows = [[n / MIB for n in row] for row in by_tag.values()]
        axes.stackplot(times, rows, labels=list(map(_word, by_tag)), step="post")
        title = f"{_word(program['program'][:60])} ({program['pid']}), {_word(one['device'])}"
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("seconds")
        axes.set_ylabel("MiB")
        axes.legend(loc="upper left", fontsize=8)
    try:
        figure.savefig(target)
    except (OSError, ValueError) as error:  # an ending that names no format is a ValueError
        msg = f"the figure cannot be written to {target}: {error}"
        raise ConfigError(msg, fix="name a .png, .svg or .pdf in a folder of yours") from error


def _word(text: str) -> str:
    """Text of somebody else as a figure shows it: a dollar would begin a formula."""
    return printable(text).replace("$", r"\$") or "no tag"
