"""One call of a group: chosen, recorded, made; and what its failure means for the group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trivet.collectives.agreement import Agreement, Record
from trivet.collectives.candidates import LOG
from trivet.collectives.diagnosis import Diagnosis, told_of
from trivet.collectives.health import HARMLESS, Health, meaning
from trivet.collectives.recorder import CHECK, ENDED, ERROR, PROVIDER, Call, Recorder
from trivet.collectives.table import Table, bound
from trivet.collectives.work import Meeting, Started
from trivet.contracts.collectives import UNSIZED, Group, Lifecycle, Symmetric, Work
from trivet.errors import CommAborted, CommError, GroupMismatch


@dataclass
class Launcher:
    """Makes the calls of one group.

    Args:
        group: its members.
        table: who makes what.
        agreement: how its members talk beside the data.
        health: whether it can still be used.
        recorder: remembers the calls.
        diagnosis: finds out about the other ranks when one fails.
        check: compare every call across ranks before it is made.
        sessions: what the providers made for this group, by plugin and class, in order.
        dissolve: gives torch's group back.
        lock: what was chosen, as plain values.
        messages: messages that check mode has not let through yet.
        refused: a sentence for each provider that could not be made.
    """

    group: Group
    table: Table
    agreement: Agreement
    health: Health
    recorder: Recorder
    diagnosis: Diagnosis
    check: bool
    sessions: Sequence[tuple[str, object]]
    dissolve: Callable[[], None]
    lock: Mapping[str, Any]
    messages: list[Meeting] = field(default_factory=list)
    refused: Sequence[str] = ()

    def launch(
        self,
        operation: str,
        x: Tensor,
        reduction: str,
        arguments: Sequence[Any],
        *,
        peer: int | None = None,
        symmetric: bool = False,
        out: Tensor | None = None,
        finish: Callable[[], object] | None = None,
    ) -> Started:
        """Start a call; ``x`` is the tensor whose dtype and bytes decide who makes it.

        Raises:
            CommUnsupported: nobody does; the group is as it was.
            CommError: it failed at once, and the group with it.
        """
        numel = x.numel()
        nbytes = 0 if operation in UNSIZED else numel * x.element_size()
        candidate = self.table.find(operation, x.dtype, reduction, nbytes, symmetric)
        call = self.recorder.begin(operation, x.dtype, numel, reduction, peer, candidate.id)
        try:
            work = bound(candidate)(*arguments)
        except BaseException as error:
            failure = self.failed(error, call)
            if not isinstance(error, Exception):
                raise
            raise failure from error
        if work is None and finish is None:
            call[ENDED] = time.time()
        return Started(call, work, self.failed, out, finish)

    def parts(self, operation: str, x: Tensor, reduction: str, *arguments: Any) -> Work | None:
        """Start a part of a composition; its failure is that of the whole."""
        nbytes = 0 if operation in UNSIZED else x.numel() * x.element_size()
        work: Work | None = bound(self.table.find(operation, x.dtype, reduction, nbytes))(
            *arguments
        )
        return work

    def failed(self, error: BaseException, call: Call) -> CommError:
        """The group's error for what a provider raised; unless it is harmless, the group ends."""
        where = f"{self.health.where} on rank {self.group.rank} of {self.group.size}"
        provider = call[PROVIDER]
        if not isinstance(error, Exception):
            found = CommError(f"interrupted by {type(error).__name__}")
        elif self.health.aborted.is_set():
            found = CommAborted("the group was aborted")
        else:
            found = meaning(error, provider)
        if isinstance(found, HARMLESS):
            said = told_of(found, call, where)
            call[ERROR] = said.what
            return said
        if found is self.health.failure:  # a part of the call has said it already
            call[ERROR] = found.what
            return found
        if provider == CHECK and isinstance(found, GroupMismatch):
            call[ERROR] = found.what
            return found
        said = self.diagnosis.of(found, call, where)
        call[ERROR] = said.what
        if self.health.failure is None:
            self.health.fail(said)
            self._interrupt()
        self.recorder.write()
        return said

    def compare(self, record: Record) -> None:
        """In check mode, compare a call with those of the other ranks before it is made.

        Raises:
            GroupMismatch: they differ; nothing was communicated, and the group is as it was.
            CommTimeout: another rank did not come; the group has failed.
        """
        self.compared(record, lambda: self.agreement.agree(record))

    def compared(self, record: Record, exchange: Callable[[], None]) -> None:
        """As ``compare``, where equality is not the rule."""
        if not self.check:
            return
        call = self.recorder.begin(str(record["operation"]), torch.uint8, 0, "", None, CHECK)
        try:
            exchange()
        except CommError as error:
            call[ERROR] = error.what
            if not isinstance(error, GroupMismatch):
                self.health.fail(error)
                self._interrupt()
                self.recorder.write()
            raise
        call[ENDED] = time.time()

    def abort(self) -> None:
        """End the group on this rank, from any thread; what is under way raises soon."""
        self.health.aborted.set()
        self.health.fail(CommAborted(f"{self.health.where} was aborted"))
        self._interrupt()
        self.recorder.write()

    def _interrupt(self) -> None:
        """End what providers have under way; other ranks that wait for this one learn of it."""
        for plugin, session in self.sessions:
            if isinstance(session, Lifecycle):
                try:
                    session.abort()
                except Exception as error:  # noqa: BLE001 - of a vendor; the group has failed
                    LOG.warning("%s: abort of %s: %s", self.health.where, plugin, error)

    def symmetric(self) -> Symmetric | None:
        """The provider whose memory every member can address, if there is one."""
        return next((s for _, s in self.sessions if isinstance(s, Symmetric)), None)
