"""The hooks that a plugin module may define; every one is optional.

A plugin is a module named by an entry point of group ``trivet.plugins``. Its functions whose
names start with ``trivet_`` are hooks: no marker is needed. The functions below are the
specification; the discovery checks names and arguments against them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from trivet.contracts.declaration import Operator
    from trivet.contracts.device_info import DeviceInfo

ENTRY_POINTS = "trivet.plugins"
CONTRACT_POINTS = "trivet.contract"
EXTENDS_POINTS = "trivet.extends"


@dataclass(frozen=True, slots=True)
class EngineDefault:
    """One thing that ``trivet_defaults`` may propose.

    Args:
        kind: the type of its value.
        meaning: what it is, for an engine.
        allowed: which values there are, in words.
        accepts: whether a value of that type is one of them.
    """

    kind: type
    meaning: str
    allowed: str
    accepts: Callable[[Any], bool]

    def takes(self, value: object) -> bool:
        """Whether a value may be proposed; the type is compared exactly, True is no size."""
        return type(value) is self.kind and self.accepts(value)


def _is_floating(name: str) -> bool:
    found = getattr(torch, name, None)
    return isinstance(found, torch.dtype) and found.is_floating_point


ENGINE_DEFAULTS: Final[Mapping[str, EngineDefault]] = MappingProxyType(
    {
        "block_size": EngineDefault(
            int, "tokens in a block of the paged cache", "1 or more", lambda size: size > 0
        ),
        "layout": EngineDefault(
            str, "order of a block, as operators take it", "`NHD`", lambda name: name == "NHD"
        ),
        "dtype": EngineDefault(
            str, "activations and weights", "the name of a floating dtype of torch", _is_floating
        ),
    }
)
"""The names that ``trivet_defaults`` may use. An unknown one is kept: an engine may know it."""


def trivet_probe() -> bool | str:
    """True when the hardware is here and usable, otherwise the reason as text."""
    raise NotImplementedError


def trivet_devices() -> Sequence[DeviceInfo]:
    """The devices of this plugin's kind, in order of index."""
    raise NotImplementedError


def trivet_operators() -> Sequence[Operator]:
    """Operators of the plugin's own; they are called ``dev.ops.<plugin>.<name>``."""
    raise NotImplementedError


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """Functions marked with ``implements``, in the plugin's default order of preference."""
    raise NotImplementedError


def trivet_memory(device: DeviceInfo) -> object:
    """An object with any abilities of ``contracts.memory``; torch serves in place of the others."""
    raise NotImplementedError


def trivet_collectives(device: DeviceInfo) -> object:
    """A class of what it makes of a group, or a list of them; without, ``torch.distributed``.

    Or a function that returns them, so that they are loaded when groups are asked for.
    """
    raise NotImplementedError


def trivet_capture(device: DeviceInfo) -> object:
    """A ``Capturer`` of the plugin's own; without it core records calls of torch operators."""
    raise NotImplementedError


def trivet_kernels() -> object:
    """Its Triton kernels, a ``KernelSet``, which ``trivet kernels`` and ``trivet tune`` ask for.

    Nothing else does. It is called where there is no device, too.
    """
    raise NotImplementedError


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """Engine defaults that this device proposes: name -> (value, reason).

    The names are those of ``ENGINE_DEFAULTS``. A value that is not allowed is dropped, and an
    unknown name is kept; the plugin's line in the report says both.
    """
    raise NotImplementedError
