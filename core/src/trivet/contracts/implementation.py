"""How a vendor marks a function as an implementation of an operator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, TypeVar

from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.terms import Term
from trivet.errors import DeclarationError

F = TypeVar("F", bound=Callable[..., Any])

PROPERTIES: Final = ("graph_safe", "deterministic", "batch_invariant", "stream_ordered")
"""Claims that the kit tests; each is a keyword of ``implements``."""


@dataclass(frozen=True)
class Requirement:
    """A condition on the device, settled when the plugin is loaded."""

    kind: str
    name: str

    def unmet(self, info: DeviceInfo) -> str:
        """The reason why a device does not meet it; empty when it does."""
        have: Iterable[str] = {
            "device": (info.kind, info.torch_type),
            "arch": info.arch,
            "feature": info.features,
        }[self.kind]
        return "" if self.name in have else f"{self.kind} {self.name!r} is not here"


def device(name: str) -> Requirement:
    """Requires a device kind (``"cpu"``) or the type of its ``torch.device``."""
    return Requirement("device", name)


def arch(name: str) -> Requirement:
    """Requires an architecture that ``DeviceInfo.arch`` lists."""
    return Requirement("arch", name)


def feature(name: str) -> Requirement:
    """Requires a feature that ``DeviceInfo.features`` lists."""
    return Requirement("feature", name)


@dataclass(frozen=True, eq=False)
class implements:  # noqa: N801  # it is written as a decorator
    """Records that a module-level function implements an operator; returns that very function.

    Nothing of it is verified before the plugin is loaded. It may be stacked.

    Args:
        target: operator with form and version: ``"rms_norm@1"``, ``"rms_norm_@1"`` (in place),
            ``"rms_norm_out@1"``.
        name: name of the implementation within its plugin; with the plugin's it makes the
            provider id ``plugin/name``.
        domain: the conjunction of terms under which it is right; alternatives are several
            implementations.
        requires: conditions on the device.
        sources: every source or binary file it is made of, relative to the function's module.
        graph_safe: it may be captured into a device graph.
        deterministic: equal inputs give bitwise equal results, run after run.
        batch_invariant: a row's result does not depend on the other rows.
        stream_ordered: it works on the current stream of its first tensor's device.
        accumulates_in: name of the dtype in which it accumulates.
        checks: it checks dtype, rank and stride itself; False for pointer-level kernels.
        prepare: ``prepare(facts, weight, bias) -> list[Tensor]`` packs a weight.
        unpack: ``unpack(packed) -> weight``, bit-exact.
        opaque: torch cannot save, copy or offload its packs.
        prepare_step: ``prepare_step(facts, block_table, query_start, seq_lens, max_query_len,
            max_seq_len, out=None) -> list[Tensor]`` makes this step's schedule.
        resolve: ``resolve(facts) -> function or None`` makes the function of one site, at its
            bind, where time may be taken. Equal facts must give the same function.
        on_request: it is a candidate only where an order list names it.

    Raises:
        DeclarationError: a list is no list, or a name no text.
    """

    target: str
    _: KW_ONLY
    name: str
    domain: Sequence[Term] = ()
    requires: Sequence[Requirement] = ()
    sources: Sequence[str] = ()
    graph_safe: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    stream_ordered: bool = True
    accumulates_in: str = "float32"
    checks: bool = True
    prepare: Callable[..., Any] | None = None
    unpack: Callable[..., Any] | None = None
    opaque: bool = False
    prepare_step: Callable[..., Any] | None = None
    resolve: Callable[..., Any] | None = None
    on_request: bool = False
    function: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses what would only be found out far from the line that says it."""
        who = f"implements({self.target!r}, name={self.name!r})"
        for word in ("domain", "requires", "sources"):
            given = getattr(self, word)
            if not isinstance(given, (list, tuple)):
                raise DeclarationError(
                    f"{who}: {word} is {given!r}, not a list", fix=f"{word}=[...]"
                )
            object.__setattr__(self, word, tuple(given))
        for word in ("target", "name"):
            if not isinstance(text := getattr(self, word), str):
                msg = f"{who}: {word} is {text!r}, no text"
                raise DeclarationError(msg, fix='implements("rms_norm@1", name="vec")')

    @property
    def properties(self) -> frozenset[str]:
        """Those of ``PROPERTIES`` that it claims."""
        return frozenset(name for name in PROPERTIES if getattr(self, name))

    def of(self, function: Callable[..., Any]) -> implements:
        """This claim, made of a function."""
        claim = copy.copy(self)
        object.__setattr__(claim, "function", function)
        return claim

    def __call__(self, function: F) -> F:
        """Records the claim on a function."""
        function.__trivet__ = (*claims_of(function), self.of(function))  # type: ignore[attr-defined]
        return function


Claim = implements


def claims_of(function: object) -> tuple[Claim, ...]:
    """The claims recorded on a function, in order of decoration from the bottom up."""
    found = getattr(function, "__trivet__", ())
    return tuple(c for c in found if isinstance(c, Claim)) if isinstance(found, tuple) else ()
