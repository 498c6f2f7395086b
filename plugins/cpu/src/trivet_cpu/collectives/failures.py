"""What a call that did not end well means, as the errors of the contract."""

from __future__ import annotations

import ctypes
from typing import Final, NoReturn

from trivet.contracts.collectives import REDUCTIONS, Group
from trivet.errors import (
    CommAborted,
    CommArgumentError,
    CommError,
    CommTimeout,
    GroupMismatch,
    PeerLost,
)
from trivet_cpu.collectives import native
from trivet_cpu.collectives.native import DTYPES, OPERATIONS

_STATES: Final = {
    "R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is stopped",
    "Z": "has ended", "X": "has ended", "": "has ended",
}  # fmt: skip
_NAMES: Final = {number: str(dtype).removeprefix("torch.") for dtype, number in DTYPES.items()}


def refuse(group: Group, ranks: int, code: int) -> NoReturn:
    """Raises what ``code``, which a call of ``ranks`` returned, means.

    Raises:
        CommError: of the class that it is.
    """
    if code == native.MISMATCH:
        raise mismatch(group, ranks)
    if code == native.REFUSED:
        msg = f"{group.name} was closed, or has no such reduction of this dtype"
        raise CommArgumentError(msg, fix="open the group again; see trivet comm explain")
    said = (ctypes.c_uint64 * 3)()
    native.native("ranks_failure")(ranks, said)
    first, by, bits = said[0], said[1], said[2]
    about = [rank for rank in range(group.size) if bits >> rank & 1]
    whose = "" if by == group.rank else f", as rank {by} found"
    states = "; ".join(_state(ranks, rank) for rank in about)
    if first == native.TIMED_OUT:
        msg = f"ranks {about} did not come within {group.timeout:g} s{whose}: {states}"
        raise CommTimeout(msg, ranks=about, fix="see where those ranks are, or raise the timeout")
    if first == native.PEER_LOST:
        msg = f"ranks {about} are gone{whose}: {states}"
        raise PeerLost(msg, ranks=about, fix="read the output of those ranks")
    if first in {native.ABORTED, native.INTERRUPTED}:
        how = "was aborted" if first == native.ABORTED else "was interrupted by a signal"
        raise CommAborted(f"the group {how} on rank {by}", ranks=[by])
    raise CommError(f"the group has failed ({code}, {first})")


def mismatch(group: Group, ranks: int) -> GroupMismatch:
    """The error of ranks that called different things."""
    calls, pair = (ctypes.c_uint64 * group.size)(), (ctypes.c_uint64 * 4)()
    native.native("ranks_mismatch")(ranks, calls, pair)
    fix = "every rank makes the same calls in the same order, with the same sizes"
    if len(set(calls)) > 1:
        other = next(rank for rank in range(group.size) if calls[rank] != calls[0])
        msg = f"rank 0 calls {_call(calls[0])}, rank {other} calls {_call(calls[other])}"
        return GroupMismatch(msg, ranks=[0, other], fix=fix)
    sender, receiver, goes, comes = pair
    msg = (
        f"rank {sender} sends {goes} bytes to rank {receiver}, which expects {comes}, "
        "in all_to_all_v"
    )
    return GroupMismatch(msg, ranks=[sender, receiver], fix=fix)


def _call(call: int) -> str:
    """A call as ``collectives.cpp`` packs it, in words."""
    operation, dtype = OPERATIONS[call & 63], call >> 6 & 63
    reduction, root, count = call >> 12 & 15, call >> 16 & 255, call >> 24
    if operation in {"all_reduce", "reduce_scatter", "reduce"}:
        what = f"{operation} {_ORDERED[reduction]} of {count} {_NAMES[dtype]}"
    elif operation in {"barrier", "all_to_all"}:
        what = operation
    else:
        what = f"{operation} of {count} bytes"
    return f"{what} with root {root}" if operation in _ROOTED else what


_ORDERED: Final = tuple(sorted(REDUCTIONS, key=native.REDUCING.__getitem__))
_ROOTED: Final = frozenset({"reduce", "broadcast", "gather", "scatter"})


def _state(ranks: int, rank: int) -> str:
    ago = ctypes.c_int64()
    letter = chr(native.native("ranks_state")(ranks, rank, ctypes.byref(ago))).strip("\0")
    does = _STATES.get(letter, f"is in state {letter}")
    return f"rank {rank} {does}, last seen {max(0, ago.value) / 1e9:.1f} s ago"
