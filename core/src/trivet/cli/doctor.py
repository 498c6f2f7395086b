"""``trivet doctor``: what is installed, what works, and what to mend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from trivet.cli.findings import KEYS, examine
from trivet.cli.screen import Screen, emit, json_option, key_page, size_text
from trivet.cli.values import finite, shown
from trivet.plugins.isolate import SECONDS
from trivet.plugins.verification import REFERENCE


@click.command("doctor", epilog=key_page(KEYS))
@click.option("--isolate", is_flag=True, help="Ask each plugin in a process of its own first.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=SECONDS, show_default=True,
              callback=finite, help="Time limit of each such process.")  # fmt: skip
@json_option
@click.pass_context
def command(ctx: click.Context, *, isolate: bool, seconds: float, as_json: bool) -> None:
    """Says what is installed, what works, and what to mend.

    Imports every plugin. With --isolate each is asked in a process of its own first, and one
    that crashes, hangs or ends its process there is left out here. Exit code 1 when something
    is broken.
    """
    document = examine(isolate=isolate, seconds=seconds)
    if as_json:
        emit(document)
    else:
        screen = Screen()
        for show in _SECTIONS:
            show(screen, document)
    ctx.exit(0 if document["ok"] else 1)


def _versions(screen: Screen, found: dict[str, Any]) -> None:
    v = found["versions"]
    screen.line(
        f"trivet {v['trivet']}, contract {v['contract']}, python {v['python']}, "
        f"torch {v['torch']}, {v['platform']}"
    )


def _plugins(screen: Screen, found: dict[str, Any]) -> None:
    screen.heading("Plugins")
    rows = []
    for line in found["plugins"]:
        said = [line["reason"]]
        said += [f"adds to {line['extends']}"] if line["extends"] else []
        said += [f"printed: {line['printed']!r}"] if line["printed"] else []
        said += [f"fix: {line['fix']}"] if line["fix"] else []
        home = f"{line['dist']} {line['version']}"
        rows.append((line["plugin"], line["status"], home, "\n".join(said)))
    screen.table(("plugin", "status", "distribution", "what is known"), rows)
    if not rows and found["settings"]:
        screen.line("no vendor package is installed; core runs its references", 2)


def _device(screen: Screen, found: dict[str, Any]) -> None:
    auto, info = found["auto"], found["device"]
    screen.heading("Device of `auto`")
    if info is None:
        screen.line(f"none: {auto['error'] or 'not asked'}", 2)
        return
    caches = ", ".join(f"{name} {size_text(n)}" for name, n in info["cache_bytes"].items())
    rows = [
        ("device", f"{auto['device']} of plugin {auto['plugin']}"),
        ("why", auto["reason"]),
        ("name", info["name"]),
        ("architecture", " ".join(info["arch"])),
        ("features", " ".join(info["features"])),
        ("dtypes", " ".join(info["dtypes"])),
        ("cores", _number(info["cores"])),
        ("subgroup width", _number(info["subgroup_width"])),
        ("shared memory", size_text(info["shared_bytes"])),
        ("caches", caches),
        ("memory", size_text(info["memory_bytes"])),
        ("execution", info["execution"]),
        *(("note", note) for note in info["notes"] if note != auto["reason"]),
    ]
    screen.pairs(rows)


def _memory(screen: Screen, found: dict[str, Any]) -> None:
    if memory := found["memory"]:
        screen.heading("Memory")
        words = {k.removesuffix("_bytes"): v for k, v in memory.items() if k.endswith("_bytes")}
        rows = [
            (name.replace("_", " "), size_text(n)) for name, n in words.items() if n is not None
        ]
        screen.pairs([*rows, ("source", memory["source"])])


def _defaults(screen: Screen, found: dict[str, Any]) -> None:
    if found["defaults"]:
        screen.heading("Defaults for engines")
        rows = [(d["name"], shown(d["value"]), d["plugin"], d["reason"]) for d in found["defaults"]]
        screen.table(("name", "value", "plugin", "reason"), rows)


def _operators(screen: Screen, found: dict[str, Any]) -> None:
    if found["operators"]:
        screen.heading("Operators on this device (in the order of use, then the reference)")
        rows = [
            (f"{row['operator']}@{row['version']}",
             str(sum(p != REFERENCE for p in row["providers"])),
             ", ".join(row["providers"]) or "reference only")
            for row in found["operators"]
        ]  # fmt: skip
        screen.table(("operator", "providers", "in order"), rows)
    if found["refused"]:
        screen.heading("Refused implementations")
        screen.table(
            ("provider", "claim", "why"),
            [
                (r["provider"], r["target"], _with_fix(r["reason"], r["fix"]))
                for r in found["refused"]
            ],
        )
    if found["unmet"]:
        screen.heading("Implementations that this machine cannot run")
        screen.table(
            ("provider", "operator", "why"),
            [(u["provider"], u["operator"], u["reason"]) for u in found["unmet"]],
        )


def _collectives(screen: Screen, found: dict[str, Any]) -> None:
    if found["collectives"]:
        screen.heading("Collectives of two ranks on this machine (trivet comm table has more)")
        rows = [(row["provider"], ", ".join(row["operations"])) for row in found["collectives"]]
        screen.table(("provider", "makes"), rows)


def _settings(screen: Screen, found: dict[str, Any]) -> None:
    if not found["settings"]:
        return
    screen.heading("Settings")
    changed = [s for s in found["settings"] if s["source"] != "default"]
    rows = [
        (s["name"], "; ".join(_setting(s["value"])), "found beside" if s["source"] == "found"
         else s["source"])
        for s in changed
    ]  # fmt: skip
    screen.table(("name", "value", "from"), rows, flexible=(1, 2))
    rest = [s["name"] for s in found["settings"] if s["source"] == "default"]
    screen.line(f"at their defaults: {', '.join(rest)}", 2)


def _commands(screen: Screen, found: dict[str, Any]) -> None:
    if found["commands"]:
        screen.heading("Commands of other packages")
        rows = [(c["name"], c["dist"], c["error"] or "works") for c in found["commands"]]
        screen.table(("command", "distribution", "state"), rows)


def _problems(screen: Screen, found: dict[str, Any]) -> None:
    problems = found["problems"]
    if found["notes"]:
        screen.heading("Remarks")
    for note in found["notes"]:
        screen.line(f"note: {note}", 2)
    screen.heading(f"Problems: {len(problems) or 'none'}")
    rows = [(str(i), _with_fix(p["what"], p["fix"])) for i, p in enumerate(problems, 1)]
    screen.pairs(rows)


_SECTIONS: Final[tuple[Callable[[Screen, dict[str, Any]], None], ...]] = (
    _versions, _plugins, _device, _memory, _defaults, _operators, _collectives, _settings,
    _commands, _problems,
)  # fmt: skip


def _with_fix(what: str, fix: str) -> str:
    return f"{what}\nfix: {fix}" if fix else what


def _setting(value: object) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}={','.join(names)}" for name, names in value.items()]
    return [", ".join(map(str, value)) if isinstance(value, list) else shown(value)]


def _number(n: int | None) -> str:
    return "" if n is None else str(n)
