"""Writes the reference pages that derive from the code: operators, errors, settings.

``python docs/generate.py`` writes them; ``--check`` only says whether they are up to date.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from trivet.catalogue import operators
from trivet.contracts import Operator
from trivet.errors import all_errors
from trivet.selection.derive import SUFFIX
from trivet.settings import markdown_table

HERE = Path(__file__).resolve().parent / "reference"


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


PAGES: dict[str, Callable[[], str]] = {
    "operators.md": operator_page,
    "errors.md": error_page,
    "settings.md": settings_page,
}


def main() -> int:
    """Writes or checks the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    check = parser.parse_args().check
    stale = [n for n, page in PAGES.items() if not _same(HERE / n, page())]
    for name in stale:
        if not check:
            (HERE / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"{'stale' if check else 'wrote'}: docs/reference/{name}")
    return 1 if check and stale else 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
