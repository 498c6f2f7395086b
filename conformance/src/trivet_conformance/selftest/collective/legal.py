"""Legal collectives: what may differ from one vendor to the next, and what may be absent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import between, dtype, one_of
from trivet.contracts.collectives import Work, provides
from trivet_conformance.selftest.collective.through import DOMAIN, SIZED, Through


class everything_through_the_store(Through):
    """Reductions, movement, messages and a barrier."""


class one_operation_of_one_dtype:
    """The least that a vendor may bring."""

    def __init__(self, group: Any, store: Any) -> None:
        self._whole = Through(group, store)

    @provides("all_reduce", domain=[dtype("x", "float32"), one_of("reduction", "sum"),
                                    between("nbytes", 16, 1024)])  # fmt: skip
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        self._whole.all_reduce(out, inp, reduction)

    def abort(self) -> None:
        self._whole.abort()


class sums_backwards(Through):
    """Another order of the ranks, the same on all of them; it claims no order."""

    @provides("all_reduce", determinism=["run", "ranks", "slice"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        rows = self.rows(f"all_reduce {reduction}", inp)
        out.copy_(self.combined(rows[::-1], reduction))

    @provides("reduce_scatter", domain=DOMAIN)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        super().reduce_scatter(out, inp, reduction)


class _Thread(Work):
    """A call that goes on in a thread."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(act,))
        self._thread.start()

    def _run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._error.append(error)

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)
        if self._error:
            raise self._error[0]

    def is_completed(self) -> bool:
        return not self._thread.is_alive()


class works_in_a_thread(Through):
    """What it returns is done later; its calls wait for one another."""

    before: Work | None = None

    @provides("all_gather", domain=SIZED)
    def all_gather(self, out: Tensor, inp: Tensor) -> Work:
        before, self.before = self.before, None

        def act() -> None:
            if before is not None:
                before.wait()
            Through.all_gather(self, out, inp)

        self.before = _Thread(act)
        return self.before


class scribbles_over_its_result_first(Through):
    """What ``out`` holds meanwhile is its own business."""

    @provides("all_gather", domain=SIZED)
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        given = inp.clone()
        out.fill_(torch.iinfo(out.dtype).max)
        super().all_gather(out, given)


def two_classes() -> list[type]:
    """Several providers, the better one for small sizes."""

    class Small(Through):
        @provides("all_reduce", name="small", determinism=["order"],
                  domain=[*DOMAIN[:2], between("nbytes", 0, 64)])  # fmt: skip
        def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
            super().all_reduce(out, inp, reduction)

    return [Small, one_operation_of_one_dtype]


LEGAL: Final[tuple[Callable[..., Any], ...]] = (
    everything_through_the_store, one_operation_of_one_dtype, sums_backwards, works_in_a_thread,
    scribbles_over_its_result_first, two_classes,
)  # fmt: skip
"""Variants that no family may refuse."""
