"""Checks the hooks of one plugin against their specification, and calls them.

Each plugin has a pluggy manager of its own, so that a hook that raises loses nothing of the
others. The prefix of a function's name is its marker; a vendor imports nothing to write a hook.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any, Final

import pluggy

from trivet.contracts import hooks as specification
from trivet.settings import meant, near_misses

PROJECT: Final = "trivet"
PREFIX: Final = "trivet_"
NAMES: Final = tuple(
    name for name, value in vars(specification).items()
    if name.startswith(PREFIX) and inspect.isfunction(value)
)  # fmt: skip


class _Manager(pluggy.PluginManager):
    """A manager for which the prefix is the marker, of specifications and hooks alike."""

    def parse_hookspec_opts(self, module_or_class: object, name: str) -> pluggy.HookspecOpts | None:
        if module_or_class is not specification or name not in NAMES:
            return None
        return {
            "firstresult": True,
            "historic": False,
            "warn_on_impl": None,
            "warn_on_impl_args": None,
        }

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if name not in NAMES or not hasattr(plugin, name):
            return None
        return {
            "wrapper": False,
            "hookwrapper": False,
            "optionalhook": False,
            "tryfirst": False,
            "trylast": False,
            "specname": None,
        }


class Hooks:
    """The hooks of one plugin, to be called by name; ``problems`` must have found nothing."""

    def __init__(self, name: str, module: types.ModuleType) -> None:
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(specification)
        self._manager.register(module, name=name)
        self._manager.check_pending()

    def __contains__(self, hook: str) -> bool:
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    @property
    def names(self) -> tuple[str, ...]:
        """The hooks that the plugin has, in the order of the specification."""
        return tuple(name for name in NAMES if name in self)

    def call(self, hook: str, **arguments: object) -> Any:
        """The hook's result, None when the plugin has no such hook; what it raises passes."""
        return getattr(self._manager.hook, hook)(**arguments)


def problems(module: types.ModuleType) -> Iterator[str]:
    """What is wrong with the functions of a module whose names have the prefix."""
    for name, value in vars(module).items():
        if not name.startswith(PREFIX) or isinstance(value, types.ModuleType):
            continue
        if name not in NAMES:
            hint = meant(name, near_misses(name, NAMES)[:1], ", ")  # the prefix makes all alike
            yield f"{name} is no hook of the contract{hint}"
        elif not inspect.isfunction(value):
            yield f"{name} is a {type(value).__name__}, not a function"
        else:
            yield from _argument_problems(name, value)


def _argument_problems(name: str, function: types.FunctionType) -> Iterator[str]:
    wanted = tuple(inspect.signature(getattr(specification, name)).parameters)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in wanted:
            allowed = f"({', '.join(wanted)})"
            hint = meant(repr(parameter.name), map(repr, wanted), ", ")
            yield f"{name} has argument {parameter.name!r}, its arguments are {allowed}{hint}"
        elif parameter.default is not parameter.empty:
            yield f"{name} gives {parameter.name!r} a default, so it would not be passed"
        elif parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            yield f"{name} takes {parameter.name!r} as {parameter.kind.description}"
