"""Prepared weights: one handle a weight, one pack for each provider that a step can choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from trivet.errors import DomainError, OrderError
from trivet.plugins.verification import Implementation


@dataclass(frozen=True, eq=False)
class Handle:
    """A weight prepared at a site.

    Args:
        site: name of the site.
        packs: provider -> its pack.
        implementations: provider -> the implementation that made the pack.
        source: the weight as given, kept when a pack cannot give it back; else None.
    """

    site: str
    packs: Mapping[str, list[Tensor]]
    implementations: Mapping[str, Implementation]
    source: Tensor | None

    def __repr__(self) -> str:
        sizes = ", ".join(f"{p}: {n} bytes" for p, n in self.nbytes.items())
        return f"<weight of site {self.site!r}, {sizes}>"

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of each provider's pack."""
        return {p: sum(t.nbytes for t in pack) for p, pack in self.packs.items()}

    def tensors(self) -> list[Tensor]:
        """Every tensor that it keeps alive, each once: packs, and the source if it is held."""
        held = [t for pack in self.packs.values() for t in pack]
        if self.source is not None:
            held.append(self.source)
        return list({id(t): t for t in held}.values())

    def weight(self) -> Tensor:
        """The weight itself: the kept source, or unpacked bit by bit.

        Raises:
            OrderError: no pack can be turned back and the source was not kept.
        """
        if self.source is not None:
            return self.source
        for provider, pack in self.packs.items():
            claim = self.implementations[provider].claim
            if claim.unpack is not None:
                unpacked: Tensor = claim.unpack(pack)
                return unpacked
        msg = f"the weight of site {self.site!r} cannot be recovered from {', '.join(self.packs)}"
        raise OrderError(msg, fix="prepare it again from the checkpoint")


def prepare(
    site: str,
    implementations: Mapping[str, Implementation],
    facts: Mapping[str, Any],
    weight: Tensor,
    bias: Tensor | None,
) -> Handle:
    """Packs a weight for each provider; those with one ``prepare`` function share one pack.

    The source is kept only where nothing else holds it.

    Raises:
        DomainError: the operator's own ``prepare`` says that the weight is not the site's.
    """
    operator = next(iter(implementations.values())).operator
    try:
        plain = operator.prepare(facts, weight, bias) if operator.prepare else [weight]
    except DomainError as error:
        raise DomainError(f"site {site!r}: {error.what}", fix=error.fix) from error
    packs: dict[str, list[Tensor]] = {}
    made: dict[Callable[..., list[Tensor]], list[Tensor]] = {}
    for provider, implementation in implementations.items():
        make = implementation.claim.prepare
        if make is None:
            packs[provider] = plain
            continue
        if make not in made:
            made[make] = make(facts, weight, bias)
        packs[provider] = made[make]
    held = any(t is weight for pack in packs.values() for t in pack)
    unpacks = any(i.claim.unpack for i in implementations.values())
    keep = held or not unpacks
    return Handle(site, packs, dict(implementations), weight if keep else None)


def replace_handles(tree: Any, pack: Callable[[Handle], list[Tensor]]) -> Any:
    """A copy of a tree of containers in which every handle became what ``pack`` gives."""
    if isinstance(tree, Handle):
        return pack(tree)
    if isinstance(tree, Mapping):
        return {k: replace_handles(v, pack) for k, v in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(replace_handles(v, pack) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(replace_handles(v, pack) for v in tree)
    if isinstance(tree, SimpleNamespace):
        return SimpleNamespace(**replace_handles(vars(tree), pack))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree) if f.init}
        return dataclasses.replace(tree, **replace_handles(fields, pack))
    return tree
