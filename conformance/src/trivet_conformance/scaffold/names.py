"""Which names a new plugin can have; what is refused would fail later, far from its cause."""

from __future__ import annotations

import keyword
import re
from importlib.metadata import entry_points
from typing import Final

import torch

LONGEST: Final = 32
TAKEN: Final = frozenset({"auto", "conformance", "core", "kernels", "reference", "test", "trivet"})
"""Words that trivet uses itself, as plugins or as packages."""

_NAME: Final = re.compile(r"[a-z]+(_?[a-z0-9]+)*")
_DEVICE: Final = re.compile(r"[a-z]+(_[a-z]+)*")


def problem(name: str, *, own_device: bool) -> str:
    """Why a plugin cannot have a name; empty when it can.

    Args:
        name: the name of the plugin; its package is ``trivet_NAME``.
        own_device: whether a device of torch gets the name too.
    """
    if len(name) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    if not _NAME.fullmatch(name):
        return "small letters, digits and single '_' between them make a name, a letter first"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "it is a word of Python's"
    if name in TAKEN:
        return "trivet uses this word itself"
    if own_device and not _DEVICE.fullmatch(name):
        return "torch takes no digits in the name of a device"
    if _is_torchs(name) or (own_device and hasattr(torch, name)):
        return f"torch has a {name!r} of its own"
    return ""


def installed(name: str) -> str:
    """The distribution that already brings a plugin of this name; empty where none does."""
    for point in entry_points(group="trivet.plugins"):
        if point.name == name:
            return point.dist.name if point.dist else "unknown"
    return ""


def _is_torchs(name: str) -> bool:
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True
