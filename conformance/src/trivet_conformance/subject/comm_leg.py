"""The collectives of one device: what its plugin brings, and core's over torch in their place."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from trivet.collectives import DeviceCollectives
from trivet.collectives import open as open_collectives
from trivet.contracts.collectives import OPERATIONS, offers_of
from trivet_conformance.subject.leg import CORE, INSTALLED, MADE


@dataclass(frozen=True, eq=False)
class CommLeg:
    """What is under test.

    Args:
        plugin: whose it is.
        device: where tensors live, on rank 0.
        provided: what its ``trivet_collectives`` returned; None where it has no such hook.
        recipe: how every rank makes the same: ``installed:PLUGIN``, ``made:MODULE:NAME`` for a
            class or function of a module, or empty for nothing but core.
    """

    plugin: str
    device: torch.device
    provided: Any = None
    recipe: str = ""

    @property
    def owner(self) -> str:
        """The plugin where it brings a provider, otherwise core."""
        return self.plugin if self.classes() else CORE

    def classes(self) -> tuple[type, ...]:
        """The provider classes that the plugin brings, best first."""
        given = self.provided
        answer = given() if isinstance(given, FunctionType) else given
        parts = answer if isinstance(answer, (list, tuple)) else [answer]
        return tuple(part for part in parts if isinstance(part, type))

    def offers(self) -> dict[str, tuple[str, ...]]:
        """Operation -> ids of the plugin's methods for it, or of core's where it brings none."""
        if self.classes():
            found: dict[str, dict[str, None]] = {}
            for cls in self.classes():
                for claim in offers_of(cls):
                    found.setdefault(claim.operation, {})[f"{self.plugin}/{claim.name}"] = None
            return {name: tuple(found[name]) for name in OPERATIONS if name in found}
        return self.candidates()

    def candidates(self, size: int = 2) -> dict[str, tuple[str, ...]]:
        """Operation -> ids of everybody who could make it in a group of so many, best first."""
        table = self.open(self.device).imagine(size)
        return {
            name: tuple(dict.fromkeys(
                c.id for c in rows if not c.refused or c.claim.on_request
            ))
            for name, rows in table.candidates.items()
        }  # fmt: skip

    def compares(self, operation: str, provider: str) -> bool:
        """Whether a method of the plugin claims to see that arguments of ranks differ."""
        return any(
            claim.compares
            for cls in self.classes()
            for claim in offers_of(cls)
            if claim.operation == operation and f"{self.plugin}/{claim.name}" == provider
        )

    def open(self, device: torch.device) -> DeviceCollectives:
        """What an engine finds under ``dev.collectives``, with this plugin alone."""
        brought = {} if self.provided is None else {self.plugin: self.provided}
        return open_collectives(device, brought, dict.fromkeys(brought, "under test"), check=False)


def comm_leg_of(recipe: str) -> CommLeg:
    """The collectives that a recipe makes, in any process.

    Raises:
        LookupError: it makes none.
    """
    if recipe.startswith(INSTALLED):
        from trivet_conformance.subject.subject import installed

        found = installed(recipe.removeprefix(INSTALLED)).comm
        if found is None:
            msg = f"{recipe} has no collectives"
            raise LookupError(msg)
        return found
    if not recipe:
        return CommLeg(CORE, torch.device("cpu"))
    module, _, name = recipe.removeprefix(MADE).partition(":")
    made = getattr(importlib.import_module(module), name)
    return CommLeg("variant", torch.device("cpu"), made, recipe)
