"""Finding what is under test: an installed plugin by name, or a module by its path.

A module that is not installed gets metadata of its own in a folder of this run, so that core
discovers, filters and judges it exactly as it does an installed plugin.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import trivet
from trivet.contracts.hooks import CONTRACT_POINTS, ENTRY_POINTS, EXTENDS_POINTS
from trivet.errors import PluginNotFound
from trivet.plugins import discover, reset
from trivet.plugins.resolve import REFERENCE
from trivet_conformance.subject.subject import Subject, installed

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEPTH: Final = 3
"""How many folders above a module its ``pyproject.toml`` may lie."""


@dataclass(frozen=True)
class Located:
    """Where a plugin is.

    Args:
        name: the plugin's name.
        paths: folders that its interpreter needs in front of ``sys.path``.
    """

    name: str
    paths: tuple[str, ...] = ()


def is_path(spec: str) -> bool:
    """Whether a specification means a file or folder, not an installed name."""
    return "/" in spec or "\\" in spec or spec.startswith(".") or ".py" in spec


def locate(spec: str, folder: str | Path, execution: str = "") -> Located:
    """Finds a plugin from metadata alone; none of its code runs.

    Args:
        spec: an installed name, ``reference``, or a path: ``./mydev.py``, ``./dir/mydev``,
            ``./mydev.py:attr``.
        folder: where metadata of a plugin by path may be written; it must outlive the run.
        execution: the word that the device must have. Where an installed plugin has a module of
            that name beside its own, as ``PACKAGE.emulated``, that module has the hooks.

    Raises:
        PluginNotFound: there is no such plugin; the text says what was looked for.
    """
    if not is_path(spec):
        if spec != REFERENCE:
            discover().line(spec)
        return _stand_in(spec, execution, Path(folder)) or Located(spec)
    text, _, attr = spec.partition(":")
    path = _resolved(text)
    root, module = _module(path)
    points = _points(path, module)
    own = points.get(ENTRY_POINTS, {})
    dotted = ".".join(module)
    names = [n for n, value in own.items() if _same(value.partition(":")[0], dotted, path)]
    name = names[0] if len(names) == 1 else module[-1]
    value = own[name] if names and path.is_dir() and not attr else dotted
    if attr:
        inner = path.is_dir() and ((path / f"{attr}.py").exists() or (path / attr).is_dir())
        value = f"{dotted}.{attr}" if inner else f"{dotted}:{attr}"
    contract = points.get(CONTRACT_POINTS, {}).get(name, f"v{trivet.CONTRACT}:v{trivet.CONTRACT}")
    extends = points.get(EXTENDS_POINTS, {}).get(name, "")
    _describe(Path(folder), name, value, contract, extends)
    return Located(name, (str(root), str(folder)))


def _stand_in(name: str, execution: str, folder: Path) -> Located | None:
    """A plugin whose hooks are those of the module for a word; None where it has none."""
    if not execution or name == REFERENCE:
        return None
    candidate = discover().candidate(name)
    package = candidate.module.partition(":")[0].rpartition(".")[0]
    if not package or not _has_module(package, execution):
        return None
    value = f"{package}.{execution}"
    contract, extends = candidate.contract, candidate.extends
    _describe(folder, name, value, contract, extends, dist=candidate.dist)
    return Located(name, (str(folder),))


def _has_module(package: str, name: str) -> bool:
    """Whether a package has a module of a name; nothing of it is imported."""
    top, *inner = package.split(".")
    spec = find_spec(top)  # of a name without dots it imports nothing
    places = (spec.submodule_search_locations if spec else None) or ()
    return any(Path(place, *inner, f"{name}.py").is_file() for place in places)


def _same(declared: str, dotted: str, path: Path) -> bool:
    """Whether an entry point names this module; a folder is the package of any module in it."""
    return declared == dotted or (path.is_dir() and f"{declared}.".startswith(f"{dotted}."))


def _resolved(text: str) -> Path:
    """The whole path, one that the system can look at."""
    try:
        path = Path(text).resolve()
        path.stat()
    except FileNotFoundError:
        return Path(text).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop, too long a name
        msg = f"no plugin at {text}: {error}"
        raise PluginNotFound(msg, fix="give the path of a file or folder") from error
    return path


def _module(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder that imports of a module start from, and its dotted name."""
    what = "a .py file, or a package's folder with an __init__.py"
    if not path.exists():
        raise PluginNotFound(f"no plugin at {path}: there is no such file", fix=f"give {what}")
    if path.is_dir() and not (path / "__init__.py").exists():
        raise PluginNotFound(f"no plugin at {path}: it is no package", fix=f"give {what}")
    if path.is_file() and path.suffix != ".py":
        raise PluginNotFound(f"no plugin at {path}: it is no Python file", fix=f"give {what}")
    parts, root = [path.stem], path.parent
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    for part in parts:
        if not _NAME.fullmatch(part):
            msg = f"no plugin at {path}: {part!r} cannot be imported"
            raise PluginNotFound(msg, fix="rename it: lower_snake_case")
    return root, tuple(parts)


def _points(path: Path, module: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """The entry points of the project that a module belongs to, where there is one."""
    del module
    for folder in [path, *path.parents][: _DEPTH + 1]:
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
            points = found.get("project", {}).get("entry-points", {})
            return {g: dict(rows) for g, rows in points.items()}
        except (ValueError, OSError, AttributeError, TypeError, RecursionError) as error:
            raise PluginNotFound(f"{file} cannot be read: {error}", fix="repair it") from error
    return {}


def _describe(
    folder: Path, name: str, value: str, contract: str, extends: str, dist: str = ""
) -> None:
    """Writes what the metadata of an installed plugin would say.

    It hides an installed distribution of the same name, ``dist``; by default the plugin's own.
    """
    info = folder / f"{re.sub('[-_.]+', '_', dist or name)}-0.dist-info"  # a dash ends the name
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {dist or name}", "Version: 0", ""]
    (info / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    groups = {ENTRY_POINTS: value, CONTRACT_POINTS: contract, EXTENDS_POINTS: extends}
    text = "".join(f"[{g}]\n{name} = {v}\n\n" for g, v in groups.items() if v)
    (info / "entry_points.txt").write_text(text, encoding="utf-8")


def settle(located: Located) -> None:
    """Makes this process see a located plugin; what it knew of plugins before is forgotten."""
    missing = [p for p in located.paths if p not in sys.path]
    if missing:
        sys.path[:0] = missing
        importlib.invalidate_caches()
        reset()


def subject_of(spec: str, execution: str = "") -> Subject:
    """The plugin that a specification means, loaded into this process.

    Raises:
        PluginError: there is no such plugin, it cannot be used, or its device has another word.
    """
    located = locate(spec, tempfile.mkdtemp() if is_path(spec) or execution else "", execution)
    settle(located)
    return executed(installed(located.name), execution)


def executed(subject: Subject, execution: str) -> Subject:
    """The subject itself, if its device is of that word of execution; empty takes any.

    Raises:
        PluginNotFound: it is another word.
    """
    if execution and subject.execution != execution:
        msg = f"plugin {subject.plugin!r} has no device that is {execution}: it is "
        fix = "leave --execution out, or install what that takes"
        raise PluginNotFound(f"{msg}{subject.execution}", fix=fix)
    return subject
