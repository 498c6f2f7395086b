"""Collective operations of GPUs that read and write each other's memory, each one kernel.

Nothing here waits on the host. A kernel that waited too long ends, its result is NaN, and the next
call on this rank raises; what a replayed graph did is found out by the call after it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts.terms import one_of
from trivet.errors import CommUnsupported
from trivet_cuda.collectives import plan
from trivet_cuda.collectives.channels import Channels, Ready, distances
from trivet_cuda.collectives.claims import moves, sums
from trivet_cuda.collectives.fused_norm import FUSED_NORM
from trivet_cuda.collectives.gather import GATHER
from trivet_cuda.collectives.in_place import IN_PLACE
from trivet_cuda.collectives.one_shot import ONE_SHOT
from trivet_cuda.collectives.two_shot import TWO_SHOT


class PeerMemoryRanks(Channels):
    """The ranks of one group whose GPUs address each other's memory; see ``Channels``."""

    @sums("all_reduce", "one_shot", plan.ONE_SHOT)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """``out[i] = sum over ranks of inp[i]``: everybody sends everything to all."""
        del reduction
        n, fast = inp.numel(), not (inp.data_ptr() | out.data_ptr()) & 15
        key = "one", inp.dtype, n, fast
        made = self.made.get(key) or self.ready(key, self._one_shot, inp.dtype, n, fast)
        channel = self.begin()
        if n:
            made.launch(made.grid, 1, 1, inp, out, *channel, *made.numbers)

    @sums("all_reduce", "two_shot", {2: plan.ONE_SHOT[2]}, on_request=True)
    @sums("all_reduce", "two_shot", plan.TWO_SHOT)
    def two_shot(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """The same: each rank sums its part and sends it to all."""
        del reduction
        n, fast = inp.numel(), not (inp.data_ptr() | out.data_ptr()) & 15
        key = "two", inp.dtype, n, fast
        made = self.made.get(key) or self.ready(key, self._two_shot, inp.dtype, n, fast, True)
        channel = self.begin()
        if n:
            made.launch(made.grid, 1, 1, inp, out, *channel, *made.numbers)

    @sums("all_reduce", "in_place", plan.IN_PLACE, one_of("symmetric", True))
    def in_place(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """The same in symmetric memory, which is read and written where it lies."""
        del reduction, inp
        n, at = out.numel(), out.data_ptr()
        key = "place", out.dtype, n, at
        made = self.made.get(key) or self.ready(key, self._in_place, out.dtype, n, at)
        channel = self.begin(staged=False)
        if n:
            made.launch(made.grid, 1, 1, out, *channel, *made.numbers)

    @sums("reduce_scatter", "two_shot", plan.SCATTER)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """``out[i] = sum over ranks of inp[rank * n + i]``."""
        del reduction
        n, fast = out.numel(), not (inp.data_ptr() | out.data_ptr()) & 15
        key = "scatter", inp.dtype, n, fast
        made = self.made.get(key) or self.ready(key, self._two_shot, inp.dtype, n, fast, False)
        channel = self.begin()
        if n:
            made.launch(made.grid, 1, 1, inp, out, *channel, *made.numbers)

    @moves("all_gather", "packets", plan.GATHER)
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        """``out[r * n + i] = inp[i] of rank r``."""
        n, fast = inp.numel(), not (inp.data_ptr() | out.data_ptr()) & 15
        key = "gather", n, fast
        made = self.made.get(key) or self.ready(key, self._gather, n, fast)
        channel = self.begin()
        if n:
            made.launch(made.grid, 1, 1, inp, out, *channel, *made.numbers)

    # --- fused -------------------------------------------------------------------------------

    @sums("all_reduce_add_rms_norm", "fused_norm", plan.FUSED)
    def all_reduce_add_rms_norm(
        self, out: Tensor, residual: Tensor, inp: Tensor, weight: Tensor, eps: float
    ) -> None:
        """``residual += sum over ranks of inp; out = rms_norm(residual, weight, eps)``."""
        self._norm(out, residual, inp, weight, eps, True)

    def all_reduce_rms_norm(
        self, out: Tensor, total: Tensor, inp: Tensor, weight: Tensor, eps: float
    ) -> None:
        """The same where there is no residual yet: ``total = sum over ranks of inp``."""
        self._norm(out, total, inp, weight, eps, False)

    def _norm(
        self, out: Tensor, total: Tensor, inp: Tensor, weight: Tensor, eps: float, add: bool
    ) -> None:
        weight = weight.contiguous()
        at = inp.data_ptr() | out.data_ptr() | total.data_ptr() | weight.data_ptr()
        rows, hidden = inp.shape
        key = "norm", inp.dtype, weight.dtype, hidden, not at & 15, add
        made = self.made.get(key) or self.ready(key, self._fused, *key[1:])
        channel, most = self.begin(), made.grid
        for low in range(0, rows, most):
            count = min(most, rows - low)
            x, both, y = inp[low:], total[low:], out[low:]
            made.launch(min(plan.CHANNELS, count), 1, 1, x, both, weight, y, *channel, count,
                        hidden, eps)  # fmt: skip

    # --- launches, made once for calls of one kind --------------------------------------------

    def _one_shot(self, kind: torch.dtype, n: int, fast: bool) -> Ready:
        paired, words = wire(kind, n)
        shape = self.shape("one_shot", words, self.capability)
        grid = grid_of(shape, words)
        require(self.slot, shape, grid, words)
        constants = {"SLOT": self.slot, "SINGLE": grid * shape.block >= words, "PAIRED": paired,
                     "ALIGNED": fast}  # fmt: skip
        divisible = ({"x": 16, "out": 16} if fast else {}) | ({"words": 4} if not words % 4 else {})
        launch = self.launch_of(ONE_SHOT, {"T": kind}, shape, constants, divisible)
        return Ready(launch, grid, (words,))

    def _two_shot(self, kind: torch.dtype, n: int, fast: bool, gather: bool) -> Ready:
        paired, words = wire(kind, n)
        part = words
        if gather:
            part = -(-words // self.group.size)
            part += -part % 4
        else:
            words *= self.group.size
        shape = self.shape("two_shot", part, self.capability)
        grid = grid_of(shape, part)
        require(self.slot // 2, shape, grid, part)
        constants = {"SLOT": self.slot, "GATHER": gather, "PAIRED": paired, "ALIGNED": fast}
        divisible = {"x": 16, "out": 16} if fast else {}
        divisible |= {name: 4 for name, by in (("words", words), ("part", part)) if not by % 4}
        launch = self.launch_of(TWO_SHOT, {"T": kind}, shape, constants, divisible)
        return Ready(launch, grid, (words, part))

    def _in_place(self, kind: torch.dtype, n: int, at: int) -> Ready:
        end = at + n * kind.itemsize
        piece = next((p for low, high, p in self.memory if low <= at and end <= high), None)
        if piece is None:
            raise CommUnsupported(
                f"{self.group.name}: this tensor is no symmetric memory of the group",
                fix="make it with group.symmetric(...)",
            )
        paired, words = wire(kind, n)
        part = -(-words // self.group.size)
        part += -part % 4
        shape = self.shape("in_place", part, self.capability)
        far = distances(piece.addresses, self.group.rank, kind.itemsize)
        fast = not at & 15
        divisible = {f"x{step}": 16 // kind.itemsize for step in range(1, 8)} | {"part": 4}
        divisible |= ({"x": 16} if fast else {}) | ({"words": 4} if not words % 4 else {})
        constants = {"FLAGS": 0, "PAIRED": paired, "ALIGNED": fast}
        launch = self.launch_of(IN_PLACE, {"T": kind}, shape, constants, divisible)
        return Ready(launch, grid_of(shape, part), (*far, words, part))

    def _gather(self, n: int, fast: bool) -> Ready:
        wide = not n % 4
        words = n // 4 if wide else n
        shape = self.shape("gather", words, self.capability)
        grid = grid_of(shape, words)
        require(self.slot // 2, shape, grid, words)
        divisible = ({"x": 16, "out": 16} if fast else {}) | ({"words": 4} if not words % 4 else {})
        constants = {"SLOT": self.slot, "WIDE": wide, "ALIGNED": fast}
        launch = self.launch_of(GATHER, {}, shape, constants, divisible)
        return Ready(launch, grid, (words,))

    def _fused(
        self, kind: torch.dtype, weights: torch.dtype, hidden: int, fast: bool, add: bool
    ) -> Ready:
        """The grid is the number of rows that one launch has room for."""
        paired, words = wire(kind, hidden)
        room = words + -words % 4
        if room > self.slot:
            raise CommUnsupported(
                f"rows of {hidden} {kind} are larger than the memory of a channel",
                fix="sum and normalise in two calls",
            )
        fast = fast and not words % 4
        shape = plan.row_shape(words, self.capability)
        names = ("x", "residual", "weight", "out")
        constants = {"SLOT": self.slot, "WORDS": words, "PAIRED": paired, "ALIGNED": fast,
                     "ADD": add}  # fmt: skip
        launch = self.launch_of(
            FUSED_NORM, {"T": kind, "W": weights}, shape, constants,
            dict.fromkeys(names, 16) if fast else {},
        )  # fmt: skip
        return Ready(launch, plan.CHANNELS * (self.slot // room), ())


def wire(kind: torch.dtype, n: int) -> tuple[bool, int]:
    """Whether numbers travel in pairs, and how many words they are; the same on every rank."""
    paired = kind.itemsize == 2 and not n % 2
    return paired, n // 2 if paired else n


def grid_of(shape: plan.Shape, words: int) -> int:
    """Programs for so many words."""
    return min(shape.channels, -(-words // shape.block))


def require(room: int, shape: plan.Shape, grid: int, words: int) -> None:
    """Refuse a message that its channels have no room for; all ranks do, before they send.

    Raises:
        CommUnsupported: says how much there is.
    """
    if words and -(-words // (grid * shape.block)) * shape.block > room:
        raise CommUnsupported(
            f"{words} words in {grid} channels of {room} words each",
            fix="a larger block, more channels or a smaller message",
        )
