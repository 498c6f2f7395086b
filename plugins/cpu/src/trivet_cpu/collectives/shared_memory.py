"""Collective operations of ranks on one machine, through memory that they share.

Each operation is one call of ``kernels/collectives.cpp``, which returns when it is done. Reductions
are made in order of rank, element by element, in float32 where the dtype is narrower: their bits
depend neither on the size of a message nor on how it is cut.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.collectives import Group, Message, Store, provides
from trivet.contracts.terms import Term, between, dtype, one_of
from trivet.errors import OutOfMemory
from trivet_cpu.collectives import failures, segment
from trivet_cpu.collectives.messages import Messages, address
from trivet_cpu.collectives.native import DTYPES, MAX_RANKS, REDUCING, interpreter, native

SPIN: Final = 50_000  # ns that a rank looks before it sleeps, where it has a core to itself
SLOT: Final = 1 << 20  # bytes that a rank stages at once; what two ranks work on fits a cache
_PAGE: Final = mmap.PAGESIZE

_HERE: Final[tuple[Term, ...]] = (one_of("hosts", 1), between("size", 1, MAX_RANKS))
_INTEGERS: Final = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
_FLOATS: Final = (
    "float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_COMPLEX: Final = ("complex64", "complex128", "complex32")


def _reduces(operation: str) -> Callable[[Any], Any]:
    """Marks a method with everything that it reduces."""
    domains: tuple[tuple[Term, ...], ...] = (
        (dtype("x", *_INTEGERS),),
        (dtype("x", *_FLOATS), one_of("reduction", "sum", "prod", "max", "min")),
        (dtype("x", *_COMPLEX), one_of("reduction", "sum")),
    )

    def mark(method: Any) -> Any:
        for domain in domains:
            method = provides(
                operation, name="shared_memory", domain=[*domain, *_HERE], determinism=["order"],
                compares=True,
            )(method)  # fmt: skip
        return method

    return mark


def _moves(operation: str, *, compares: bool = True) -> Callable[[Any], Any]:
    return provides(operation, name="shared_memory", domain=_HERE, compares=compares)


class SharedMemoryRanks:
    """The ranks of one group, all on this machine.

    Args:
        group: the group.
        store: what they tell each other first goes through it.

    Raises:
        CommUnsupported: they cannot share memory, on all ranks alike.
        CommTimeout: a rank did not come.
    """

    def __init__(self, group: Group, store: Store) -> None:
        self.group = group
        self._talk = segment.Talk(group, store)
        said = self._talk.say(segment.describe)
        segment.require_one_machine(said)
        spin = SPIN if segment.may_spin(said) else 0
        ring = max(1 << 14, min(1 << 18, (1 << 20) // group.size))
        size = native("ranks_bytes")(group.size, SLOT, ring)
        memory = self._share(size, f"group {group.name}")
        seconds = min(group.timeout, 1e9)

        def opened() -> segment.Record:
            self.ranks: int = native("ranks_open")(
                segment.address_of(memory), group.rank, group.size, SLOT, ring, spin,
                int(seconds * 1e9), ctypes.byref(interpreter()),
            )  # fmt: skip
            if not self.ranks:
                raise OutOfMemory(f"no room to touch {size} bytes", requested_bytes=size)
            weakref.finalize(self, native("ranks_free"), self.ranks)
            return {}

        self._talk.say(opened)
        native("ranks_see")(self.ranks)
        self._memory: mmap.mmap | None = memory
        self._ending = threading.Lock()
        self._messages: dict[int, Message] = {}
        self._symmetric: list[tuple[int, Sequence[Tensor]]] = []

    def _share(self, nbytes: int, what: str) -> mmap.mmap:
        """Memory that every rank maps; all ranks call it."""
        with ExitStack() as stack:
            first = self.group.rank == 0
            said = self._talk.say(
                lambda: stack.enter_context(segment.made(nbytes, what)) if first else {}
            )
            found: list[mmap.mmap] = []

            def mapping() -> segment.Record:
                found.append(segment.mapped(said[0]))
                return {}

            self._talk.say(mapping)
        return found[0]

    def refuse(self, code: int) -> None:
        """Raise what a call returned; ``CommError`` of some class."""
        failures.refuse(self.group, self.ranks, code)

    # --- reductions --------------------------------------------------------------------------

    @_reduces("all_reduce")
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """``out[i] = reduce over ranks of inp[i]``."""
        code = native("all_reduce")(
            self.ranks, out.data_ptr(), inp.data_ptr(), inp.numel(), DTYPES[inp.dtype],
            REDUCING[reduction],
        )  # fmt: skip
        if code:
            self.refuse(code)

    @_reduces("reduce_scatter")
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """``out[i] = reduce over ranks of inp[rank * n + i]``."""
        code = native("reduce_scatter")(
            self.ranks, out.data_ptr(), inp.data_ptr(), out.numel(), DTYPES[inp.dtype],
            REDUCING[reduction],
        )  # fmt: skip
        if code:
            self.refuse(code)

    @_reduces("reduce")
    def reduce(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> None:
        """As ``all_reduce``, written on rank ``root``."""
        code = native("reduce")(
            self.ranks, out.data_ptr(), inp.data_ptr(), inp.numel(), DTYPES[inp.dtype],
            REDUCING[reduction], root,
        )  # fmt: skip
        if code:
            self.refuse(code)

    # --- movement ----------------------------------------------------------------------------

    @_moves("all_gather")
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        """``out[r * n + i] = inp[i] of rank r``."""
        code = native("all_gather")(self.ranks, out.data_ptr(), inp.data_ptr(), inp.nbytes)
        if code:
            self.refuse(code)

    @_moves("broadcast")
    def broadcast(self, x: Tensor, root: int) -> None:
        """Write ``x`` of rank ``root`` into every other rank's ``x``."""
        code = native("broadcast")(self.ranks, x.data_ptr(), x.nbytes, root)
        if code:
            self.refuse(code)

    @_moves("gather")
    def gather(self, out: Tensor, inp: Tensor, root: int) -> None:
        """As ``all_gather``, written on rank ``root``."""
        code = native("gather")(self.ranks, out.data_ptr(), inp.data_ptr(), inp.nbytes, root)
        if code:
            self.refuse(code)

    @_moves("scatter")
    def scatter(self, out: Tensor, inp: Tensor, root: int) -> None:
        """``out[i] = inp[rank * n + i] of rank root``."""
        code = native("scatter")(self.ranks, out.data_ptr(), inp.data_ptr(), out.nbytes, root)
        if code:
            self.refuse(code)

    @_moves("all_to_all")
    def all_to_all(self, out: Tensor, inp: Tensor) -> None:
        """``out[r * n + i] = inp[rank * n + i] of rank r``."""
        piece = inp.nbytes // self.group.size
        code = native("all_to_all_even")(self.ranks, out.data_ptr(), inp.data_ptr(), piece)
        if code:
            self.refuse(code)

    @_moves("all_to_all_v")
    def all_to_all_v(
        self, out: Tensor, inp: Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> None:
        """Piece ``r`` of ``inp`` goes to rank ``r``, piece ``r`` of ``out`` comes from there."""
        table = ctypes.c_int64 * self.group.size
        code = native("all_to_all")(
            self.ranks, out.data_ptr(), inp.data_ptr(), table(*out_splits), table(*in_splits)
        )
        if code:
            self.refuse(code)

    @_moves("barrier")
    def barrier(self) -> None:
        """Ends when every rank has started it."""
        code = native("barrier")(self.ranks)
        if code:
            self.refuse(code)

    # --- messages ----------------------------------------------------------------------------

    @_moves("batch")
    def batch(self, messages: Sequence[Message]) -> Messages:
        """Start messages of this rank."""
        return Messages(self, list(messages))

    def start(self, message: Message) -> int:
        """Start one message; its number."""
        number: int | None = native("message_start")(self.ranks, *address(message))
        if not number:
            raise OutOfMemory("no room for a message", requested_bytes=0)
        self._messages[number] = message  # its tensor lives as long as C knows the address
        return number

    def end(self, number: int) -> None:
        """Forget a message."""
        native("message_end")(self.ranks, number)
        del self._messages[number]

    # --- memory and life ---------------------------------------------------------------------

    def symmetric(self, nbytes: int) -> Sequence[Tensor]:
        """Memory of every rank, by rank; what lies in it is not staged."""
        each = -(-max(1, nbytes) // _PAGE) * _PAGE
        memory = self._share(each * self.group.size, f"of group {self.group.name}")
        base = segment.address_of(memory)
        number = native("ranks_share")(self.ranks, base, each)
        pages = torch.frombuffer(memory, dtype=torch.uint8)
        parts = [pages[rank * each :][:nbytes] for rank in range(self.group.size)]
        self._symmetric.append((number, parts))
        return parts

    def release(self, memory: Sequence[Tensor]) -> None:
        """Give back what ``symmetric`` returned; it is unmapped with the last view of it."""
        for index, (number, parts) in enumerate(self._symmetric):
            if parts is memory:
                native("ranks_unshare")(self.ranks, number)
                del self._symmetric[index]
                return

    def abort(self) -> None:
        """Make calls under way raise ``CommAborted``, on all ranks; from any thread."""
        with self._ending:
            if self._memory is not None:
                native("ranks_abort")(self.ranks)

    def close(self) -> None:
        """Leave the group. Who waits for this rank learns that it will not come.

        The memory is given back now, or with this object where a call of another thread is running.
        """
        with self._ending:
            if self._memory is not None and native("ranks_leave")(self.ranks):
                self._memory = None
        self._symmetric.clear()
