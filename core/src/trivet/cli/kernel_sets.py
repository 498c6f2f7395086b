"""The Triton kernels of an installed plugin, as its hook gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivet.errors import DomainError, PluginNotFound
from trivet.plugins import discover

if TYPE_CHECKING:
    from trivet.kernels.triton import KernelSet

HOOK = "trivet_kernels"


def kernel_set(plugin: str) -> KernelSet:
    """What a plugin answers; the only one that has the hook when none is named.

    Raises:
        PluginNotFound: no plugin of that name, or none with Triton kernels.
        PluginError: the plugin cannot be used.
        DomainError: several have some, and none was named.
    """
    found = discover()
    names = [plugin] if plugin else [n for n in found.usable() if _has(n)]
    if len(names) > 1:
        msg = f"{', '.join(names)} have Triton kernels"
        raise DomainError(msg, fix=f"name one: --plugin {names[0]}")
    if not names:
        raise PluginNotFound("no installed plugin has Triton kernels", fix="install one")
    (name,) = names
    if found.load(name) is None:
        raise found.failure(name)
    if not _has(name):
        msg = f"plugin {name} has no Triton kernels: no hook {HOOK}"
        raise PluginNotFound(msg, fix="trivet doctor lists the plugins")
    answer = found.ask(name, HOOK, check=_problem)
    if answer is None:
        raise found.failure(name)
    made: KernelSet = answer
    return made


def _has(name: str) -> bool:
    hooks = discover().load(name)
    return hooks is not None and HOOK in hooks


def _problem(answer: object) -> str:
    from trivet.kernels.triton import KernelSet

    kind = type(answer).__name__
    return "" if isinstance(answer, KernelSet) else f"{HOOK} gives a {kind}, no KernelSet"
