from __future__ import annotations

import pytest
import torch

from stand_ins import OPS
from trivet.errors import DomainError

OP = OPS["attention"]


def call(batch=2, queries=5, keys=9, heads=4, kv_heads=2, width=16, mask=None, **scalars):
    rng = torch.Generator().manual_seed(4)
    q = torch.randn(batch, queries, heads, width, generator=rng)
    k, v = (torch.randn(batch, keys, kv_heads, width, generator=rng) for _ in range(2))
    return {"q": q, "k": k, "v": v, "mask": mask, "scale": width**-0.5, **scalars}


def run(given):
    return OP.reference(**given)


def by_position(queries, keys, causal, window):
    """Which keys a query sees, pair by pair."""
    seen = torch.zeros(1, 1, queries, keys, dtype=torch.bool)
    for i in range(queries):
        own = keys - queries + i
        for j in range(keys):
            far = window and abs(own - j) >= window
            seen[0, 0, i, j] = not far and not (causal and j > own)
    return seen


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (5, 5), (7, 3)])
@pytest.mark.parametrize(("causal", "window"), [(True, 0), (True, 2), (False, 2), (True, 1)])
@pytest.mark.parametrize("soft_cap", [0.0, 3.0])
def test_positions_are_a_mask_aligned_at_the_end(queries, keys, causal, window, soft_cap):
    given = call(queries=queries, keys=keys, soft_cap=soft_cap)
    seen = by_position(queries, keys, causal, window)
    want = run(given | {"mask": seen})
    got = run(given | {"causal": causal, "window": window})
    assert torch.equal(got, want)
    blind = ~seen.any(-1)[0, 0]
    assert not got[:, blind].any()
    assert got[:, ~blind].any()
    added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    assert torch.equal(run(given | {"mask": added}), want)


def test_a_causal_call_is_a_prefill_of_paged_attention():
    given = call(batch=1, queries=4, keys=8, causal=True, window=3, soft_cap=5.0)
    paged = OPS["paged_attention"].reference(
        given["q"][0],
        given["k"][0][None],
        given["v"][0][None],
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([0, 4], dtype=torch.int32),
        torch.tensor([8], dtype=torch.int32),
        4,
        8,
        given["scale"],
        [],
        window=3,
        soft_cap=5.0,
    )
    torch.testing.assert_close(run(given)[0], paged)


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 4, 1), (1, 1, 5), (2, 4, 5)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_a_mask_broadcasts(sizes, kind):
    rng = torch.Generator().manual_seed(1)
    drawn = torch.randn(*sizes, 9, generator=rng)
    mask = drawn > -1 if kind is torch.bool else drawn
    assert torch.equal(run(call(mask=mask)), run(call(mask=mask.expand(2, 4, 5, 9).contiguous())))


def test_the_mask_is_added_after_the_cap():
    mask = torch.zeros(1, 1, 1, 9)
    mask[..., 3] = 1000.0
    given = call(mask=mask, soft_cap=1.0)
    v = given["v"][:, 3].repeat_interleave(2, 1)[:, None].expand(2, 5, 4, 16)
    torch.testing.assert_close(run(given), v)


def test_a_hidden_key_does_not_count_whatever_it_holds():
    mask = torch.ones(1, 1, 1, 9, dtype=torch.bool)
    mask[..., 2] = False
    given = call(mask=mask)
    spoiled = given["k"].clone()
    spoiled[:, 2] = torch.nan
    assert torch.equal(run(given | {"k": spoiled}), run(given))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_heads": 3}, "3 heads"),
        ({"window": -1}, "window"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"mask": torch.ones(1, 1, 2, 9)}, "mask has shape"),
        ({"mask": torch.ones(3, 1, 1, 9)}, "mask has shape"),
        ({"mask": torch.ones(1, 2, 1, 9)}, "mask has shape"),
        ({"mask": torch.ones(1, 1, 1, 9, dtype=torch.int32)}, "int32"),
    ],
)
def test_refusals(change, words):
    with pytest.raises(DomainError, match=words):
        run(call(**change))
