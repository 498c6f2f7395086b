"""Writes the pages that derive from something else: operators, errors, settings, decisions.

They are not kept: ``python docs/generate.py`` writes them, and every set-up runs it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from trivet import contracts, devices, rope
from trivet.binding import plan, step
from trivet.catalogue import operators
from trivet.contracts import Operator, hooks
from trivet.errors import all_errors
from trivet.selection import authority
from trivet.selection.derive import SUFFIX
from trivet.settings import markdown_table

HERE = Path(__file__).resolve().parent


def forms(op: Operator) -> str:
    """The names under which an operator can be bound."""
    if op.inplace_only:
        return f"`{op.name}`"
    wanted = ["functional", *(["inplace"] if op.inplace else []), "out"]
    return ", ".join(f"`{op.name}{SUFFIX[form]}`" for form in wanted)


def prose(doc: str | None) -> str:
    """A docstring as Markdown."""
    return inspect.cleandoc(doc or "").replace("``", "`")


def operator_page() -> str:
    """One table of all operators, then a section each."""
    lines = [
        "# Operators",
        "",
        "Generated from the declarations in `core/src/trivet/catalogue/`.",
        "",
        "| operator | version | forms | writes | reference is traceable | error budget |",
        "|---|---|---|---|---|---|",
    ]
    for op in operators().values():
        writes = ", ".join(op.writes) or "nothing"
        inplace = ", ".join(op.inplace)
        effects = f"{writes}; in place {inplace}" if inplace else writes
        traceable = "yes" if op.traceable else "no"
        lines.append(
            f"| [`{op.name}`](#{op.name}) | {op.version} | {forms(op)} | {effects} | "
            f"{traceable} | {op.budget.kind} |"
        )
    for op in operators().values():
        lines += ["", f"## {op.name}", "", prose(op.doc), "", "```"]
        lines += [f"{op.name}({op.signature.text()})", "```", ""]
        lines += ["| argument | shape | dtype |", "|---|---|---|"]
        for arg, shape in op.shapes.items():
            optional = " (optional)" if op.parameters[arg].optional else ""
            lines.append(f"| `{arg}`{optional} | `{shape.text}` | `{op.dtypes[arg]}` |")
        for i, output in enumerate(op.outputs):
            lines.append(f"| result {i} | `{output.shape.text}` | as `{output.like}` |")
        for choice, allowed in op.choices.items():
            lines += ["", f"`{choice}` is one of {', '.join(f'`{a}`' for a in allowed)}."]
        lines += ["", f"Torch schema: `{op.schema}`"]
    return "\n".join(lines) + "\n"


def error_page() -> str:
    """One section an error: meaning, usual cause, command."""
    head = "Generated from `trivet.errors`. The code in brackets ends every message."
    lines = ["# Errors", "", head]
    for cls in all_errors():
        parent = cls.__mro__[1].__name__
        lines += [
            "",
            f"## {cls.code}",
            "",
            f"`trivet.errors.{cls.__name__}`, a `{parent}`. {prose(cls.__doc__)}",
            "",
            f"- usual cause: {cls.cause}",
            f"- to see more: `{cls.command}`",
        ]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """The environment variables and the keys of the configuration file."""
    return (
        "# Settings\n\nGenerated from `trivet.settings`. Authority, highest first: argument, "
        "`trivet.prefer(...)`, lock file, environment, file, the plugin's own order.\n\n"
        "The file is the one that `TRIVET_CONFIG` names, else `./trivet.toml`, else `trivet.toml` "
        "in the user's configuration folder; the first found is the only one read.\n\n"
        + markdown_table()
    )


def domain_page() -> str:
    """The terms of a domain and the keywords of ``implements``."""
    lines = [
        "# Domains",
        "",
        "Generated from `trivet.contracts`. A domain is a conjunction of terms on paths: dims",
        '(`"hidden"`), scalars (`"window"`), attributes (`"x.dtype"`, `"x.rank"`).',
        "",
        "| term | holds when |",
        "|---|---|",
    ]
    terms = (
        "dtype rank equal one_of between divisible absent present contiguous rows offset_aligned"
    )
    for name in terms.split():
        function = getattr(contracts, name)
        lines.append(f"| `{name}{_signature(function)}` | {prose(function.__doc__)} |")
    lines += [
        "",
        "Requirements on the device, settled when a plugin is loaded (`requires=[...]`):",
        "",
    ]
    for name in ("device", "arch", "feature"):
        function = getattr(contracts, name)
        lines.append(f"- `{name}{_signature(function)}`: {prose(function.__doc__)}")
    return "\n".join(lines) + "\n" + _member("trivet.contracts.implements", contracts.implements)


def api_page() -> str:
    """Signatures and docstrings of what an engine and a vendor use."""
    text = "# Python API\n\nGenerated from docstrings.\n"
    for name, value in (
        ("trivet.device", devices.device),
        ("trivet.Device", devices.Device),
        ("trivet.prefer", authority.prefer),
        ("trivet.require", authority.require),
        ("Plan", plan.Plan),
        ("Step", step.Step),
        ("trivet.contracts.operator", contracts.operator),
        ("trivet.contracts.DeviceInfo", contracts.DeviceInfo),
        *((f"trivet.rope.{n}", getattr(rope, n)) for n in rope.__all__),
    ):
        text += _member(name, value)
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                if hasattr(value.__base__, attribute):
                    continue  # said once, by the class that has it first
                function = member.fget if isinstance(member, property) else member
                function = getattr(member, "func", function)
                if not attribute.startswith("_") and inspect.isfunction(function):
                    call = not isinstance(member, (property, cached_property))
                    text += _member(f"{name}.{attribute}", function, level=3, call=call)
    text += "\n## Hooks of a plugin\n"
    for name, function in vars(hooks).items():
        if name.startswith("trivet_"):
            text += _member(name, function, level=3)
    return text


def _member(
    name: str, value: Callable[..., Any] | type, *, level: int = 2, call: bool = True
) -> str:
    doc = inspect.cleandoc(value.__doc__ or "")
    first, _, rest = doc.partition("\n")
    more = f"\n```text\n{rest.strip()}\n```\n" if rest.strip() else ""
    shown = f"\n`{name.rpartition('.')[2]}{_signature(value)}`\n" if call else ""
    return f"\n{'#' * level} {name}\n{shown}\n{prose(first)}\n{more}"


def _signature(value: Callable[..., Any]) -> str:
    read = inspect.signature(value)
    kept = [p.replace(annotation=p.empty) for n, p in read.parameters.items() if n != "self"]
    text = str(read.replace(parameters=kept, return_annotation=read.empty))
    return re.sub(r"<factory>|mappingproxy\(\{\}\)", "{}", text)


def decision_page() -> str:
    """The table of decisions, from the first line of each."""
    lines = [
        "# Decisions",
        "",
        "Short records of what was decided, why, and which test holds it.",
        "",
        "| | decision |",
        "|---|---|",
    ]
    for path in sorted((HERE / "decisions").glob("[0-9]*.md")):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0][2:].partition(". ")
        lines.append(f"| [{number}]({path.name}) | {title} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/operators.md": operator_page,
    "reference/errors.md": error_page,
    "reference/settings.md": settings_page,
    "reference/domains.md": domain_page,
    "reference/api.md": api_page,
    "decisions/index.md": decision_page,
}


def main() -> None:
    """Writes the pages."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
