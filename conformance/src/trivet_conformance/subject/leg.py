"""The memory of one device: the abilities that its plugin brings, and core's in their place."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from trivet.contracts.memory import (
    ABILITIES,
    Allocator,
    InfoSource,
    MemoryInfo,
    Stats,
    StatsSource,
)
from trivet.memory import DeviceMemory
from trivet.memory.torch_allocator import TorchAllocator
from trivet.plugins.answers import has_abilities

CORE: Final = "core"
"""The provider of what core composes."""

INSTALLED: Final = "installed:"
MADE: Final = "made:"


@dataclass(frozen=True, eq=False)
class Leg:
    """What is under test.

    Args:
        plugin: whose it is.
        device: where tensors live.
        provided: what its ``trivet_memory`` returned; None where it has no such hook.
        recipe: how another process makes the same: ``installed:PLUGIN``, or ``made:MODULE:NAME``
            for what a function without arguments returns.
    """

    plugin: str
    device: torch.device
    provided: Any = None
    recipe: str = ""

    def brings(self, *abilities: type) -> bool:
        """Whether the plugin brings one of these abilities itself."""
        return self.provided is not None and has_abilities(self.provided, *abilities)

    def owner(self, *abilities: type) -> str:
        """The plugin where it brings one of these abilities, otherwise core."""
        return self.plugin if self.brings(*abilities) else CORE

    @cached_property
    def allocator(self) -> Allocator:
        """The plugin's, or torch's behind the contract."""
        if self.brings(Allocator):
            found: Allocator = self.provided
            return found
        return TorchAllocator(self.device)

    @cached_property
    def composed(self) -> DeviceMemory:
        """Core's view of the device; it takes from the plugin what that brings."""
        return DeviceMemory(self.device, self.provided if self.brings(*ABILITIES) else None)

    def info(self) -> MemoryInfo:
        """The numbers of the device, from whoever knows them."""
        found: MemoryInfo = (
            self.provided.info() if self.brings(InfoSource) else self.composed.info()
        )
        return found

    def stats(self) -> Stats:
        """The counts of the device, from whoever counts."""
        found: Stats = self.provided.stats() if self.brings(StatsSource) else self.composed.stats()
        return found


def leg_of(recipe: str) -> Leg:
    """The memory that a recipe makes, in any process.

    Raises:
        LookupError: it makes none.
    """
    if recipe.startswith(INSTALLED):
        from trivet_conformance.subject.subject import installed

        found = installed(recipe.removeprefix(INSTALLED)).memory
        if found is None:
            msg = f"{recipe} has no memory"
            raise LookupError(msg)
        return found
    module, _, name = recipe.removeprefix(MADE).partition(":")
    made = getattr(importlib.import_module(module), name)()
    return Leg("variant", torch.device("cpu"), made, recipe)
