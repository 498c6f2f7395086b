"""Failures at chosen calls, for tests of what stands above an allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.adaptors.adaptor import Adaptor

_FAIL: Final = ("allocate", "suspend", "resume", "export", "open")


class Faulty(Adaptor):
    """Fails chosen calls before the upstream sees them, with the error that the contract allows.

    It is as safe from threads as its upstream. ``calls`` and ``failed`` count by operation.

    Args:
        upstream: the allocator that is asked in the other calls.
        every: the k-th, 2k-th, ... call of each operation fails; 0 is none.
        at: further calls of each operation that fail, counted from 1.
        on: the operations that fail: of allocate, suspend, resume, export and open.
    """

    def __init__(
        self,
        upstream: Allocator,
        *,
        every: int = 0,
        at: Collection[int] = (),
        on: Collection[str] = _FAIL,
    ) -> None:
        unknown = sorted(set(on) - set(_FAIL))
        if unknown or every < 0:
            msg = f"failures of {', '.join(unknown) or f'every {every}-th call'} cannot be made"
            raise MemoryFault(msg, fix=f"operations are {', '.join(_FAIL)}; every is 0 or more")
        self._every, self._at, self._on = every, frozenset(at), frozenset(on)
        self.calls: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        super().__init__(upstream)

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer, or ``OutOfMemory``."""
        self._count("allocate", nbytes, tag)
        return self.upstream.allocate(nbytes, tag=tag)

    def _count(self, name: str, nbytes: int, tag: str = "") -> None:
        self.calls[name] += 1
        number = self.calls[name]
        due = number in self._at or (self._every and number % self._every == 0)
        if name not in self._on or not due:
            return
        self.failed[name] += 1
        what = f"call {number} of {name} fails as it was told to"
        fix = "this is a test; handle the error"
        if name in {"allocate", "resume"}:
            raise OutOfMemory(what, requested_bytes=nbytes, tag=tag, retryable=True, fix=fix)
        raise MemoryFault(what, fix=fix)

    def _passed(self, name: str, inner: Any) -> Any:
        if name not in _FAIL:
            return inner

        def counted(what: Any, *args: Any) -> Any:
            self._count(name, what.numel() if isinstance(what, torch.Tensor) else 0)
            return inner(what, *args)

        counted.__name__ = name
        return counted
