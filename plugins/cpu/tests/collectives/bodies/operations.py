"""Every operation on every dtype, against sums that torch makes in order of rank."""

from __future__ import annotations

import itertools

import torch

from trivet.contracts.collectives import Message
from trivet_cpu import isa
from trivet_cpu.collectives.native import DTYPES

SMALL = (0, 1, 2, 7, 31, 33, 1023, 1025)
LARGE = (65_537, 300_001)  # more than one rank reduces alone, and more than one slot
INTEGERS = [d for d in DTYPES if not d.is_floating_point and not d.is_complex]
FLOATS = [d for d in DTYPES if d.is_floating_point]
COMPLEX = [d for d in DTYPES if d.is_complex]
ARITHMETIC = ("sum", "prod", "max", "min")
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
STEPS = {
    "sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip


def numbers(rank, count, dtype):
    """Random bits as integers; floats that round, overflow narrow types now and then."""
    g = torch.Generator().manual_seed(100 * count + rank)
    if dtype in INTEGERS:
        size = dtype.itemsize * count
        return torch.randint(256, (size,), generator=g, dtype=torch.uint8).view(dtype)
    if dtype in COMPLEX:
        return torch.randn(count, 2, generator=g).mul(3).view(torch.complex64)[:, 0].to(dtype)
    x = torch.randn(count, generator=g) * 10.0 ** torch.randint(-3, 3, (count,), generator=g)
    return x.to(dtype)


def wide(x):
    if x.dtype == torch.complex32:
        return x.to(torch.complex64)
    return x.float() if x.dtype in FLOATS and x.dtype.itemsize < 4 else x


def expected(pieces, reduction):
    dtype = pieces[0].dtype
    if dtype in SIGNED:
        signed = SIGNED[dtype]
        flip = torch.iinfo(signed).min if reduction in {"max", "min"} else 0
        total = expected([p.view(signed) ^ flip for p in pieces], reduction)
        return (total ^ flip).view(dtype)
    total = wide(pieces[0])
    for piece in pieces[1:]:
        total = STEPS[reduction](total, wide(piece))
    if dtype == torch.float8_e4m3fn:  # torch before 2.13 makes a NaN of what is too large
        total = total.clamp(-448, 448)
    return total.to(dtype)


def same(got, want, about=""):
    """The same bits; any NaN for a NaN."""
    assert got.dtype == want.dtype
    size = want.dtype.itemsize
    a, b = (x.contiguous().view(torch.uint8).view(-1, size) for x in (got, want))
    wrong = (a != b).any(1)
    if want.dtype in FLOATS:
        wrong &= ~(wide(got).isnan() & wide(want).isnan())
        if about.startswith(("max", "min")):  # torch takes a zero of either sign
            wrong &= wide(got) != wide(want)
    where = wrong.nonzero().flatten()[:5]
    assert not len(where), f"{about}: at {where}: {wide(got)[where]} for {wide(want)[where]}"


def reduce_everyhow(ranks, dtype, reduction, count):
    me, size = ranks.group.rank, ranks.group.size
    pieces = [numbers(r, count * size, dtype) for r in range(size)]
    whole = expected(pieces, reduction)
    about = f"{reduction} of {count} {dtype}"
    x = pieces[me].clone()
    out = torch.empty_like(x)
    ranks.all_reduce(out, x, reduction)
    same(out, whole, about)
    same(x, pieces[me], about)
    part = torch.empty(count, dtype=dtype)
    ranks.reduce_scatter(part, x, reduction)
    same(part, whole[me * count : (me + 1) * count], about)
    root = count % size
    out = torch.empty_like(x) if me == root else torch.empty(0, dtype=dtype)
    ranks.reduce(out, x, reduction, root)
    if me == root:
        same(out, whole, about)
    same(x, pieces[me], about)
    ranks.all_reduce(x, x, reduction)
    same(x, whole, about)


def every_reduction(ranks):
    for dtype in DTYPES:
        kinds = tuple(STEPS) if dtype in INTEGERS else ("sum",) if dtype in COMPLEX else ARITHMETIC
        for reduction, count in itertools.product(kinds, SMALL):
            reduce_everyhow(ranks, dtype, reduction, count)
    for dtype, count in itertools.product((torch.float32, torch.bfloat16, torch.int8), LARGE):
        reduce_everyhow(ranks, dtype, "sum", count)


def every_level(ranks):
    for level in isa.levels():
        with isa.using(level):
            for dtype, reduction in itertools.product(FLOATS, ("sum", "max")):
                reduce_everyhow(ranks, dtype, reduction, 301)
            for dtype, reduction in itertools.product(INTEGERS, ("min", "prod")):
                reduce_everyhow(ranks, dtype, reduction, 301)


def exact_integers(ranks):
    """Data whose sums are known without any reference: rank * 5 + i."""
    size = ranks.group.size
    for count in (1, 255, 256, 257, 100_000):
        i = torch.arange(count, dtype=torch.int64)
        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
            x = (i + 5 * ranks.group.rank).to(dtype)
            ranks.all_reduce(x, x, "sum")
            assert torch.equal(x, (size * i + 5 * size * (size - 1) // 2).to(dtype))


def special_numbers(ranks):
    """A NaN of one rank is one of all; infinities and zeros of both signs are kept."""
    me = ranks.group.rank
    values = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0]
    pairs = torch.cartesian_prod(torch.tensor(values), torch.tensor(values))
    column = pairs[:, min(me, 1)].contiguous()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for reduction in ARITHMETIC:
            x = column.to(dtype, copy=True)
            ranks.all_reduce(x, x, reduction)
            pieces = [pairs[:, min(r, 1)].to(dtype) for r in range(ranks.group.size)]
            want = expected(pieces, reduction)
            same(x, want, f"{reduction} of special {dtype}")


def slices(ranks):
    """An element's bits depend neither on the size of the message nor on its place in it."""
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
        whole = numbers(ranks.group.rank, 700_000, dtype)
        result = torch.empty_like(whole)
        ranks.all_reduce(result, whole, "sum")
        for first, count in ((0, 1000), (12_345, 65_536), (600_001, 99_999), (699_999, 1)):
            part = whole[first : first + count].clone()
            ranks.all_reduce(part, part, "sum")
            same(part, result[first : first + count])


def bits(rank, count):
    g = torch.Generator().manual_seed(7 * count + rank)
    return torch.randint(256, (count,), generator=g, dtype=torch.uint8)


def movement(ranks):
    me, size = ranks.group.rank, ranks.group.size
    for n in (0, 1, 63, 4097, 1 << 20, (1 << 20) + 1):
        every = [bits(r, n * size) for r in range(size)]
        x, out = every[me], torch.zeros(n * size, dtype=torch.uint8)
        ranks.all_gather(out, x[:n])
        assert torch.equal(out, torch.cat([e[:n] for e in every]))
        out.zero_()
        ranks.all_to_all(out, x)
        assert torch.equal(out, torch.cat([e[me * n : (me + 1) * n] for e in every]))
        for root in range(size):
            y = x.clone()
            ranks.broadcast(y, root)
            assert torch.equal(y, every[root])
            out = torch.zeros(n * size * (me == root), dtype=torch.uint8)
            ranks.gather(out, x[:n], root)
            assert me != root or torch.equal(out, torch.cat([e[:n] for e in every]))
            out = torch.zeros(n, dtype=torch.uint8)
            ranks.scatter(out, x if me == root else x[:0], root)
            assert torch.equal(out, every[root][me * n : (me + 1) * n])
        ranks.barrier()


def uneven(ranks):
    """Pieces of all sizes, none and several slots among them."""
    me, size = ranks.group.rank, ranks.group.size
    for scale in (0, 1, 1001, 700_001):
        sizes = [[scale * ((a + 2 * b) % 4) for b in range(size)] for a in range(size)]
        every = [bits(r, sum(sizes[r])) for r in range(size)]
        out_sizes = [sizes[r][me] for r in range(size)]
        out = torch.zeros(sum(out_sizes), dtype=torch.uint8)
        ranks.all_to_all_v(out, every[me], out_sizes, sizes[me])
        want = [every[r].split(sizes[r])[me] for r in range(size)]
        assert torch.equal(out, torch.cat(want))


def messages(ranks):
    """Everybody sends to everybody first; small ones, none, and more than a ring holds."""
    me, size = ranks.group.rank, ranks.group.size
    counts = (0, 1, 100, 3_000_000, 5, 0, 70_000)
    others = [r for r in range(size) if r != me]
    for _ in range(2):
        sent = [Message(True, r, bits(10 * me + r, n)) for r in others for n in counts]
        got = [Message(False, r, torch.zeros(n, dtype=torch.uint8)) for r in others for n in counts]
        works = [ranks.batch(sent), ranks.batch(got)]
        for work in works:
            work.wait()
            assert work.is_completed()
        for m, n in zip(got, [n for _ in others for n in counts], strict=True):
            assert torch.equal(m.x, bits(10 * m.peer + me, n))
    assert not ranks._messages


def messages_beside_collectives(ranks):
    """A large message moves on while its rank waits in a collective, and the other way round."""
    me, size = ranks.group.rank, ranks.group.size
    x = torch.full((3_000_000,), me, dtype=torch.uint8)
    if me == 0:
        works = [ranks.batch([Message(True, r, x)]) for r in range(1, size)]
        ranks.barrier()
        for work in works:
            work.wait()
    else:
        ranks.batch([Message(False, 0, x)]).wait()
        ranks.barrier()
    assert not x.any()


def symmetric(ranks):
    me, size = ranks.group.rank, ranks.group.size
    memory = ranks.symmetric(2_000_000)
    other = ranks.symmetric(2_000_000)
    assert [m.numel() for m in memory] == [2_000_000] * size
    for dtype, count in itertools.product((torch.float32, torch.bfloat16), (5, 20_000, 400_001)):
        pieces = [numbers(r, count, dtype) for r in range(size)]
        want = expected(pieces, "sum")
        mine = memory[me].view(dtype)[:count]
        apart = other[me].view(dtype)[:count]
        for out in (mine, apart, torch.empty_like(mine)):
            mine.copy_(pieces[me])
            ranks.all_reduce(out, mine, "sum")
            same(out, want)
        ranks.barrier()
        mine.copy_(pieces[me])
        x = mine if me == 0 else pieces[me].clone()  # one rank alone
        ranks.all_reduce(x, x, "sum")
        same(x, want)
    symmetric_movement(ranks, memory)
    ranks.barrier()
    memory[me].fill_(me)
    ranks.barrier()
    assert [int(m[-1]) for m in memory] == list(range(size))
    ranks.release(memory)
    ranks.release(other)
    x = torch.ones(100_000)
    ranks.all_reduce(x, x, "sum")
    assert x.eq(size).all()


def symmetric_movement(ranks, memory):
    me, size = ranks.group.rank, ranks.group.size
    n = 200_000
    pieces = [bits(r, n * size) for r in range(size)]
    mine = memory[me][: n * size]
    mine.copy_(pieces[me])
    out = torch.zeros(n * size, dtype=torch.uint8)
    ranks.all_gather(out, mine[:n])
    assert torch.equal(out, torch.cat([p[:n] for p in pieces]))
    part = torch.zeros(n, dtype=torch.uint8)
    ranks.reduce_scatter(part, mine, "bxor")
    same(part, expected(pieces, "bxor")[me * n : (me + 1) * n])
    ranks.broadcast(mine, 1 % size)
    assert torch.equal(mine, pieces[1 % size])
