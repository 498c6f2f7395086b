"""``trivet ops``: the operators, and the whole declaration of one."""

from __future__ import annotations

from typing import Any, Final

import click

from trivet.cli.declaration import describe, effective_order, forms
from trivet.cli.device_name import where
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.cli.values import device_option
from trivet.contracts.declaration import Operator
from trivet.devices import Device, device

KEYS: Final = {
    "device": "device whose providers are meant, as NAME:INDEX",
    "operators": "[{operator, version, forms, dims, providers}], or one",
}
"""Keys of the document; with an operator named, its entry is the whole declaration."""


@click.command("ops", epilog=key_page(KEYS))
@click.argument("operator", required=False)
@device_option
@json_option
def command(operator: str | None, *, device_name: str, as_json: bool) -> None:
    """Lists the operators; with OPERATOR, shows its whole declaration.

    Forms: `f` returns new tensors, `f_` overwrites arguments, `f_out` writes to `out`.
    """
    dev = device(device_name)
    if operator is None:
        rows = [_row(dev, op) for op in dev.operators.values()]
    else:
        op, _ = dev.binder.target(operator)
        rows = [describe(dev, op)]
    if as_json:
        emit({"device": where(dev), "operators": rows})
    elif operator is None:
        _list(dev, rows)
    else:
        _one(dev, rows[0])


def _row(dev: Device, op: Operator) -> dict[str, Any]:
    return {
        "operator": op.name,
        "version": op.version,
        "forms": forms(op),
        "dims": list(op.where),
        "providers": effective_order(dev, op.name),
    }


def _list(dev: Device, rows: list[dict[str, Any]]) -> None:
    screen = Screen()
    screen.heading(f"Operators on {where(dev)}")
    screen.table(
        ("operator", "forms", "dims", "providers in order"),
        [
            (f"{r['operator']}@{r['version']}", _short(r), " ".join(r["dims"]),
             "\n".join(r["providers"]))
            for r in rows
        ],
        flexible=[2],
    )  # fmt: skip
    screen.line("f returns new tensors, f_ overwrites arguments, f_out writes to out;", 2)
    screen.line("more: trivet ops OPERATOR", 2)


def _short(row: dict[str, Any]) -> str:
    if len(row["forms"]) == 1:
        return "f"
    return " ".join("f" + form.removeprefix(row["operator"]) for form in row["forms"])


def _one(dev: Device, found: dict[str, Any]) -> None:
    screen = Screen()
    screen.heading(f"{found['operator']}@{found['version']}")
    for paragraph in found["doc"].split("\n\n"):
        screen.line(" ".join(paragraph.split()), 2)
    screen.heading("Signature" if len(found["signatures"]) == 1 else "Signatures")
    for text in found["signatures"]:
        screen.line(text, 2)
    _arguments(screen, found)
    screen.heading("Effects and promises")
    effects = [f"{arg} becomes result {i}" for arg, i in found["inplace"].items()]
    screen.pairs([
        ("forms", ", ".join(found["forms"])),
        ("writes", ", ".join(found["writes"])),
        ("in place", ", ".join(effects)),
        ("reference", ", ".join(found["properties"]) + (
            "" if found["traceable"] else "; reads data, so it is not traceable")),
        ("bytes moved", " + ".join(f"{m['dims']} of {m['like']}" for m in found["moved"])),
        ("budget", found["budget"]["text"]),
        ("prepared", "takes a prepared weight" if found["prepared"] else ""),
        ("schema", found["schema"]),
        ("source", found["source"]),
    ])  # fmt: skip
    _providers(screen, dev, found)


def _arguments(screen: Screen, found: dict[str, Any]) -> None:
    screen.heading("Arguments")
    rows = []
    for a in found["arguments"]:
        told = f"default {a['default']}" if a["default"] else ""
        told += f"; one of {', '.join(a['choices'])}" if a["choices"] else ""
        shape = f"[{a['shape']}]" if a["shape"] else ""
        rows.append((a["name"], a["kind"], a["dtype"], shape or told.removeprefix("; ")))
    rows += [
        (f"result {i}", "Tensor", f"as {r['like']}", f"[{r['shape']}]")
        for i, r in enumerate(found["results"])
    ]
    screen.table(("argument", "type", "dtype", "shape or default"), rows)


def _providers(screen: Screen, dev: Device, found: dict[str, Any]) -> None:
    screen.heading(f"Providers on {where(dev)}, in default order")
    rows = []
    for p in found["providers"]:
        domain = " and ".join(p["domain"]) or "accepts everything"
        said = [p["unmet"] and f"not for this device: {p['unmet']}", domain,
                p["properties"] and f"declares {', '.join(p['properties'])}"]  # fmt: skip
        rows.append((p["provider"], p["form"], "\n".join(s for s in said if s)))
    screen.table(("provider", "form", "domain"), rows)
