"""``trivet explain``: which implementation runs a call, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click
import torch

from trivet.cli import values
from trivet.cli.device_name import where
from trivet.cli.example import example
from trivet.cli.program import FOUND_PROBLEM
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.devices import Device, device
from trivet.errors import NoImplementation
from trivet.plugins.verification import REFERENCE
from trivet.selection.choose import Row
from trivet.selection.facts import normalise, plain
from trivet.settings import MODES, read

KEYS: Final = {
    "operator": "operator as asked for, with its form",
    "form": "functional, inplace or out",
    "device": "NAME:INDEX",
    "mode": "eager, compiled, captured or exported",
    "facts": "{path: value}, in normal form",
    "order": "why the first candidate is the first",
    "candidates": "[{provider, verdict, reason, note, fix}], in order",
    "example": "{argument: text} of the example; null without",
    "runs": "what may run, in order; for an example, the one",
    "source": "text of what is bound, with --source; else null",
    "notes": "[text], remarks",
}
"""Keys of the document. A verdict is yes, guarded, shadowed, no, or runs (for an example)."""


@click.command("explain", epilog=key_page(KEYS))
@click.argument("operator")
@click.option("--fact", "facts", multiple=True, metavar="PATH=VALUE",
              callback=values.each(values.fact),
              help="What a call site promises: hidden=576, tokens=1..8, x.dtype=bfloat16, "
              "bias=none, contiguous=true.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="ARG=AxB",
              callback=values.each(values.shape),
              help="Shape of an argument of an example call.")  # fmt: skip
@click.option("--strides", multiple=True, metavar="ARG=N,N",
              callback=values.each(values.strides),
              help="Strides of an argument of the example, in elements: x=128,2.")  # fmt: skip
@click.option("--size", "sizes", multiple=True, metavar="DIM=N",
              callback=values.each(values.size),
              help="Size of a dim of an example call.")  # fmt: skip
@click.option("--dtype", "dtypes", multiple=True, metavar="[VAR=]NAME",
              callback=values.each(values.dtype),
              help="Dtype of the example's activations, or of a dtype variable.")  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), default="eager", show_default=True)
@click.option("--source", is_flag=True, help="Show the function that is bound.")
@values.device_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    operator: str,
    *,
    facts: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    strides: dict[str, tuple[int, ...]],
    sizes: dict[str, int],
    dtypes: dict[str, torch.dtype],
    mode: str,
    source: bool,
    device_name: str,
    as_json: bool,
) -> None:
    """Shows every candidate for OPERATOR in order: yes, guarded on what, or no and why.

    With --shape or --size it makes an example call and says which candidate runs it; with
    --strides its tensors are views. Exit code 1 when nothing may run, or when a provider that an
    order list names was refused or is not for this device.
    """
    dev = device(device_name)
    op, form = dev.binder.target(operator)
    call = None
    if shapes or sizes:
        call = example(op, form, facts, shapes=shapes, sizes=sizes, dtypes=dtypes, strides=strides)
    elif strides:
        raise click.UsageError("--strides are of an example; give --shape or --size too")
    elif dtypes:
        raise click.UsageError("--dtype is of an example; give --shape too, or --fact dtype=NAME")
    rows, failed = _rows(dev, operator, facts, call, mode)
    promised = normalise(op, facts).values
    document: dict[str, Any] = {
        "operator": operator,
        "form": form,
        "device": where(dev),
        "mode": mode,
        "facts": {k: plain(v) for k, v in promised.items()},
        "order": _order(dev, rows),
        "candidates": [
            {"provider": r.provider, "verdict": r.verdict, "reason": r.reason, "note": r.note,
             "fix": r.fix}
            for r in rows
        ],
        "example": {n: _told(v) for n, v in call.items()} if call else None,
        "runs": _running(rows, call),
        "source": _source(dev, operator, facts, mode) if source and not failed else None,
        "notes": list(_notes()),
    }  # fmt: skip
    if as_json:
        emit(document)
    else:
        stated = {k: v for k, v in document["facts"].items() if k not in normalise(op, {}).values}
        _show(document, stated, failed)
    lost = any(row.preferred and row.elsewhere for row in rows)
    ctx.exit(0 if document["runs"] and not lost else FOUND_PROBLEM)


def _rows(
    dev: Device, operator: str, facts: Mapping[str, Any], call: Mapping[str, Any] | None, mode: str
) -> tuple[tuple[Row, ...], NoImplementation | None]:
    try:
        packs = dev.binder.target(operator)[0].prepare is not None  # these run in plans only
        return dev.explain(operator, facts, arguments=call, mode=mode, site=packs), None
    except NoImplementation as error:
        return tuple(row for row in error.trace if isinstance(row, Row)), error


def _order(dev: Device, rows: tuple[Row, ...]) -> str:
    """Why the first candidate is the first one."""
    if not rows or any(row.preferred for row in rows):
        return f"an order list names {rows[0].provider} first" if rows else ""
    able = [row.provider for row in rows if not row.elsewhere and row.provider != REFERENCE]
    if not able:
        return "there is no provider beside the reference" if len(rows) == 1 else ""
    plugins = list(dict.fromkeys(name.partition("/")[0] for name in able))
    if len(plugins) > 1 and plugins[0] == dev.plugin:
        why = "the device's own plugin comes first"
    elif len(plugins) > 1:
        why = "plugins that add to a device come in order of name"
    elif len(able) > 1:
        why = f"{plugins[0]} lists it before its others"
    else:
        why = "a plugin's providers come before the reference"
    return f"nothing was preferred; {able[0]} is first: {why}"


def _notes() -> Iterator[str]:
    if lock := read().lock:
        yield (
            f"the lock {lock} is not applied here, it speaks of the sites of a plan: "
            "trivet plan FILE applies it"
        )


def _running(rows: tuple[Row, ...], call: object) -> list[str]:
    wanted = ("runs",) if call else ("yes", "guarded")
    return [row.provider for row in rows if row.verdict in wanted]


def _source(dev: Device, operator: str, facts: Mapping[str, Any], mode: str) -> str:
    """The generated text of what is bound, or where the vendor's own function stands."""
    own = dev.binder
    bound: Callable[..., Any] = own.bind(operator, facts, own.policy(mode=mode))
    text: str | None = getattr(bound, "__trivet_source__", None)
    if text is not None:
        return text
    code = getattr(bound, "__code__", None)
    line = f":{code.co_firstlineno}" if code else ""
    return f"# no guard: the function {bound.__qualname__} of {bound.__module__}{line} itself"


def _told(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{values.shown(value.dtype)} {list(value.shape)}"
    if isinstance(value, list):
        return f"[{', '.join(map(_told, value))}]"
    return values.shown(value)


def _show(
    found: Mapping[str, Any], stated: Mapping[str, Any], failed: NoImplementation | None
) -> None:
    screen = Screen()
    screen.heading(f"{found['operator']} on {found['device']}, mode {found['mode']}")
    facts = ", ".join(f"{k}={_fact(v)}" for k, v in stated.items())
    screen.line(f"facts: {facts or 'none'}", 2)
    screen.table(
        ("provider", "verdict", "why"),
        [(c["provider"], c["verdict"], "\n".join(_why(c))) for c in found["candidates"]],
    )
    for text in filter(None, (found["order"], *found["notes"])):
        screen.line(text, 2)
    if found["example"]:
        screen.heading("Example")
        screen.pairs(list(found["example"].items()))
        screen.line(f"runs: {', '.join(found['runs']) or 'nothing'}", 2)
    if failed:
        screen.line(f"nothing may run: {failed.what.splitlines()[0]}", 2)
        screen.line(f"fix: {failed.fix}", 2)
    if found["source"]:
        screen.heading("Source")
        screen.code(found["source"])


def _why(candidate: Mapping[str, Any]) -> Iterator[str]:
    yield from filter(None, (candidate["reason"], candidate["note"]))
    if candidate["fix"]:
        yield f"fix: {candidate['fix']}"


def _fact(value: object) -> str:
    if isinstance(value, list):
        return "..".join("" if end is None else str(end) for end in value)
    return values.shown(value)
