"""Every error that trivet raises, as one tree.

One class is one situation. Each carries a stable ``code``, the usual ``cause`` and the
``command`` that shows more; the error pages of the documentation are generated from these
attributes, so a new class brings its own page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch


class TrivetError(Exception):
    """Root of the tree: catch it to catch everything that trivet raises on purpose."""

    code: ClassVar[str] = "trivet"
    cause: ClassVar[str] = "See the subclass."
    command: ClassVar[str] = "trivet doctor"

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, what: str, *, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(what)

    def more(self) -> str:
        """The command that shows more."""
        return self.command

    def __str__(self) -> str:
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.what}{fix}\n  [{self.code}; more: {self.more()}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


# --- plugins ---------------------------------------------------------------------------------


class PluginError(TrivetError):
    """A plugin could not be used."""

    cause = "A vendor package is missing, does not fit this core, or fails while it loads."


class PluginNotFound(PluginError):
    """A device or plugin was asked for by a name that no installed distribution offers."""

    cause = "The vendor package is not installed here, or the name is misspelt."


class AmbiguousDevice(PluginError):
    """``auto`` found two devices that are equally entitled."""

    cause = "Two vendor packages both say that their hardware is present."


class PluginIncompatible(PluginError):
    """A plugin was built for another range of contract versions; its code was not imported."""

    cause = "Core and vendor package are of different generations."


class PluginBroken(PluginError):
    """A plugin is installed but cannot do what it says (import, hook, missing hardware)."""

    cause = "The vendor package raises while it is imported, probed or started."


# --- operators -------------------------------------------------------------------------------


class OperatorError(TrivetError):
    """Something about an operator, its implementations or its arguments is wrong."""

    cause = "A declaration, an implementation or a call does not fit."
    command = "trivet ops"

    def __init__(self, what: str, *, operator: str = "", fix: str = "") -> None:
        self.operator = operator
        super().__init__(what, fix=fix)

    def more(self) -> str:
        """The command, with the operator's name where it is known."""
        return self.command.replace("OPERATOR", self.operator or "OPERATOR")


class UnknownName(OperatorError, AttributeError):
    """An operator, provider, dim, argument or site of that name does not exist."""

    cause = "A misspelt name; the near misses are listed."


class DeclarationError(OperatorError):
    """An operator, an implementation or a domain is declared in a way that cannot be right."""

    cause = "A dim, dtype or effect in the declaration contradicts the signature."


class SignatureDrift(OperatorError):
    """An implementation's names, order, defaults or version differ from the operator's."""

    cause = "The vendor package was written for another version of the operator."


class DomainError(OperatorError, ValueError):
    """An implementation was called with arguments outside its declared domain."""

    cause = "A kernel was called directly, or a promised fact was not true."
    command = "trivet explain OPERATOR"


class NoImplementation(OperatorError):
    """No implementation may run this operator here; the trace says why for each."""

    cause = "Strict mode refuses the reference, or an order list forbids what would fit."
    command = "trivet explain OPERATOR"

    def __init__(
        self, what: str, *, trace: Iterable[object] = (), operator: str = "", fix: str = ""
    ) -> None:
        self.trace = tuple(trace)
        lines = "".join(f"\n    {row}" for row in self.trace)
        super().__init__(what + lines, operator=operator, fix=fix)


class ContractBroken(OperatorError):
    """An implementation did something that its operator's declaration excludes."""

    cause = "A kernel writes an input, aliases an output, or returns another shape or dtype."
    command = "trivet-conformance run --plugin NAME"

    def __init__(self, what: str, *, kind: str, fix: str = "") -> None:
        self.kind = kind
        super().__init__(what, fix=fix)


class PromiseBroken(OperatorError):
    """A fact promised to ``bind`` or ``plan`` was not true of a call (``TRIVET_CHECK=1``)."""

    cause = "The engine binds with facts that do not hold for every call of that site."
    command = "trivet explain OPERATOR"


class GradUnsupported(OperatorError):
    """A forward-only implementation was given an input that requires grad."""

    cause = "Inference kernels run outside torch.no_grad() or torch.inference_mode()."


# --- configuration, locks, order -------------------------------------------------------------


class ConfigError(TrivetError):
    """A configuration file or environment variable is not understood."""

    cause = "An unknown key or variable, or a value that cannot be parsed."


class LockMismatch(TrivetError):
    """What would be chosen now differs from what the lock file recorded."""

    cause = "A package, setting or machine changed since the lock was written."
    command = "trivet plan SITES --lock FILE"

    def __init__(self, what: str, *, fields: Iterable[str] = (), fix: str = "") -> None:
        self.fields = tuple(fields)
        super().__init__(what + "".join(f"\n    {f}" for f in self.fields), fix=fix)


class OrderError(TrivetError):
    """A step was taken before the one that it needs; the message names the missing one.

    The order is discover, plan, build, load, prepare, capture.
    """

    cause = "A step of the start-up was left out or came too late."


# --- capture ---------------------------------------------------------------------------------


class CaptureUnsafe(OperatorError):
    """Something was done in a capture that cannot be replayed without the host."""

    cause = "A result's value or size was read by the host, or a kernel ran unseen."
    command = "trivet explain OPERATOR --mode captured"


# --- memory ----------------------------------------------------------------------------------


class MemoryFault(TrivetError):
    """Something about an allocation is wrong."""

    code = "memory"
    cause = "See the subclass."


class OutOfMemory(MemoryFault, torch.OutOfMemoryError):
    """An allocation does not fit; also a ``torch.OutOfMemoryError``.

    All byte counts are plain integers; ``free_bytes`` and ``limit_bytes`` are None when unknown.
    The text ends with those that are known.
    """

    cause = "The pool, the limit or the device is full."
    command = "trivet memory"

    def __init__(  # one keyword a fact
        self,
        what: str,
        *,
        requested_bytes: int,
        free_bytes: int | None = None,
        limit_bytes: int | None = None,
        tag: str = "",
        retryable: bool = False,
        fix: str = "",
    ) -> None:
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes
        self.limit_bytes = limit_bytes
        self.tag = tag
        self.retryable = retryable
        free = "" if free_bytes is None else f"\n    free: {free_bytes} bytes"
        limit = "" if limit_bytes is None else f"\n    limit: {limit_bytes} bytes"
        super().__init__(what + free + limit, fix=fix)


class InvalidBuffer(MemoryFault):
    """A block or buffer is not owned by this pool, or was freed before."""

    cause = "A double free, or a block of another pool."


class NotResident(MemoryFault):
    """A buffer is used while its memory is elsewhere: suspended, or moved to another tier."""

    cause = "The engine sleeps, or the buffer was spilled and not fetched back."


class PartialReclaim(MemoryFault):
    """Some buffers were suspended, resumed or moved and others were not; each is one or the other.

    Args:
        what: what was tried.
        done: names of the buffers that are as asked for.
        failed: name -> why it is as it was.
    """

    cause = "Memory ran out, or a device failed, in the middle of a batch."

    def __init__(
        self, what: str, *, done: Iterable[str], failed: Mapping[str, str], fix: str = ""
    ) -> None:
        self.done, self.failed = tuple(done), dict(failed)
        lines = "".join(f"\n    {name}: {why}" for name, why in self.failed.items())
        super().__init__(f"{what}\n    {len(self.done)} done, not:{lines}", fix=fix)


class DataCorrupt(MemoryFault):
    """What was stored in a file is not what comes back."""

    cause = "A file was truncated, or written by another process or version."


class AddressMoved(MemoryFault):
    """A tensor that a captured graph reads or writes was freed, or lies elsewhere now."""

    cause = "A weight, cache or table was replaced, resized or released after the capture."


# --- communication ---------------------------------------------------------------------------


class CommError(TrivetError):
    """A collective operation or its group failed.

    Args:
        what: what happened, to whom.
        ranks: the ranks that it is about: did not come, ended, differ; as far as it is known.
        operation: the operation that it happened in.
        seq: number of that call in its group, from 0 up; None outside of a call.
    """

    cause = "A rank failed, timed out, or passed arguments that do not match."
    command = "trivet comm dump"

    def __init__(
        self,
        what: str,
        *,
        ranks: Iterable[int] = (),
        operation: str = "",
        seq: int | None = None,
        fix: str = "",
    ) -> None:
        self.ranks, self.operation, self.seq = tuple(ranks), operation, seq
        super().__init__(what, fix=fix)


class CommArgumentError(CommError, ValueError):
    """An argument cannot be right; nothing was communicated, and the group is as it was."""

    cause = "A rank that does not exist, a shape that cannot be shared out, splits that do not add."


class CommUnsupported(CommError):
    """Nobody makes this operation for this dtype or reduction; the group is as it was."""

    cause = "Neither a vendor nor torch.distributed has it, and it cannot be composed."
    command = "trivet comm explain"


class GroupMismatch(CommError):
    """Ranks do not say the same of a group or of a call; the text has what two of them say."""

    cause = "The ranks' programs, packages, settings or inputs differ."


class CommTimeout(CommError):
    """Other ranks did not come in time; ``ranks`` are those. The group has failed."""

    cause = "A rank is slow, stopped, or waits at another call."


class PeerLost(CommError):
    """A rank ended, or cannot be reached any more; ``ranks`` are those. The group has failed."""

    cause = "A process of the group was killed or crashed, or its machine is gone."


class CommAborted(CommError):
    """The group was aborted on this rank; it has failed."""

    cause = "``abort`` was called, from this or another thread."


class CommUnavailable(CommError):
    """No process group backend can serve this device."""

    cause = "torch was built without torch.distributed, or no backend fits the device."


def _revive(cls: type[TrivetError], args: tuple[Any, ...], state: dict[str, Any]) -> TrivetError:
    """An error that crossed a process boundary, with everything it carried."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def all_errors() -> Iterator[type[TrivetError]]:
    """Every class of the tree, root first, parents before children, in order of definition."""
    queue: list[type[TrivetError]] = [TrivetError]
    while queue:
        cls = queue.pop(0)
        yield cls
        queue.extend(c for c in cls.__subclasses__() if c.__module__ == __name__)
