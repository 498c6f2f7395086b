"""What the kernels between GPUs have in common: data that say themselves that they have arrived.

A rank writes into the memory of the others and each waits for what comes into its own; there is no
barrier and no flag. Memory that waits is filled with ``EMPTY``, all bits set, which no sender
sends: as a number that is a NaN, and a NaN with other bits takes its place. So a word of 32 bits
has arrived as soon as it is anything else, and hardware moves each such word at once.

Words are pairs of 16-bit numbers or single numbers of 32 bits. Where the numbers of a message are
odd in count, each travels alone as float32, so that any size and address is served. How they travel
depends on dtype and count, which all ranks share; how they are read and written here (``ALIGNED``)
on this rank's addresses alone.

A program of a grid is a channel: it talks to the program of the same number on the other ranks, in
memory of its own, and counts its calls in memory of the device, so that a replayed graph goes on
counting. Calls take turns with two halves of that memory. A half is empty again when its call ends,
and a peer writes into it again only after it has had this rank's data of the next call.

Waits end: after ``patience`` nanoseconds, when the host says so, or when another program gave up.
What could not be summed is NaN then, and ``verdict``, memory of the host, says why.
"""

# ruff: noqa: ANN001, ANN201  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, globaltimer

from trivet.kernels.triton import Settled

GAVE_UP: Final = 0
"""Of ``verdict``: a program waited too long, or was told to stop."""

STOP: Final = 1
"""Of ``verdict``: the host says that nobody shall wait any more."""

WHOM: Final = 2
"""Of ``verdict``: how many ranks after this one the rank is that did not come."""

LOST: Final = 3
"""Of ``verdict``, written by the host: 1 more than the rank whose process has ended."""

FAR: Final = {f"o{step}": "i64" for step in range(1, 8)}
"""Arguments of every kernel: how many words behind this rank's memory lies that of the rank
``step`` after it."""

CHANNEL: Final = {"mine": "*i32", "turns": "*i32", "verdict": "*i32", **FAR, "rank": "i32",
                  "patience": "i64"}  # fmt: skip
"""Arguments of every kernel behind its own tensors."""

DIVISIBLE: Final = {"mine": 16, **dict.fromkeys(FAR, 4)}


def settle(target: Any) -> Settled:
    """The clock is that of the hardware; the interpreter counts looks."""
    return Settled({"TIMED": target is not None})


@triton.jit
def after_previous(OVERLAP: tl.constexpr):
    """Waits for the kernel before on this stream, then lets the next one be placed."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


# Of an `if` on a constant only the branch that is taken is compiled; what follows a `return` in one
# is compiled always, so that functions here return at their end.


@triton.jit
def sendable(words, PAIRED: tl.constexpr):
    """Words with another NaN in place of the one that stands for nothing."""
    nan: tl.constexpr = 0x7FFF7FFF if PAIRED else 0x7FFFFFFF
    return tl.where(words == -1, nan, words)


@triton.jit
def wire(x, at, live, PAIRED: tl.constexpr, ALIGNED: tl.constexpr):
    """The words at ``at`` of a tensor, as they are sent."""
    if not PAIRED:
        words = tl.load(x + at, mask=live, other=0.0).to(tl.float32).to(tl.int32, bitcast=True)
    elif ALIGNED:
        words = tl.load(x.to(tl.pointer_type(tl.int32), bitcast=True) + at, mask=live, other=0)
    else:
        low = tl.load(x + 2 * at, mask=live, other=0.0).to(tl.int16, bitcast=True)
        high = tl.load(x + 2 * at + 1, mask=live, other=0.0).to(tl.int16, bitcast=True)
        words = (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    return sendable(words, PAIRED)


@triton.jit
def put(out, at, words, live, PAIRED: tl.constexpr, ALIGNED: tl.constexpr):
    """Writes words that were sent, or could have been, into a tensor."""
    if not PAIRED:
        tl.store(out + at, words.to(tl.float32, bitcast=True).to(out.dtype.element_ty), mask=live)
    elif ALIGNED:
        tl.store(out.to(tl.pointer_type(tl.int32), bitcast=True) + at, words, mask=live)
    else:
        kind = out.dtype.element_ty
        tl.store(out + 2 * at, words.to(tl.int16).to(kind, bitcast=True), mask=live)
        tl.store(out + 2 * at + 1, (words >> 16).to(tl.int16).to(kind, bitcast=True), mask=live)


@triton.jit
def first(words, KIND: tl.constexpr, PAIRED: tl.constexpr):
    """The first number of each word, in float32."""
    if not PAIRED:
        number = words.to(tl.float32, bitcast=True)
    elif tl.bfloat16 == KIND:
        number = (words << 16).to(tl.float32, bitcast=True)
    else:
        number = words.to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
    return number


@triton.jit
def second(words, KIND: tl.constexpr, PAIRED: tl.constexpr):
    """The second number of each word, in float32; zero where a word has one."""
    if not PAIRED:
        number = words.to(tl.float32) * 0.0
    elif tl.bfloat16 == KIND:
        number = (words & -65536).to(tl.float32, bitcast=True)
    else:
        number = (words >> 16).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
    return number


@triton.jit
def rounded(a, b, KIND: tl.constexpr, PAIRED: tl.constexpr):
    """Numbers in float32 as words that can be sent, rounded to the dtype once."""
    if PAIRED:
        low = a.to(KIND).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        high = b.to(KIND).to(tl.int16, bitcast=True).to(tl.int32) << 16
        words = low | high
    else:
        words = a.to(KIND).to(tl.float32).to(tl.int32, bitcast=True)
    return sendable(words, PAIRED)


@triton.jit
def push(at, words, live, o1, o2, o3, o4, o5, o6, o7, WORLD: tl.constexpr, STRIDE: tl.constexpr):
    """Writes the same words to every other rank, where they wait for those of this one."""
    if WORLD > 1:
        tl.store(at + o1 + (WORLD - 2) * STRIDE, words, mask=live, cache_modifier=".wt")
    if WORLD > 2:
        tl.store(at + o2 + (WORLD - 3) * STRIDE, words, mask=live, cache_modifier=".wt")
    if WORLD > 3:
        tl.store(at + o3 + (WORLD - 4) * STRIDE, words, mask=live, cache_modifier=".wt")
    if WORLD > 4:
        tl.store(at + o4 + (WORLD - 5) * STRIDE, words, mask=live, cache_modifier=".wt")
    if WORLD > 5:
        tl.store(at + o5 + (WORLD - 6) * STRIDE, words, mask=live, cache_modifier=".wt")
    if WORLD > 6:
        tl.store(at + o6 + (WORLD - 7) * STRIDE, words, mask=live, cache_modifier=".wt")
    if WORLD > 7:
        tl.store(at + o7 + (WORLD - 8) * STRIDE, words, mask=live, cache_modifier=".wt")


@triton.jit
def missing_of(words, PACKETS: tl.constexpr):
    """Whether any word is not there yet, as 0 or 1."""
    waits = words < 0 if PACKETS else words == -1
    return tl.max(waits.to(tl.int32), 0)


@triton.jit
def lost(verdict, turns, began, patience, TIMED: tl.constexpr):
    """Whether a wait shall end; with when it began, as far as it is known."""
    over = tl.load(verdict, volatile=True) | tl.load(verdict + 1, volatile=True)
    if TIMED:
        now = globaltimer()
        began = tl.where(began == 0, now, began)
        over = over | (now - began > patience).to(tl.int32)
    else:
        over = over | (turns.to(tl.int64) * 1000000 > patience).to(tl.int32)
    return over, began


@triton.jit
def received(at, live, whom, verdict, patience, TIMED: tl.constexpr, PACKETS: tl.constexpr):
    """The words that come in at ``at``, when all are there; with 1 where some never came."""
    words = tl.load(at, mask=live, other=0, volatile=True)
    missing = missing_of(words, PACKETS)
    turns = missing * 0
    over = missing * 0
    began = patience * 0
    while (missing != 0) & (over == 0):
        words = tl.load(at, mask=live, other=0, volatile=True)
        missing = missing_of(words, PACKETS)
        turns += 1
        if (turns & 511) == 0 or not TIMED:
            over, began = lost(verdict, turns, began, patience, TIMED)
    if missing != 0:
        tl.store(verdict + 2, whom)
        tl.store(verdict, 1)
    return words, missing


@triton.jit
def emptied(at, live, EMPTY, WORLD: tl.constexpr, STRIDE: tl.constexpr):
    """Makes the memory of every other rank's words wait again."""
    for behind in tl.static_range(WORLD - 1):
        tl.store(at + behind * STRIDE, EMPTY, mask=live)
