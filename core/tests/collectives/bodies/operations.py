"""Every operation on data whose results are known: small integers of rank and index."""

from __future__ import annotations

import functools
import itertools

import torch
from asking import refuses

from trivet.contracts.collectives import Message
from trivet.errors import CommUnsupported, GradUnsupported

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
COUNTS = (0, 1, 1023)
OPS = ("sum", "prod", "max", "min", "avg", "band", "bor", "bxor")


def data(rank, count, dtype, shift=0):
    """Integers from -8 to 2: sums over a few ranks are exact in every dtype."""
    return ((torch.arange(count) + 7 * rank + shift) % 11 - 8).to(dtype)


def same(got, expected):
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert torch.equal(got, expected), (got, expected)


REDUCED = {
    "prod": torch.Tensor.prod, "band": torch.bitwise_and, "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}  # fmt: skip


def reduced(tensors, op):
    stack = torch.stack(tensors)
    if op == "prod":
        return stack.prod(0).to(stack.dtype)
    if op in REDUCED:
        return functools.reduce(REDUCED[op], tensors)
    if op == "sum":
        return stack.sum(0)
    if op == "max":
        return stack.amax(0)
    if op == "min":
        return stack.amin(0)
    total = stack.sum(0)
    if total.is_floating_point():
        return total / len(tensors)
    return torch.div(total, len(tensors), rounding_mode="trunc")


def no_alias(a, b):
    assert not a.numel() or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def reductions(dev):
    g = dev.group()
    for dtype, count, op in itertools.product(DTYPES, COUNTS, OPS):
        if op in {"band", "bor", "bxor"} and dtype.is_floating_point:
            continue
        everyone = [data(r, count, dtype) for r in range(g.size)]
        x = everyone[g.rank].clone()
        expected = reduced(everyone, op)
        y = g.all_reduce(x, op)
        same(y, expected)
        same(x, everyone[g.rank])
        no_alias(x, y)
        assert g.all_reduce_(x, op) is None
        same(x, expected)

        x = data(g.rank, count * g.size, dtype)
        before = x.clone()
        whole = reduced([data(r, count * g.size, dtype) for r in range(g.size)], op)
        part = g.reduce_scatter(x, op)
        same(part, whole[g.rank * count : (g.rank + 1) * count])
        same(x, before)
        no_alias(x, part)
        root = count % g.size
        same(g.reduce(x, root, op), whole if g.rank == root else x.new_empty(0))


def movement(dev):
    g = dev.group()
    for dtype, count in itertools.product(DTYPES, COUNTS):
        everyone = [data(r, count, dtype) for r in range(g.size)]
        x = everyone[g.rank].clone()
        y = g.all_gather(x)
        same(y, torch.cat(everyone))
        no_alias(x, y)
        for source in range(g.size):
            y = g.broadcast(x, source)
            same(y, everyone[source])
            same(x, everyone[g.rank])
            no_alias(x, y)
            z = x.clone()
            assert g.broadcast_(z, source) is None
            same(z, everyone[source])

        root = count % g.size
        same(g.gather(x, root), torch.cat(everyone) if g.rank == root else x.new_empty(0))
        shares = torch.cat([data(root, count, dtype, shift=r) for r in range(g.size)])
        given = shares if g.rank == root else torch.empty_like(shares)
        same(g.scatter(given, root), data(root, count, dtype, shift=g.rank))

        def sent(a, b, dtype=dtype, count=count):  # from rank a to rank b
            return data(a, count, dtype, shift=b)

        x = torch.cat([sent(g.rank, r) for r in range(g.size)])
        before = x.clone()
        y = g.all_to_all(x)
        same(y, torch.cat([sent(r, g.rank) for r in range(g.size)]))
        same(x, before)
        no_alias(x, y)
    g.barrier()


def uneven_pieces(dev):
    g = dev.group()

    def rows(a, b):
        return (2 * a + b) % 3  # some are empty

    def sent(a, b):
        return data(a, rows(a, b) * 4, torch.int64, shift=b).view(-1, 2, 2)

    x = torch.cat([sent(g.rank, r) for r in range(g.size)])
    y = g.all_to_all(
        x,
        out_splits=[rows(r, g.rank) for r in range(g.size)],
        in_splits=[rows(g.rank, r) for r in range(g.size)],
    )
    same(y, torch.cat([sent(r, g.rank) for r in range(g.size)]))


def uneven_shares(dev):
    g = dev.group()
    sizes = [(3 * r + 2) % 4 for r in range(g.size)]  # some are empty
    everyone = [data(r, sizes[r] * 2, torch.int64).view(-1, 2) for r in range(g.size)]
    same(g.all_gather(everyone[g.rank], sizes), torch.cat(everyone))
    rows = sum(sizes)
    whole = sum(data(r, rows * 2, torch.int64).view(-1, 2) for r in range(g.size))
    mine = data(g.rank, rows * 2, torch.int64).view(-1, 2)
    same(g.reduce_scatter(mine, sizes=sizes), whole.split(sizes)[g.rank])


def narrow_dtypes_are_reduced(dev):
    """Dtypes that the backend lacks are reduced in order of rank, accumulated wider."""
    g = dev.group()
    for name in ["int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]:
        dtype = getattr(torch, name)
        everyone = [((torch.arange(7) + r) % 5).to(dtype) for r in range(g.size)]
        wide = [t.to(torch.float64) for t in everyone]
        for op in ("sum", "max", "min", "avg"):
            expected = reduced(wide, op)
            if not dtype.is_floating_point:
                expected = expected.trunc()
            expected = expected.to(torch.float32).to(dtype)
            bits = g.all_reduce(everyone[g.rank], op).view(torch.uint8)
            assert torch.equal(bits, expected.view(torch.uint8)), (name, op)
    big = torch.tensor([2**64 - 1, 2**63, 5], dtype=torch.uint64)
    small = torch.tensor([1, 2**63 - 1, 7], dtype=torch.uint64)
    x = big if g.rank == 0 else small
    lone = g.size == 1
    most = torch.tensor([2**64 - 1, 2**63, 5 if lone else 7], dtype=torch.uint64)
    same(g.all_reduce(x, "max"), most)
    same(g.all_reduce(big, "avg") if lone else big, big)


def fused(dev):
    g = dev.group()
    x, residual = data(g.rank, 12, torch.float32).view(3, 4), torch.ones(3, 4)
    weight = torch.full((4,), 2.0)
    out, total = g.all_reduce_add_rms_norm(x, residual, weight, 1e-5)
    expected = sum(data(r, 12, torch.float32).view(3, 4) for r in range(g.size)) + 1
    same(total, expected)
    assert residual.eq(1).all()
    torch.testing.assert_close(
        out, expected * torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + 1e-5) * 2
    )


def experts(dev):
    """Tokens go to their experts and come back weighted; ranks have other numbers of tokens."""
    g = dev.group()
    local, hidden, k = 2, 3, 2
    per_rank = [5 * (r % 2) + r for r in range(g.size)]  # rank 0 has none
    torch.manual_seed(7)
    every_x = [torch.randn(n, hidden) for n in per_rank]
    every_e = [torch.randint(-1, g.size * local, (n, k)) for n in per_rank]
    every_w = [torch.rand(n, k) for n in per_rank]
    x, chosen, weights = every_x[g.rank], every_e[g.rank], every_w[g.rank]
    rows, counts, handle = g.dispatch(x, chosen, local)
    expected = []
    for expert in range(g.rank * local, g.rank * local + local):
        mine = [
            every_x[r][t] for r in range(g.size) for t in range(per_rank[r]) for j in range(k)
            if every_e[r][t, j] == expert
        ]  # fmt: skip
        assert counts[expert - g.rank * local] == len(mine)
        expected += mine
    same(rows, torch.stack(expected) if expected else x.new_empty(0, hidden))
    scale = torch.repeat_interleave(torch.arange(local) + g.rank * local + 1, counts)
    out = g.combine(rows * scale.unsqueeze(-1), handle, weights)
    factor = ((chosen + 1) * weights).sum(1, keepdim=True)
    torch.testing.assert_close(out, x * factor)
    refuses(lambda: g.dispatch(x, chosen.int(), local), "int64")
    refuses(lambda: g.dispatch(torch.ones(1, 2), torch.tensor([[99]]), local), "no expert 99")
    refuses(lambda: g.combine(rows, None, weights), "no handle")
    assert g.usable


def every_dtype_moves(dev):
    g = dev.group()
    names = "bool int8 uint8 int16 uint16 int32 uint32 uint64 float16 float64 complex64"
    for name in [*names.split(), "float8_e4m3fn", "float8_e5m2"]:
        dtype = getattr(torch, name)
        everyone = [data(r, 5 * g.size, torch.int64).to(dtype) for r in range(g.size)]
        x = everyone[g.rank]

        def bits(t):
            return t.contiguous().view(torch.uint8)

        same(bits(g.all_gather(x)), bits(torch.cat(everyone)))
        same(bits(g.broadcast(x, g.size - 1)), bits(everyone[-1]))
        pieces = [t[5 * g.rank : 5 * g.rank + 5] for t in everyone]
        same(bits(g.all_to_all(x)), bits(torch.cat(pieces)))


def truth(dev):
    """``bool`` has any and all, and no sum."""
    g = dev.group()
    x = torch.tensor([True, False, g.rank == 0])
    same(g.all_reduce(x, "max"), torch.tensor([True, False, True]))
    same(g.all_reduce(x, "min"), torch.tensor([True, False, g.size == 1]))
    for op in ("sum", "avg"):
        refuses(lambda op=op: g.all_reduce(x, op), "bool")
    g.all_reduce_(x, "max")
    same(x, torch.tensor([True, False, True]))


def shapes(dev):
    g = dev.group()
    total = sum(range(g.size))
    scalar = torch.tensor(float(g.rank))
    same(g.all_reduce(scalar), torch.tensor(float(total)))
    same(g.all_gather(scalar), torch.arange(g.size).float())
    x = torch.arange(12).view(3, 4) * 10 + g.rank
    gathered = g.all_gather(x)
    assert gathered.shape == (3 * g.size, 4)
    same(gathered[-3:], torch.arange(12).view(3, 4) * 10 + g.size - 1)

    t = x.t()  # not contiguous: read in its own order, written in its own order
    same(g.all_reduce(t), torch.arange(12).view(3, 4).t() * 10 * g.size + total)
    g.all_reduce_(t)
    same(x, torch.arange(12).view(3, 4) * 10 * g.size + total)

    base = torch.arange(8.0)
    g.broadcast_(base[::2].mul_(g.rank + 1), g.size - 1)
    kept = torch.arange(8.0)
    kept[::2] *= g.size
    same(base, kept)

    many = torch.zeros(2 * g.size, 3)
    assert g.reduce_scatter(many).shape == (2, 3)
    turned = torch.tensor([1 + 2j, g.rank + 1j]).conj()
    same(g.all_reduce(turned), torch.tensor([g.size * (1 - 2j), total - g.size * 1j]))
    same(g.broadcast(turned), torch.tensor([1 - 2j, -1j]))
    g.broadcast_(turned, g.size - 1)
    same(turned, torch.tensor([1 - 2j, g.size - 1 - 1j]))


def started(dev):
    g = dev.group()
    x, y = data(g.rank, 9, torch.float32), data(g.rank, 6 * g.size, torch.int64)
    works = [g.start.all_reduce(x, "avg"), g.start.all_gather(x), g.start.reduce_scatter(y)]
    works += [g.start.broadcast(x), g.start.all_to_all(y), g.start.barrier()]
    in_place = x.clone()
    written = g.start.all_reduce_(in_place)
    for work in works:
        work.wait(20)
        work.wait()
        assert work.is_completed()
    everyone = [data(r, 9, torch.float32) for r in range(g.size)]
    same(works[0].result(), reduced(everyone, "avg"))
    same(works[0].result(), reduced(everyone, "avg"))
    same(works[1].result(), torch.cat(everyone))
    same(works[3].result(), everyone[0])
    same(x, everyone[g.rank])
    assert written.result() is in_place
    same(in_place, reduced(everyone, "sum"))
    refuses(works[5].result, "has no result")


def messages(dev):
    g = dev.group()
    after, before = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    for dtype in (*DTYPES, torch.bool, torch.float8_e4m3fn):
        for count in COUNTS:
            mine = data(g.rank, count, torch.int64).to(dtype)
            theirs = data(before, count, torch.int64).to(dtype)
            into = torch.zeros_like(mine)
            works = [
                g.start.send(mine, after),
                g.start.recv(into, before),
                g.start.send(mine, after),
                g.start.recv_(into, before),
            ]
            got = works[1].result()
            for work in works:
                work.wait()
            no_alias(got, into)
            assert torch.equal(got.view(torch.uint8), theirs.view(torch.uint8))
            assert torch.equal(into.view(torch.uint8), theirs.view(torch.uint8))
    got = torch.zeros(3)
    g.batch([Message(True, after, torch.ones(3) * g.rank), Message(False, before, got)])
    assert got.eq(before).all()
    table = torch.zeros(4, 3)
    if g.rank == 0:
        g.send(torch.arange(12.0).view(3, 4).t(), 1)
    if g.rank == 1:
        same(g.recv(table, 0), torch.arange(12.0).view(3, 4).t().contiguous())
        assert not table.any()
        g.send(table + 1, 0)
    if g.rank == 0:
        columns = torch.zeros(3, 4).t()
        g.recv_(columns, 1)
        assert columns.eq(1).all()


def arguments(dev):
    g = dev.group()
    x = torch.zeros(2 * g.size + 1)
    refuses(lambda: g.all_reduce(x, "median"), "median")
    refuses(lambda: g.all_reduce(x.to("meta")), "meta")
    refuses(lambda: g.broadcast(x, g.size), "ranks 0 to")
    refuses(lambda: g.broadcast(x, -1), "ranks 0 to")
    refuses(lambda: g.send(x, g.rank), "itself")
    refuses(lambda: g.recv_(x, g.rank), "itself")
    refuses(lambda: g.all_reduce_(torch.zeros(1).expand(4)), "share their place")
    refuses(lambda: g.recv_(torch.zeros(1).expand(4), g.rank), "share their place")
    refuses(lambda: g.reduce_scatter(torch.tensor(1.0)), "dimension 0")
    refuses(lambda: g.all_to_all(torch.tensor(1.0)), "scalar")
    refuses(lambda: g.all_to_all(torch.tensor(1.0), [0], [0]), "scalar")
    refuses(lambda: g.all_to_all(x, None, [1] * g.size), "add up to")
    refuses(lambda: g.all_to_all(x, [1], [1] * (g.size + 1)), "counts")
    if g.size > 1:
        refuses(lambda: g.reduce_scatter(x), "cannot be divided")
    weight = torch.ones(1, requires_grad=True)
    refuses(lambda: g.all_reduce(weight), "no_grad", GradUnsupported)
    with torch.no_grad():
        same(g.all_reduce(weight), torch.full((1,), float(g.size)))
        g.all_reduce_(weight)
    with torch.inference_mode():
        same(g.all_reduce(weight), torch.full((1,), float(g.size**2)))
    refuses(lambda: g.all_reduce(torch.ones(3, dtype=torch.complex64), "max"), "no order")
    refuses(lambda: g.all_reduce(torch.ones(3), "bor"), "has no meaning")
    refuses(lambda: g.gather(x, g.size), "ranks 0 to")
    refuses(lambda: g.all_gather(x, [1] * g.size), "sizes say")
    refuses(lambda: g.reduce_scatter(x, sizes=[1] * g.size), "add up to")
    refuses(lambda: g.symmetric((3,), torch.float32), "symmetric memory", CommUnsupported)
    same(g.all_reduce(torch.ones(3)), torch.full((3,), float(g.size)))  # the group is as it was


def one_of_a_strided_tensor(dev):
    """A single element may have any stride, and counts as contiguous."""
    g = dev.group()
    x = torch.full((2,), float(g.rank + 1))[::2]
    assert x.stride() == (2,)
    same(g.all_gather(x), torch.arange(1.0, g.size + 1))
    g.broadcast_(x, 0)
    same(x, torch.ones(1))


def closed_groups_are_let_go(dev):
    other = dev.group("short", timeout=20)
    other.close()
    dev.group("next", timeout=20).close()
    assert other not in [entry[2] for entry in dev._groups.values()]
