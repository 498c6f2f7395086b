"""One of three ranks whose kernels are interpreted; a test starts them and reads what they say.

Arguments: the rank and a folder that all share. The first two are also a group of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from shared_room import SharedRoom

from trivet.catalogue import operators
from trivet.contracts.collectives import Group, Member
from trivet.errors import CommAborted, CommTimeout, PeerLost
from trivet.kernels.triton.interpreted import the_interpreter
from trivet_cuda.collectives import plan
from trivet_cuda.collectives.peer_memory import PeerMemoryRanks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def values(rank, n, dtype, call=0):
    """Numbers that rank and call decide; zeros of both signs, infinities and NaNs among them."""
    seed = torch.Generator().manual_seed(1000 * call + 10 * rank + n)
    x = torch.randn(n, generator=seed).to(dtype)
    if n > 64:
        x[3], x[5], x[7], x[9] = -0.0, float("inf"), float("nan"), -0.0
        x.view(torch.int16 if dtype.itemsize == 2 else torch.int32)[
            11
        ] = -1  # a NaN: nobody sends it
    return x


def summed(parts):
    """The sum in order of rank, in float32, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def same(a, b):
    """Equal, NaN being equal to NaN."""
    return bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))


def shape(operation, words, capability):
    """Few small programs, so that a call has several tiles and several channels."""
    del capability, words
    return plan.Shape(128, 2, True, channels=2 if operation != "in_place" else 3)


class Checks:
    """The cases of one rank."""

    def __init__(self, ranks, rank, size):
        self.ranks, self.rank, self.size, self.calls = ranks, rank, size, 0

    def parts(self, n, dtype):
        """What each rank has in the next call."""
        self.calls += 1
        return [values(rank, n, dtype, self.calls) for rank in range(self.size)]

    def all_reduce(self, method, sizes, dtypes=DTYPES):
        for dtype in dtypes:
            for n in sizes:
                parts = self.parts(n, dtype)
                x = parts[self.rank].clone()
                out = torch.empty_like(x)
                method(out, x, "sum")
                assert same(out, summed(parts)), (dtype, n)
                assert torch.equal(x.view(torch.uint8), parts[self.rank].view(torch.uint8))
                method(x, x, "sum")
                assert same(x, summed(parts)), (dtype, n, "in place")

    def unaligned(self):
        """One rank's tensors lie at an odd address: what travels must not depend on it."""
        for n in (130, 77):
            parts = self.parts(n, torch.bfloat16)
            whole = torch.empty(n + 1, dtype=torch.bfloat16)
            x = whole[1:] if self.rank == 0 else whole[:-1]
            x.copy_(parts[self.rank])
            self.ranks.all_reduce(x, x, "sum")
            assert same(x, summed(parts)), n

    def reduce_scatter(self, sizes):
        for dtype in DTYPES[:2]:
            for n in sizes:
                parts = self.parts(self.size * n, dtype)
                out = torch.empty(n, dtype=dtype)
                self.ranks.reduce_scatter(out, parts[self.rank], "sum")
                assert same(out, summed(parts)[self.rank * n :][:n]), (dtype, n)

    def all_gather(self, sizes):
        for n in sizes:
            parts = [torch.full((n,), 255 - rank, dtype=torch.uint8) for rank in range(self.size)]
            out = torch.empty(self.size * n, dtype=torch.uint8)
            self.ranks.all_gather(out, parts[self.rank])
            assert torch.equal(out, torch.cat(parts)), n

    def in_place(self, sizes):
        for dtype in DTYPES[:2]:
            memory = self.ranks.symmetric(4096)
            for n in sizes:
                parts = self.parts(n, dtype)
                x = memory[self.rank].view(dtype)[:n]
                x.copy_(parts[self.rank])
                self.ranks.in_place(x, x, "sum")
                assert same(x, summed(parts)), (dtype, n)
            self.ranks.release(memory)

    def fused(self):
        reference = operators()["fused_add_rms_norm"].reference
        for dtype, weights in (
            (torch.bfloat16,) * 2,
            (torch.float16, torch.float32),
            (torch.float32,) * 2,
        ):
            for rows, hidden in ((1, 64), (5, 96), (3, 33)):
                parts = [
                    p.nan_to_num(0, 1, 1).view(rows, hidden)
                    for p in self.parts(rows * hidden, dtype)
                ]
                before = values(7, rows * hidden, dtype).nan_to_num(0, 1, 1).view(rows, hidden)
                weight = values(8, hidden, weights).nan_to_num(0, 1, 1)
                out, total = torch.empty_like(before), before.clone()
                self.ranks.all_reduce_add_rms_norm(out, total, parts[self.rank], weight, 1e-6)
                normed, added = reference(summed(parts), before, weight, 1e-6)
                assert same(total, added), (dtype, rows, hidden)
                torch.testing.assert_close(
                    out, normed, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-3
                )
                self.ranks.all_reduce_rms_norm(out, total, parts[self.rank], weight, 1e-6)
                assert same(total, summed(parts))

    def alternating(self):
        """Operations of many sizes after one another: each channel counts for itself."""
        for call in range(8):
            n = (6, 300, 130, 2, 520)[call % 5]
            parts = self.parts(n, torch.bfloat16)
            x = parts[self.rank].clone()
            (self.ranks.all_reduce, self.ranks.two_shot)[call % 2](x, x, "sum")
            assert same(x, summed(parts)), call
            if self.rank == call % self.size:
                time.sleep(0.002)

    def slow_reader(self):
        """One rank reads late what came in: the other's next call must not write over it."""
        builder = the_interpreter()._builder
        load = builder.create_masked_load

        def slowly(*arguments):
            if arguments[-1]:  # volatile
                time.sleep(0.004)
            return load(*arguments)

        if self.rank:
            builder.create_masked_load = slowly
        try:
            for call in range(6):
                parts = self.parts(2048, torch.bfloat16)
                x = parts[self.rank].clone()
                (self.ranks.all_reduce, self.ranks.two_shot)[call // 3](x, x, "sum")
                assert same(x, summed(parts)), call
        finally:
            builder.create_masked_load = load

    def nobody_comes(self):
        """Rank 0 calls alone: its kernel ends, what it wrote is NaN, and the next call raises."""
        if self.rank:
            return
        x = torch.ones(30)
        self.ranks.all_reduce(x, x, "sum")
        assert x.isnan().all()
        caught = None
        try:
            self.ranks.all_reduce(x, x, "sum")
        except CommTimeout as error:
            caught = error
        assert caught is not None
        assert caught.ranks == (1,)
        assert "waited" in caught.what

    def stopped(self):
        """The host stops a kernel that waits, and refuses the calls after it."""
        self.ranks.said[0] = 0
        self.ranks.abort()
        if self.rank:
            return
        x = torch.ones(30)
        channel, begin = self.ranks._staging, self.ranks.begin
        self.ranks.begin = lambda: channel
        self.ranks.all_reduce(x, x, "sum")
        self.ranks.begin = begin
        assert x.isnan().all()
        assert self.ranks.said[0]
        caught = None
        try:
            self.ranks.all_reduce(x, x, "sum")
        except CommAborted as error:
            caught = error
        assert caught is not None

    def ended(self):
        """The other process ends: a wait with a long timeout ends at once."""
        if self.rank:
            return
        began = time.monotonic()
        while not self.ranks.said[3]:
            assert time.monotonic() - began < 15
            time.sleep(0.01)
        caught = None
        try:
            self.ranks.all_reduce(torch.ones(4), torch.ones(4), "sum")
        except PeerLost as error:
            caught = error
        assert caught is not None
        assert caught.ranks == (1,)


def opened(rank, size, folder, timeout=20.0):
    """The kernels' provider for a group of the first ``size`` ranks."""
    folder.mkdir(exist_ok=True)
    SharedRoom.folder = folder
    store = dist.FileStore(str(folder / "store"), size)
    store.set(f"pid{rank}", str(os.getpid()))
    pids = [int(store.get(f"pid{r}")) for r in range(size)]
    members = tuple(Member(r, "here", pids[r], "cpu") for r in range(size))
    group = Group("tested", rank, members, torch.device("cpu"), timeout)
    return Checks(PeerMemoryRanks(group, store, SharedRoom, shape), rank, size)


def main():
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    said = {}

    def check(name, case):
        began = time.perf_counter()
        try:
            case()
            said[name] = ""
        except Exception as error:  # noqa: BLE001  # told to the test
            said[name] = f"{type(error).__name__}: {error}"
        print(name, round(time.perf_counter() - began, 2), file=sys.stderr)

    c = opened(rank, 3, folder / "3")
    check("one_shot of 3", lambda: c.all_reduce(c.ranks.all_reduce, (258,), DTYPES[1:2]))
    check("two_shot of 3", lambda: c.all_reduce(c.ranks.two_shot, (1, 390), DTYPES[1:2]))
    check("reduce_scatter of 3", lambda: c.reduce_scatter((6,)))
    check("all_gather of 3", lambda: c.all_gather((3, 96)))
    check("in_place of 3", lambda: c.in_place((7, 512)))
    c.ranks.close()
    if rank < 2:
        c = opened(rank, 2, folder / "2")
        check("one_shot", lambda: c.all_reduce(c.ranks.all_reduce, (1, 6, 515, 770), DTYPES[1:2]))
        check("other dtypes", lambda: c.all_reduce(c.ranks.all_reduce, (130, 35), DTYPES[::2]))
        check("unaligned", c.unaligned)
        check("reduce_scatter", lambda: c.reduce_scatter((1, 301)))
        check("all_gather", lambda: c.all_gather((1, 4, 1028, 1031)))
        check("in_place", lambda: c.in_place((1, 515)))
        check("fused", c.fused)
        check("alternating", c.alternating)
        check("slow reader", c.slow_reader)
        c.ranks.close()
        c = opened(rank, 2, folder / "lost", 0.02)
        check("nobody_comes", c.nobody_comes)
        check("stopped", c.stopped)
        c.ranks.close()
        c = opened(rank, 2, folder / "ended")
        check("ended", c.ended)
        if rank == 0:
            c.ranks.close()
    (folder / f"said.{rank}").write_text(json.dumps(said))


main()
