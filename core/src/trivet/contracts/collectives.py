"""Collectives: the small abilities that a vendor may bring, and the facts that they are chosen by.

What a plugin's ``trivet_collectives`` returns is a provider class, or a list of them in order of
preference. A provider is made once for a group, by every member, and marks what it can do with
``provides``; core builds the rest from that and from ``torch.distributed``. The least is one
method::

    class OneShot:
        def __init__(self, group: Group, store: Store) -> None:
            self.segment = attach(group, store)

        @provides("all_reduce", name="one_shot", determinism=["order"],
                  domain=[dtype("x", "float32"), one_of("reduction", "sum"),
                          between("nbytes", 0, 256 * 1024), one_of("hosts", 1)])
        def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
            self.segment.reduce(out, inp)

Its id is that of operators, ``plugin/one_shot``, and order lists name it for ``comm.all_reduce``.

Methods write into destinations that the caller brings. Every tensor is flat, contiguous and on
the group's device. Operations that only move data (``MOVEMENT``) get ``uint8`` tensors, so that
every dtype is moved; ``bool`` reaches a reduction as ``uint8``. Ranks are positions in the group.
On a device with streams, a method starts its work on the current stream.

All members make the same calls in the same order, from one thread each; only ``abort`` may come
from another. No method waits longer than ``group.timeout`` for another rank. A method raises
``CommTimeout``, ``PeerLost`` or ``CommAborted`` with the ranks that it knows of, and
``GroupMismatch`` where it sees that another rank's arguments differ; core adds which call it was.
After any of these the group has failed. Anything else that it raises is reported as ``CommError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import torch

from trivet.contracts.memory import Traits
from trivet.contracts.terms import Term
from trivet.errors import DeclarationError

__all__ = [
    "DETERMINISM",
    "FACTS",
    "MOVEMENT",
    "OPERATIONS",
    "REDUCING",
    "REDUCTIONS",
    "UNSIZED",
    "Closable",
    "Fused",
    "Group",
    "Lifecycle",
    "Member",
    "Message",
    "Movement",
    "PointToPoint",
    "Reduction",
    "Store",
    "Symmetric",
    "Work",
    "offers_of",
    "provides",
]

F = TypeVar("F", bound=Callable[..., Any])

REDUCTIONS: Final = ("sum", "prod", "max", "min", "band", "bor", "bxor")
"""What ``reduction`` may be; an average is a sum that core divides."""

REDUCING: Final = ("all_reduce", "reduce_scatter", "reduce")
MOVEMENT: Final = (
    "all_gather", "broadcast", "gather", "scatter", "all_to_all", "all_to_all_v", "batch",
)  # fmt: skip
FUSED: Final = ("all_reduce_add_rms_norm",)
OPERATIONS: Final = (*REDUCING, *MOVEMENT, "barrier", *FUSED)
UNSIZED: Final = ("all_to_all_v", "batch", "barrier")
"""Operations of which ranks do not know each other's sizes: no domain asks for ``nbytes``."""


FACTS: Final = {
    "x.dtype": "dtype of what is reduced; uint8 for movement",
    "reduction": "one of REDUCTIONS; empty for movement",
    "nbytes": "bytes of inp; of x for broadcast, of out for scatter",
    "symmetric": "True where out and inp lie in symmetric memory, at the same place on every rank",
    "size": "members of the group",
    "hosts": "machines that they are on",
    "local": "most members on one machine",
    "p2p": "True where every member reads the memory of every other one directly: its vendor "
    "claims it, and no kept probe (TRIVET_TOPOLOGY) found otherwise",
    "device": "type of the group's torch.device",
    "memory.KIND": "True where every member's ordinary tensors can be exported as KIND (ipc, ...)",
}
"""What a domain may ask for. All but the first four hold for the group and are agreed once."""

DETERMINISM: Final = ("run", "ranks", "slice", "order")
"""Claims about the bits of a reduction, each tested.

run: equal inputs give equal results, call after call. ranks: all ranks have the same result.
slice: an element's result does not depend on the size of the message or its place in it. order:
it is the sum in order of rank, accumulated in float32 or wider; it implies the other three.
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group, as it described itself when the group was made.

    Args:
        rank: its rank in the world.
        host: name of its machine, different for each.
        pid: its process, as its machine counts.
        device: its device, with the index.
    """

    rank: int
    host: str
    pid: int
    device: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group as a vendor sees it: everything but ``rank`` is the same on every member.

    Args:
        name: what errors call it.
        rank: position of this process.
        members: all members; those are ranks 0 to ``size - 1``.
        device: where this member's tensors lie.
        timeout: seconds that a call may wait for other ranks.
        reach: which member reads whose memory directly, as for ``p2p``: ``reach[reader][owner]``.
        traits: what holds for ordinary tensors of this member; None is unknown.
        token: text that no other group on these machines has, for the names of segments.
    """

    name: str
    rank: int
    members: tuple[Member, ...]
    device: torch.device
    timeout: float
    reach: tuple[tuple[bool, ...], ...] = ()
    traits: Traits | None = None
    token: str = ""

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def hosts(self) -> int:
        """The number of machines."""
        return len({member.host for member in self.members})


class Store(Protocol):
    """The group's own key-value store, which all members see; those of torch fit."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value, waiting for it to be written."""

    def check(self, keys: list[str], /) -> bool:
        """True when all keys are written."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0, and return its new value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return when all keys are written; raise when that takes longer."""


@runtime_checkable
class Work(Protocol):
    """An operation that was started; its inputs are not written, its outputs not read until then.

    A method that returns None is done, or is ordered on the current stream.
    """

    def wait(self, timeout: float | None = None) -> None:
        """Wait: on a device with streams the current stream waits, elsewhere the caller.

        Args:
            timeout: seconds that the caller waits at most; None is the group's own.
        """

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once; never blocks."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a batch: ``sends`` it to ``peer``, or receives it from there into ``x``."""

    sends: bool
    peer: int
    x: torch.Tensor


class Reduction(Protocol):
    """Operations that compute. After an error ``out`` is undefined, and ``inp`` as it was."""

    def all_reduce(self, out: torch.Tensor, inp: torch.Tensor, reduction: str) -> Work | None:
        """``out[i] = reduce over ranks of inp[i]``; ``out`` may be ``inp``, else they are apart."""

    def reduce_scatter(self, out: torch.Tensor, inp: torch.Tensor, reduction: str) -> Work | None:
        """``out[i] = reduce over ranks of inp[rank * n + i]``, for ``n`` elements of ``out``."""

    def reduce(
        self, out: torch.Tensor, inp: torch.Tensor, reduction: str, root: int
    ) -> Work | None:
        """As ``all_reduce``, written on rank ``root``; elsewhere ``out`` is empty."""


class Movement(Protocol):
    """Operations that move bytes. Sizes agree between ranks, but for ``all_to_all_v``."""

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Work | None:
        """``out[r * n + i] = inp[i] of rank r``."""

    def broadcast(self, x: torch.Tensor, root: int) -> Work | None:
        """Write ``x`` of rank ``root`` into every other rank's ``x``."""

    def gather(self, out: torch.Tensor, inp: torch.Tensor, root: int) -> Work | None:
        """As ``all_gather``, written on rank ``root``; elsewhere ``out`` is empty."""

    def scatter(self, out: torch.Tensor, inp: torch.Tensor, root: int) -> Work | None:
        """``out[i] = inp[rank * n + i] of rank root``; elsewhere ``inp`` is empty."""

    def all_to_all(self, out: torch.Tensor, inp: torch.Tensor) -> Work | None:
        """``out[r * n + i] = inp[rank * n + i] of rank r``."""

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
    ) -> Work | None:
        """Piece ``r`` of ``inp`` goes to rank ``r``; piece ``r`` of ``out`` comes from rank ``r``.

        The splits are byte counts, one a rank, 0 included; no rank knows all of them.
        """

    def barrier(self) -> Work | None:
        """Ends when every rank has started it."""


class PointToPoint(Protocol):
    """Messages between two ranks, from which core can build all movement."""

    def batch(self, messages: Sequence[Message]) -> Work | None:
        """Start messages of this rank, which must not wait for one another.

        The messages of a pair arrive in the order in which they were sent, within a batch and
        from one to the next. Not every rank takes part in a batch. It returns before the other
        ends have come, where there is anything to wait for.
        """


class Fused(Protocol):
    """A collective and the operator behind it, in one pass."""

    def all_reduce_add_rms_norm(
        self,
        out: torch.Tensor,
        residual: torch.Tensor,
        inp: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> Work | None:
        """``residual += sum over ranks of inp; out = rms_norm(residual, weight, eps)``.

        All are ``[tokens, hidden]`` but for ``weight``; ``nbytes`` and ``x.dtype`` are of ``inp``.
        """


@runtime_checkable
class Symmetric(Protocol):
    """Memory that every member of a group can address; of a provider, beside what it marks."""

    def symmetric(self, nbytes: int) -> Sequence[torch.Tensor]:
        """Allocate on every rank; every member calls it with the same size.

        Returns:
            The memory of each rank as this one sees it, by rank: ``uint8`` tensors ``[nbytes]``.
        """
        ...

    def release(self, memory: Sequence[torch.Tensor]) -> None:
        """Give back what ``symmetric`` returned; every member calls it."""
        ...


@runtime_checkable
class Closable(Protocol):
    """Of a provider: holds something that is given back when its group is closed."""

    def close(self) -> None:
        """Give everything back, also after a failure; waits for no other rank."""
        ...


@runtime_checkable
class Lifecycle(Protocol):
    """Of a provider: can be interrupted."""

    def abort(self) -> None:
        """Make every call under way on this rank raise ``CommAborted`` soon; from any thread."""
        ...


_SIGNATURES: Final = {
    name: getattr(protocol, name).__code__
    for protocol in (Reduction, Movement, PointToPoint, Fused)
    for name in OPERATIONS
    if name in vars(protocol)
}


@dataclass(frozen=True, eq=False)
class provides:  # noqa: N801  # it is written as a decorator
    """Records that a method of a provider makes an operation; returns that very method.

    It may be stacked, where a method claims more in one part of its domain than in another.

    Args:
        operation: one of ``OPERATIONS``.
        name: name within the plugin, which makes the provider id ``plugin/name``; the method's
            own by default.
        domain: the conjunction of terms on ``FACTS`` under which it is right.
        determinism: levels of ``DETERMINISM`` that it reaches; of reductions.
        compares: it sees when the arguments of other ranks differ, and raises ``GroupMismatch``.
        graph_safe: it may be captured into a device graph.
        on_request: it is a candidate only where an order list names it.

    Raises:
        DeclarationError: the operation or a level is unknown, or a term asks for no fact.
    """

    operation: str
    _: KW_ONLY
    name: str = ""
    domain: Sequence[Term] = ()
    determinism: Sequence[str] = ()
    compares: bool = False
    graph_safe: bool = False
    on_request: bool = False
    method: str = field(default="", init=False)

    def __post_init__(self) -> None:
        """Refuse what would only be found out when a group is made."""
        who = f"provides({self.operation!r}, name={self.name!r})"
        if self.operation not in OPERATIONS:
            raise DeclarationError(f"{who}: no such operation", fix=", ".join(OPERATIONS))
        for level in self.determinism:
            if level not in DETERMINISM:
                raise DeclarationError(f"{who}: no level {level!r}", fix=", ".join(DETERMINISM))
        known = set(FACTS) - ({"nbytes"} if self.operation in UNSIZED else set())
        for term in self.domain:
            for path in term.paths:
                if path not in known and not path.startswith("memory."):
                    raise DeclarationError(f"{who}: {term} asks for no fact of it", fix=f"{known}")
        object.__setattr__(self, "domain", tuple(self.domain))
        object.__setattr__(self, "determinism", tuple(self.determinism))

    def __call__(self, method: F) -> F:
        """Record it on a method, whose arguments must be those of the operation."""
        code, wanted = method.__code__, _SIGNATURES[self.operation]
        names = code.co_varnames[1 : code.co_argcount]
        if names != wanted.co_varnames[1 : wanted.co_argcount]:
            right = ", ".join(wanted.co_varnames[1 : wanted.co_argcount])
            raise DeclarationError(
                f"{method.__qualname__} provides {self.operation} and takes ({', '.join(names)})",
                fix=f"its arguments are ({right}), in this order",
            )
        object.__setattr__(self, "method", method.__name__)
        object.__setattr__(self, "name", self.name or method.__name__)
        method.__trivet_comm__ = (self, *getattr(method, "__trivet_comm__", ()))  # type: ignore[attr-defined]
        return method


def offers_of(provider: type) -> tuple[provides, ...]:
    """What a provider class marked, in the order in which it is written."""
    methods: dict[str, object] = {}
    for cls in reversed(provider.__mro__):
        methods.update(vars(cls))
    found = (getattr(method, "__trivet_comm__", ()) for method in methods.values())
    return tuple(claim for claims in found for claim in claims)
