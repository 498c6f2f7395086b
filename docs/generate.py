"""Writes the pages that derive from something else: operators, errors, settings, decisions.

They are not kept: ``python docs/generate.py`` writes them, and every set-up runs it.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import trivet
from trivet import capture, collectives, contracts, devices, memory, rope, topology
from trivet.binding import plan, step, workspace
from trivet.catalogue import operators
from trivet.cli.declaration import signatures
from trivet.contracts import Operator, hooks
from trivet.errors import all_errors
from trivet.memory import (
    adaptors,
    buffers,
    layouts,
    ledger,
    migrate,
    pools,
    sleep,
    spill,
    tiers,
)
from trivet.memory.kv import groups, keys, leases
from trivet.selection import authority
from trivet.selection.forms import SUFFIX
from trivet.settings import markdown_table

HERE = Path(__file__).resolve().parent
CORE = Path(trivet.__file__).parent

DECLARATIONS = "catalogue, declarations"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
     tokenize.ENDMARKER)
)  # fmt: skip
_CALL = "import torch, trivet; d = trivet.device(); d.ops.rms_norm(torch.ones(2, 8), torch.ones(8))"
USES = {
    "`import trivet`": "import trivet",
    "a device and a call": _CALL,
    "and a plan": _CALL + "; d.plan({'n': ('rms_norm', {'dtype': 'float32'})}).at(tokens=2)",
}


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
        lines += [*signatures(op), "```", ""]
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


ENGINE: dict[str, Callable[..., Any] | type] = {
    "trivet.device": devices.device,
    "trivet.Device": devices.Device,
    "trivet.prefer": authority.prefer,
    "trivet.require": authority.require,
    "Plan": plan.Plan,
    "Step": step.Step,
    "dev.memory": memory.DeviceMemory,
    "dev.memory.ledger": ledger.Ledger,
    "dev.memory.budget": memory.Budget,
    "dev.memory.sleeper": sleep.Sleep,
    "trivet.memory.spill.Spill": spill.Spill,
    "KvBlocks": memory.KvBlocks,
    "KvCaches": memory.KvCaches,
    **{
        f"{home.__name__}.{name}": getattr(home, name)
        for home in (keys, leases, groups, buffers, adaptors, pools, tiers, migrate, layouts)
        for name in home.__all__
        if callable(getattr(home, name))
    },
    "dev.collectives": collectives.DeviceCollectives,
    "DeviceGroup": collectives.DeviceGroup,
    "DeviceGroup, its operations": collectives.operations.Operations,
    "Started": collectives.Started,
    "SymmetricTensor": collectives.SymmetricTensor,
    **{
        f"trivet.topology.{name}": getattr(topology, name)
        for name in ("Verdict", "Access", "Plan", "Placement", "machine", "join", "advise")
    },
    "dev.capture": capture.DeviceCapture,
    **{f"trivet.capture.{n}": getattr(capture, n) for n in ("Buckets", "Input", "boundary")},
    **{f"trivet.rope.{name}": getattr(rope, name) for name in rope.__all__},
}
"""What an engine uses; ``dev`` is a ``trivet.Device``."""

VENDOR: dict[str, Callable[..., Any] | type] = {
    **{
        f"trivet.contracts.{name}": getattr(contracts, name)
        for name in ("operator", "Cases", "Budget", "Relation", "Scores", "DeviceInfo", "Execution")
    },
    "trivet.workspace": workspace.workspace,
}
"""What a vendor uses; the protocols of ``MODULES`` follow."""

MODULES = (
    contracts.memory, contracts.collectives, contracts.topology, contracts.experts,
    contracts.capture,
)  # fmt: skip


def api_page() -> str:
    """Signatures and docstrings of what an engine and a vendor use."""
    text = "# Python API\n\nGenerated from docstrings.\n"
    for name, value in (ENGINE | VENDOR).items():
        text += _whole(name, value)
    for module in MODULES:
        text += _member(module.__name__, module, call=False)
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                text += _whole(f"{module.__name__}.{name}", value)
    text += "\n## Hooks of a plugin\n"
    for name, function in vars(hooks).items():
        if name.startswith("trivet_"):
            text += _member(name, function, level=3)
    return text + _defaults()


def _defaults() -> str:
    """The table of what ``trivet_defaults`` may propose."""
    lines = ["", "## Engine defaults", "", "What `trivet_defaults` may propose.", ""]
    lines += ["| name | type | what | allowed |", "|---|---|---|---|"]
    for name, row in hooks.ENGINE_DEFAULTS.items():
        lines.append(f"| `{name}` | {row.kind.__name__} | {row.meaning} | {row.allowed} |")
    end = (
        "A value that is not allowed is dropped; an unknown name is kept, since an engine may "
        "know it. `trivet doctor` says both in the plugin's line."
    )
    return "\n".join([*lines, "", end, ""])


def _whole(name: str, value: Callable[..., Any] | type) -> str:
    """A function, or a class with what it has besides its base."""
    made = not (getattr(value, "_is_protocol", False) or name.startswith("dev."))
    text = _member(name, value, call=made and not _is_enum(value))
    if not inspect.isclass(value) or _is_enum(value):
        return text
    for attribute, member in vars(value).items():
        if hasattr(value.__base__, attribute):
            continue  # said once, by the class that has it first
        function = member.fget if isinstance(member, property) else member
        function = getattr(member, "func", function)
        if not attribute.startswith("_") and inspect.isfunction(function):
            call = not isinstance(member, (property, cached_property))
            text += _member(f"{name}.{attribute}", function, level=3, call=call)
    return text


def _is_enum(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Enum)


def _member(
    name: str,
    value: Callable[..., Any] | type | ModuleType,
    *,
    level: int = 2,
    call: bool = True,
) -> str:
    doc = inspect.cleandoc(value.__doc__ or "")
    first, _, rest = doc.partition("\n")
    more = f"\n```text\n{rest.strip()}\n```\n" if rest.strip() else ""
    shown = f"\n`{name.rpartition('.')[2]}{_signature(value)}`\n" if call else ""
    return f"\n{'#' * level} {name}\n{shown}\n{prose(first)}\n{more}"


def _signature(value: Callable[..., Any] | ModuleType) -> str:
    if isinstance(value, ModuleType):
        return ""
    read = inspect.signature(value)
    kept = [p.replace(annotation=p.empty) for n, p in read.parameters.items() if n != "self"]
    text = str(read.replace(parameters=kept, return_annotation=read.empty))
    return re.sub(r"<factory>|mappingproxy\(\{\}\)", "{}", text)


def code_lines(path: Path) -> int:
    """Lines of a module without blanks, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        first = node.body[0] if isinstance(node, DOCUMENTED) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            documented |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    counted: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            counted |= set(range(token.start[0], token.end[0] + 1))
    return len(counted - documented)


def layer_of(path: Path) -> str:
    """The row of the size page that a module of core belongs to."""
    inside = path.relative_to(CORE)
    room = inside.parts[0].removesuffix(".py")
    shared = inside.stem in ("__init__", "_choices", "_numerics")
    return DECLARATIONS if room == "catalogue" and not shared else room


def loaded(code: str) -> list[Path]:
    """The modules of core that a new process has loaded after some code."""
    show = (
        "import sys; own = [m for n, m in sys.modules.items() if n.split('.')[0] == 'trivet'];"
        " print(*(m.__file__ for m in own), sep=chr(10))"
    )
    done = subprocess.run(  # noqa: S603  # our own interpreter and text
        [sys.executable, "-c", f"{code}; {show}"], capture_output=True, text=True, check=True
    )
    return [Path(line) for line in done.stdout.splitlines()]


@cache
def sizes() -> dict[str, dict[str, int]]:
    """Lines of code by layer: all there are, and what each use loads."""
    table = {"all": sorted(CORE.rglob("*.py"))} | {use: loaded(code) for use, code in USES.items()}
    found: dict[str, dict[str, int]] = {}
    for use, paths in table.items():
        rows = found.setdefault(use, {})
        for path in paths:
            layer = layer_of(path)
            rows[layer] = rows.get(layer, 0) + code_lines(path)
    return found


def size_page() -> str:
    """Lines of code by layer."""
    found = sizes()
    lines = [
        "# Size of core",
        "",
        "Lines of code without blanks, comments and docstrings, by layer: all, and what is loaded.",
        "Declarations are the operators themselves; the rest of `catalogue` is what they share.",
        "",
        f"| layer | {' | '.join(found)} |",
        "|---|" + "---:|" * len(found),
    ]
    for layer in sorted(found["all"]):
        cells = [str(rows.get(layer, "")) for rows in found.values()]
        lines += [f"| `{layer}` | {' | '.join(cells)} |"]
    totals = [sum(n for layer, n in f.items() if layer != DECLARATIONS) for f in found.values()]
    lines.append(f"| **without declarations** | {' | '.join(map(str, totals))} |")
    return "\n".join(lines) + "\n"


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
    "reference/size.md": size_page,
    "decisions/index.md": decision_page,
}


def main() -> None:
    """Writes the pages."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
