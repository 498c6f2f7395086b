"""Each composition against what the backend does itself, and what reductions promise of bits."""

from __future__ import annotations

import itertools

import torch
from asking import refuses

from trivet.collectives.composed import Composed
from trivet.contracts.collectives import DETERMINISM, MOVEMENT, OPERATIONS, REDUCING, offers_of
from trivet.errors import CommUnsupported

MADE = [(claim.operation, claim.name) for claim in offers_of(Composed)]
SIZES = (0, 7, 9_000)  # elements of each rank: below, and above the bound of small messages


def noise(rank, count, dtype=torch.float32):
    torch.manual_seed(rank)
    return (torch.randn(count) * 3).to(dtype)


def results(g, operation, dtype):
    """What an operation gives for several sizes and roots."""
    for count in SIZES:
        x = noise(g.rank, count * g.size, dtype)
        if operation == "all_reduce":
            yield g.all_reduce(x)
            yield g.all_reduce(x[: max(0, len(x) - 1)], "max")
        elif operation == "reduce_scatter":
            yield g.reduce_scatter(x)
        elif operation == "reduce":
            yield g.reduce(x, count % g.size)
        elif operation in {"broadcast", "gather", "scatter"}:
            yield getattr(g, operation)(x, count % g.size)
        elif operation == "all_gather":
            yield g.all_gather(x)
        elif operation == "all_to_all":
            yield g.all_to_all(x)
        elif operation == "all_to_all_v":
            rows = [[(a + 2 * b + count) % 5 for b in range(g.size)] for a in range(g.size)]
            mine = noise(g.rank, sum(rows[g.rank]), dtype)
            yield g.all_to_all(mine, [row[g.rank] for row in rows], rows[g.rank])
        elif operation == "barrier":
            yield g.barrier() or torch.empty(0)
        else:
            x = x.view(-1, g.size) if count else torch.zeros(0, g.size).to(dtype)
            yield from g.all_reduce_add_rms_norm(
                x, torch.ones_like(x), torch.ones(g.size).to(dtype)
            )


def each_is_as_the_backends_own(dev):
    plain = dev.group("plain")
    for operation, name in MADE:
        prefer = {operation: f"composed/{name}"}
        g = dev.group(f"{operation}/{name}", prefer=prefer)
        for dtype in (torch.float32, torch.bfloat16)[: 1 + (operation in REDUCING)]:
            pairs = zip(results(g, operation, dtype), results(plain, operation, dtype), strict=True)
            for got, expected in pairs:
                if operation in MOVEMENT:
                    assert torch.equal(got, expected), (operation, name)
                else:
                    loose = 0.1 if dtype == torch.bfloat16 else 1e-5  # gloo rounds at every step
                    torch.testing.assert_close(got, expected, rtol=loose, atol=loose)
        used = {c["provider"] for c in g.calls()["calls"] if c["operation"] == operation}
        assert f"composed/{name}" in used
        g.close()


def everything_of_messages(dev):
    """With messages alone, everything is there, and nothing else is used."""
    prefer = {o: "composed/messages" for o, n in MADE if n == "messages"}
    prefer |= {"all_reduce": ["composed/all_gather_sum", "composed/two_shot"]}
    prefer |= {"all_to_all": "composed/all_to_all_v", "barrier": "composed/all_gather"}
    prefer |= {"reduce": ["composed/gather_sum", "composed/all_reduce"]}
    g = dev.group("messages", prefer=prefer)
    plain = dev.group("plain")
    for operation in OPERATIONS:
        if operation == "batch":
            continue
        for got, expected in zip(
            results(g, operation, torch.float32), results(plain, operation, torch.float32),
            strict=True,
        ):  # fmt: skip
            torch.testing.assert_close(got, expected)
    assert {c["provider"].partition("/")[0] for c in g.calls()["calls"]} == {"composed"}


def bits(dev):
    """Levels of determinism hold wherever they are claimed."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    names = {
        "backend": {"all_reduce": "torch/gloo", "reduce_scatter": "torch/gloo"},
        "composed": {o: [f"composed/{n}" for p, n in MADE if p == o] for o in REDUCING},
    }
    for (name, prefer), dtype, each in itertools.product(names.items(), dtypes, (40, 9_000)):
        g = dev.group(name, prefer=prefer)
        rows = g.table([str(dtype).removeprefix("torch.")])
        count = each * g.size
        claimed = next(
            r["determinism"] for r in rows
            if r["operation"] == "all_reduce"
            and (r["to_bytes"] is None or r["to_bytes"] >= count * dtype.itemsize)
        )  # fmt: skip
        levels = DETERMINISM if "order" in claimed else claimed
        everyone = [noise(r, count, dtype) for r in range(g.size)]
        whole = g.all_reduce(everyone[g.rank])
        if "run" in levels:
            assert torch.equal(whole, g.all_reduce(everyone[g.rank]))
        if "ranks" in levels:
            assert all(torch.equal(whole, w) for w in g.all_gather(whole).chunk(g.size))
        if "slice" in levels:
            part = g.all_reduce(everyone[g.rank][3 : count // 2])
            assert torch.equal(part, whole[3 : count // 2])
        if "order" in levels:
            total = everyone[0].to(torch.float32, copy=True)
            for x in everyone[1:]:
                total += x.float()
            assert torch.equal(whole, total.to(dtype)), (name, dtype, count)
            mine = total.to(dtype).chunk(g.size)[g.rank]
            assert torch.equal(g.reduce_scatter(everyone[g.rank]), mine) or name == "backend"


def nobody_may(dev):
    g = dev.group()
    words = "forbidden by TRIVET_FORBID comm.all_gather"
    refuses(lambda: g.all_gather(torch.ones(3)), words, CommUnsupported)
    assert g.usable
    assert g.all_reduce(torch.ones(3)).eq(g.size).all()
