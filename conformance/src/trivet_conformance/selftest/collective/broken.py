"""Wrong collectives, each with the family that must kill it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import between, dtype, one_of
from trivet.contracts.collectives import Group, Message, Store, Work, provides
from trivet_conformance.collective.errors import SEGMENTS
from trivet_conformance.selftest.collective.through import DOMAIN, MOST, SIZED, Through

_PAIR: Final = 2

LEFT: Final = "variant-"
"""How the names of segments begin that a variant leaves behind; who judged it takes them away."""


class sums_in_half(Through):
    """It accumulates in a dtype that is too narrow."""

    def combined(self, rows: Sequence[Tensor], reduction: str) -> Tensor:
        return super().combined([r.half().to(r.dtype) for r in rows], reduction)


class parts_in_the_order_of_arrival(Through):
    """Its own part comes first."""

    @provides("all_gather", domain=SIZED)
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        rows = self.rows("all_gather", inp)
        out.copy_(torch.cat([rows[self.group.rank], *rows[: self.group.rank],
                             *rows[self.group.rank + 1 :]]))  # fmt: skip


class last_element_dropped(Through):
    """What is left when elements are shared out is not reduced."""

    @provides("all_reduce", determinism=["order"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        whole = self.combined(self.rows("all_reduce", inp), reduction)
        even = len(out) // self.group.size * self.group.size
        out.copy_(inp)
        out[:even] = whole[:even]


class root_is_always_the_first(Through):
    """It ignores the root."""

    @provides("broadcast", domain=SIZED)
    def broadcast(self, x: Tensor, root: int) -> None:
        del root
        super().broadcast(x, 0)


class in_place_adds_itself_twice(Through):
    """It clears what is also its input."""

    @provides("all_reduce", determinism=["order"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        rows = self.rows("all_reduce", inp)
        out.copy_(inp)
        others = [r for i, r in enumerate(rows) if i != self.group.rank]
        out.copy_(self.combined([out, *others], reduction))
        if out is inp:
            out += rows[self.group.rank]


class input_is_scratch(Through):
    """It leaves the sum in its input, too."""

    @provides("all_reduce", determinism=["order"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        super().all_reduce(out, inp, reduction)
        inp.copy_(out)


class positions_are_ranks_of_the_world(Through):
    """In a part of the world it looks for its own place there."""

    @provides("all_reduce", determinism=["order"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        rows = self.rows("all_reduce", inp)
        me = self.group.members[self.group.rank].rank
        out.copy_(self.combined(rows, reduction) if me < len(rows) else torch.zeros_like(inp))


class nothing_is_waited_for(Through):
    """With no elements it waits for ever."""

    @provides("all_gather", domain=SIZED)
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        while not len(inp):
            time.sleep(0.1)
        super().all_gather(out, inp)


class _Early(Work):
    def wait(self, timeout: float | None = None) -> None:
        del timeout

    def is_completed(self) -> bool:
        return True


class done_before_it_is_done(Through):
    """What it returns says at once that it is done."""

    @provides("broadcast", domain=SIZED)
    def broadcast(self, x: Tensor, root: int) -> Work:
        super().broadcast(given := x.clone(), root)
        threading.Timer(0.05, x.copy_, [given]).start()
        return _Early()


class barrier_of_one(Through):
    """It waits for nobody."""

    @provides("barrier")
    def barrier(self) -> None:
        time.sleep(0.02 * self.group.rank)


class later_messages_first(Through):
    """Of two messages in one batch the second one is delivered first."""

    @provides("batch")
    def batch(self, messages: Sequence[Message]) -> Work:
        ordered = [m for m in messages if m.sends][::-1] + [m for m in messages if not m.sends]
        return super().batch(ordered)


class own_part_is_added_last(Through):
    """Each rank adds in another order."""

    @provides("all_reduce", determinism=["run", "ranks"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        rows = self.rows("all_reduce", inp)
        mine = rows.pop(self.group.rank)
        total = self.combined(rows, reduction) if rows else mine
        nudge = self.group.rank * (reduction == "sum") * mine.is_floating_point()
        exact = self.combined([total, mine], reduction)
        whole = exact.double().eq(exact.double().round()).all()
        out.copy_(exact if whole or not nudge else exact * (1 + 2.0**-7))


class order_by_place(Through):
    """Where an element lies decides how it is rounded."""

    @provides("all_reduce", determinism=["slice"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        super().all_reduce(out, inp, reduction)
        if inp.is_floating_point() and not out.double().eq(out.double().round()).all():
            out[::2] = out[::2].to(torch.bfloat16).to(out.dtype) * (1 + 2.0**-7)


class another_result_each_time(Through):
    """It starts at another rank each time."""

    @provides("all_reduce", determinism=["run"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        super().all_reduce(out, inp, reduction)
        if inp.is_floating_point() and not out.double().eq(out.double().round()).all():
            out *= 1 + (self.calls % 2) * 2.0**-7


class rounds_at_every_step(Through):
    """It claims the order, and rounds after each addition."""

    def combined(self, rows: Sequence[Tensor], reduction: str) -> Tensor:
        cut = [r if not r.is_floating_point() or r.eq(r.round()).all() else r * (1 + 2.0**-7)
               for r in rows]  # fmt: skip
        return super().combined(cut, reduction)


class claims_a_product(Through):
    """It claims a reduction, and raises."""

    @provides("all_reduce", domain=[dtype("x", "float32", "int32"),
                                    one_of("reduction", "sum", "max", "prod")])  # fmt: skip
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        if reduction == "prod":
            raise ValueError("no such kernel")
        super().all_reduce(out, inp, reduction)


class another_number_for_a_dtype(Through):
    """It claims a dtype, and makes it as one of the same size."""

    @provides("all_reduce", domain=[dtype("x", "float32", "float16"), one_of("reduction", "sum"),
                                    between("nbytes", 0, MOST)])  # fmt: skip
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        if inp.dtype != torch.float16:
            super().all_reduce(out, inp, reduction)
            return
        as_other = torch.empty_like(out).view(torch.bfloat16)
        super().all_reduce(as_other, inp.view(torch.bfloat16), reduction)
        out.copy_(as_other.view(torch.float16))


class edge_claimed_too_far(Through):
    """Its buffers are smaller than its claim."""

    @provides("all_gather", domain=[between("nbytes", 0, 2 * MOST)])
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        super().all_gather(out, inp)
        if len(inp) > MOST:
            out[-1] = 0


class exchanges_are_of_equal_sizes(Through):
    """What one rank sends is taken to be as long as what it gets."""

    @provides("batch")
    def batch(self, messages: Sequence[Message]) -> Work:
        gets = min((len(m.x) for m in messages if not m.sends), default=1 << 40)
        cut = [Message(True, m.peer, _zeroed(m.x, gets)) if m.sends else m for m in messages]
        return super().batch(cut if len(messages) == _PAIR else messages)


def _zeroed(x: Tensor, start: int) -> Tensor:
    found = x.clone()
    found[start:] = 0
    return found


class differences_are_not_seen(Through):
    """It claims to compare, and fills what is missing."""

    def rows(self, what: str, x: Tensor) -> list[Tensor]:
        del what
        raw = bytes(x.view(torch.uint8).numpy().tobytes())
        found = [_fitted(one, len(raw)) for one in self.everybody("any", raw)]
        return [torch.frombuffer(one, dtype=x.dtype) if one else x[:0] for one in found]


def _fitted(raw: bytes, length: int) -> bytearray:
    return bytearray(raw[:length].ljust(length, b"\0"))


class waits_for_the_dead(Through):
    """It has no deadline."""

    def __init__(self, group: Group, store: Store) -> None:
        super().__init__(Group(group.name, group.rank, group.members, group.device, 600.0), store)

    def lives(self, owner: int) -> bool:
        del owner
        return True


class deaf_to_abort(Through):
    """An abort changes nothing."""

    def abort(self) -> None:
        pass


class errors_of_its_own(Through):
    """A rank that is gone is a plain error of the system, and the input is lost."""

    @provides("all_reduce", determinism=["order"], domain=DOMAIN)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        try:
            super().all_reduce(out, inp, reduction)
        except Exception as error:
            inp.zero_()
            raise ConnectionResetError("connection reset") from error


class segments_stay(Through):
    """What it has in shared memory is there after its end."""

    def __init__(self, group: Group, store: Store) -> None:
        super().__init__(group, store)
        (SEGMENTS / f"{LEFT}{group.token}-{group.rank}").touch()


class descriptors_stay(Through):
    """It opens files for each group, and closes none."""

    def __init__(self, group: Group, store: Store) -> None:
        super().__init__(group, store)
        for _ in range(4):
            os.open(os.devnull, os.O_RDONLY)


class cannot_be_made_on_one_rank(Through):
    """The second rank has no card."""

    def __init__(self, group: Group, store: Store) -> None:
        super().__init__(group, store)
        if group.rank == 1:
            raise OSError("no card")


def of_other_ranks() -> type:
    """What it claims depends on the process."""
    narrow = [dtype("x", "float32"), between("nbytes", 0, 1024 + os.getpid() % 1009)]

    class Narrow(Through):
        @provides("all_reduce", domain=narrow)
        def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
            super().all_reduce(out, inp, reduction)

    return Narrow


BROKEN: Final[Mapping[str, tuple[Callable[..., Any], ...]]] = MappingProxyType(
    {
        "comm.value": (
            sums_in_half, parts_in_the_order_of_arrival, last_element_dropped,
            root_is_always_the_first, in_place_adds_itself_twice, input_is_scratch,
            positions_are_ranks_of_the_world, nothing_is_waited_for, done_before_it_is_done,
            barrier_of_one, later_messages_first,
        ),
        "comm.domain": (claims_a_product, another_number_for_a_dtype, edge_claimed_too_far),
        "comm.determinism": (
            own_part_is_added_last, order_by_place, another_result_each_time, rounds_at_every_step,
        ),
        "comm.composition": (exchanges_are_of_equal_sizes,),
        "comm.errors": (
            differences_are_not_seen, waits_for_the_dead, deaf_to_abort, errors_of_its_own,
            segments_stay, descriptors_stay,
        ),
        "comm.agreement": (cannot_be_made_on_one_rank, of_other_ranks),
    }
)  # fmt: skip
"""Family -> the variants that it must kill."""
