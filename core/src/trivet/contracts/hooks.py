"""The hooks that a plugin module may define; every one is optional.

A plugin is a module named by an entry point of group ``trivet.plugins``. Its functions whose
names start with ``trivet_`` are hooks: no marker is needed. The functions below are the
specification; the discovery checks names and arguments against them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivet.contracts.declaration import Operator
    from trivet.contracts.device_info import DeviceInfo

ENTRY_POINTS = "trivet.plugins"
CONTRACT_POINTS = "trivet.contract"
EXTENDS_POINTS = "trivet.extends"


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
    """An allocator of the plugin's own; without it torch's serves."""
    raise NotImplementedError


def trivet_collectives(device: DeviceInfo) -> object:
    """A collective provider of the plugin's own; without it ``torch.distributed`` serves."""
    raise NotImplementedError


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """Engine defaults that this device proposes: name -> (value, reason)."""
    raise NotImplementedError
