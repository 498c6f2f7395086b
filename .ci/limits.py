"""House rules that ruff cannot state: sizes, names of vendors, names of modules, entry points.

Everything is read from syntax trees; nothing is imported. A breach prints file, line and rule and
makes the exit status 1. Exceptions stand in this file, each with its reason; an exception that is
no longer needed is a breach too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("core", "plugins", "conformance", "examples", "benchmarks", "docs", ".ci")
MODULE_LINES, CLASS_LINES, FUNCTION_LINES = 400, 300, 60  # docstrings of functions not counted

# Places that must not know any accelerator: a name there would make it a special case.
NEUTRAL = ("core/src", "core/tests", "conformance/src", "examples")
DEVICE_WORDS = re.compile(r"(?<![a-z])(cuda|rocm|hip|metal|mps|xpu|npu)(?![a-z])", re.IGNORECASE)
VENDOR_DISTS = re.compile(r"(?<![a-z])trivet[-_](cpu|cuda|rocm|metal)(?![a-z])")

DRAWERS = {"utils", "util", "helpers", "helper", "manager", "managers", "base", "common", "misc"}

# (rule, file, what) -> reason. "what" is the name of the function or class, or the word found.
EXCEPTIONS: dict[tuple[str, str, str], str] = {}


@dataclass
class Findings:
    """Breaches found so far, and the exceptions that were needed."""

    breaches: list[str] = field(default_factory=list)
    used: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, rule: str, file: str, line: int, what: str, text: str) -> None:
        """Record a breach, unless an exception covers it."""
        key = (rule, file, what)
        if key in EXCEPTIONS:
            self.used.add(key)
        else:
            self.breaches.append(f"{file}:{line}: {rule}: {text}")


def python_files() -> Iterator[tuple[str, Path]]:
    """Every Python file of the workspace with its path from the root."""
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/build/" not in name and "/results/" not in name:
                yield name, path


def lines_of(node: ast.stmt) -> int:
    """The lines that a statement takes."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def check_sizes(found: Findings, name: str, tree: ast.Module, lines: int) -> None:
    """Bound the lines of the module, of each class and of each function."""
    if lines > MODULE_LINES:
        found.add("module-size", name, 1, name, f"{lines} lines, at most {MODULE_LINES}")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            rule, limit = "class-size", CLASS_LINES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            rule, limit = "function-size", FUNCTION_LINES
        else:
            continue
        size = lines_of(node)
        if not isinstance(node, ast.ClassDef) and ast.get_docstring(node) is not None:
            size -= lines_of(node.body[0])
        if size > limit:
            text = f"{node.name} has {size} lines, at most {limit}"
            found.add(rule, name, node.lineno, node.name, text)


def words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Identifiers and string literals with their lines; docstrings are documentation, not code."""
    docs: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs.add(id(node.value))
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docs:
                yield node.lineno, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.keyword(arg=str(text)):
                yield node.lineno, text
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text) | ast.arg(arg=text):
                yield node.lineno, text
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield node.lineno, module or ""
                yield from ((node.lineno, alias.name) for alias in names)
            case _:
                pass


def check_neutral(found: Findings, name: str, tree: ast.Module) -> None:
    """Refuse accelerator and vendor names where everything must work for any of them."""
    if not name.startswith(NEUTRAL):
        return
    for line, text in words(tree):
        for pattern, rule in ((DEVICE_WORDS, "device-name"), (VENDOR_DISTS, "vendor-name")):
            for match in pattern.finditer(text):
                word = match.group().lower()
                found.add(rule, name, line, word, f"{match.group()!r} outside plugins")


def check_names(found: Findings, name: str, tree: ast.Module) -> None:
    """Refuse drawers as module names, and imports of another package's private names."""
    for part in Path(name).with_suffix("").parts:
        if part in DRAWERS:
            found.add("module-name", name, 1, part, f"{part!r} says nothing about its content")
    if "/tests/" in name:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("trivet"):
            continue
        home = Path(name).parent.as_posix()
        if home.endswith((node.module or "").rpartition(".")[0].replace(".", "/")):
            continue  # a private module of the same package
        package = (node.module or "").split(".")
        private = [a.name for a in node.names if a.name.startswith("_") and a.name != "__version__"]
        private += [p for p in package if p.startswith("_")]
        for what in private:
            found.add("private-import", name, node.lineno, what, f"imports {what} from elsewhere")


def check_scripts(found: Findings, name: str, tree: ast.Module) -> None:
    """Require a ``main`` in everything that is run as a script, so that a test can call it."""
    guarded = any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body
    )
    acts = any(isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) for n in tree.body)
    acts = acts and name.startswith(("examples/", "benchmarks/", ".ci/"))
    if not (guarded or acts or name.endswith("/__main__.py")):
        return
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
    if "main" not in defined:
        found.add("script-main", name, 1, "main", "a script needs a main()")


def main() -> int:
    """Check every file, print the size of each distribution, return the exit status."""
    found = Findings()
    totals: dict[str, list[int]] = {}
    for name, path in python_files():
        text = path.read_text(encoding="utf-8")
        try:
            tree = ast.parse(text, filename=name)
        except SyntaxError as error:
            found.breaches.append(f"{name}:{error.lineno}: syntax: {error.msg}")
            continue
        lines = text.count("\n")
        check_sizes(found, name, tree, lines)
        check_neutral(found, name, tree)
        check_names(found, name, tree)
        check_scripts(found, name, tree)
        group = re.sub(r"^(plugins/[^/]+|[^/]+)/?(src|tests)?.*$", r"\1 \2", name).strip()
        files_and_lines = totals.setdefault(group, [0, 0])
        files_and_lines[0] += 1
        files_and_lines[1] += lines
    for key in sorted(EXCEPTIONS.keys() - found.used):
        found.breaches.append(f"{key[1]}: unused exception: {key[0]} {key[2]}")
    for group, (files, lines) in sorted(totals.items()):
        print(f"{group:24} {files:4} modules {lines:6} lines")
    print("\n".join(found.breaches) or "limits: ok")
    return 1 if found.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
