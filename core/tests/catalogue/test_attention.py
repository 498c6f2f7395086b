from __future__ import annotations

import pytest
import torch

from stand_ins import OPS

OP = OPS["paged_attention"]
HEADS, KV_HEADS, WIDTH, SIZE, MAX_BLOCKS, BLOCKS = 4, 2, 16, 4, 5, 24
LENS = [13, 4, 20, 1]
QUERIES = [3, 4, 1, 1]


def pages(rng, seqs):
    """Every sequence has pages of its own."""
    order = torch.randperm(BLOCKS, generator=rng)[: seqs * MAX_BLOCKS]
    return order.view(seqs, MAX_BLOCKS).int()


def call(lens=LENS, queries=QUERIES, seed=0, tokens=None, **changed):
    rng = torch.Generator().manual_seed(seed)
    start = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    total = sum(queries) if tokens is None else tokens
    made = {
        "q": torch.randn(total, HEADS, WIDTH, generator=rng),
        "k_cache": torch.randn(BLOCKS, SIZE, KV_HEADS, WIDTH, generator=rng),
        "v_cache": torch.randn(BLOCKS, SIZE, KV_HEADS, WIDTH, generator=rng),
        "block_table": pages(rng, len(lens)),
        "query_start": start,
        "seq_lens": torch.tensor(lens, dtype=torch.int32),
        "max_query_len": max(queries),
        "max_seq_len": max(lens),
        "scale": WIDTH**-0.5,
        "schedule": [],
    }
    return made | changed


def run(given):
    return OP.reference(**given)


@pytest.mark.parametrize("scalars", [{}, {"window": 3}, {"soft_cap": 1.5}])
def test_where_a_block_lies_does_not_matter(scalars):
    given = call(**scalars)
    moved = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(9))
    k_cache, v_cache = given["k_cache"].clone(), given["v_cache"].clone()
    k_cache[moved], v_cache[moved] = given["k_cache"], given["v_cache"]
    table = moved[given["block_table"].long()].int()
    other = given | {"k_cache": k_cache, "v_cache": v_cache, "block_table": table}
    assert torch.equal(run(other), run(given))


@pytest.mark.parametrize("scalars", [{}, {"window": 3}, {"soft_cap": 1.5}])
@pytest.mark.parametrize("cut", [1, 4, 7])
def test_a_prefill_in_chunks_is_the_whole_prefill(cut, scalars):
    whole = call([9], [9], **scalars)
    first = whole | {
        "q": whole["q"][:cut],
        "query_start": torch.tensor([0, cut], dtype=torch.int32),
        "seq_lens": torch.tensor([cut], dtype=torch.int32),
    }
    second = whole | {
        "q": whole["q"][cut:],
        "query_start": torch.tensor([0, 9 - cut], dtype=torch.int32),
    }
    torch.testing.assert_close(torch.cat((run(first), run(second))), run(whole))


def test_sequences_do_not_see_each_other():
    given = call()
    together = run(given)
    bounds = given["query_start"].tolist()
    for s in range(len(LENS)):
        rows = slice(bounds[s], bounds[s + 1])
        alone = given | {
            "q": given["q"][rows],
            "block_table": given["block_table"][s : s + 1],
            "seq_lens": given["seq_lens"][s : s + 1],
            "query_start": torch.tensor([0, bounds[s + 1] - bounds[s]], dtype=torch.int32),
        }
        torch.testing.assert_close(run(alone), together[rows])


def test_the_maxima_are_upper_bounds():
    given = call()
    assert torch.equal(run(given | {"max_query_len": 999, "max_seq_len": 10**6}), run(given))


def test_zero_is_off_and_far_is_as_good_as_off():
    given = call()
    assert torch.equal(run(given | {"window": 0, "soft_cap": 0.0}), run(given))
    assert torch.equal(run(given | {"window": 20}), run(given))
    assert not torch.allclose(run(given | {"window": 2}), run(given))
    torch.testing.assert_close(run(given | {"soft_cap": 1e6}), run(given))
    assert not torch.allclose(run(given | {"soft_cap": 0.1}), run(given))


def test_a_window_of_one_is_the_value_of_the_own_key():
    given = call([7], [2], window=1)
    table, v = given["block_table"][0].tolist(), given["v_cache"]
    for row, position in enumerate((5, 6)):
        own = v[table[position // SIZE], position % SIZE].repeat_interleave(HEADS // KV_HEADS, 0)
        torch.testing.assert_close(run(given)[row], own)


def test_rows_that_no_sequence_covers_and_empty_sequences_are_zeros():
    given = call([13, 0, 0, 5], [3, 0, 2, 1], tokens=9)
    result = run(given)
    assert not result[3:5].any(), "a query of a sequence without keys sees nothing"
    assert not result[6:].any(), "rows behind the last sequence"
    assert result[:3].any()
    assert result[5].any()
    assert not run(call([0], [0], tokens=4)).any()


def test_more_queries_than_keys_leaves_the_first_without_any():
    result = run(call([2], [5]))
    assert not result[:3].any()
    assert result[3:].isfinite().all()
    assert result[3:].any()


@pytest.mark.parametrize("scalars", [{}, {"window": 2}])
def test_what_lies_in_unused_memory_does_not_leak(scalars):
    given = call(**scalars)
    clean, used = run(given), set()
    window = scalars.get("window", 10**6)
    for s, (length, n) in enumerate(zip(LENS, QUERIES, strict=True)):
        for position in range(max(0, length - n + 1 - window), length):
            used.add((int(given["block_table"][s, position // SIZE]), position % SIZE))
    if "window" in scalars:  # whole pages before the window may be somebody else's
        blocks = {b for b, _ in used}
        used = {(b, r) for b in blocks for r in range(SIZE)}
    for cache in ("k_cache", "v_cache"):
        poisoned = torch.full_like(given[cache], torch.nan)
        for b, r in used:
            poisoned[b, r] = given[cache][b, r]
        given[cache] = poisoned
    table = given["block_table"].clone()
    for s, length in enumerate(LENS):
        table[s, -(-length // SIZE) :] = -1
    result = run(given | {"block_table": table})
    assert torch.equal(result, clean)


def test_a_strided_view_of_packed_queries_is_enough():
    given = call()
    packed = torch.randn(sum(QUERIES), HEADS + 2 * KV_HEADS, WIDTH)
    view = packed[:, :HEADS]
    dense = run(given | {"q": view.contiguous()})
    result = run(given | {"q": view})
    assert torch.equal(result, dense)
    assert result.is_contiguous()


def test_wide_queries_over_a_narrow_cache_compute_in_the_wider_dtype():
    given = call()
    narrow = {n: given[n].bfloat16() for n in ("k_cache", "v_cache")}
    wide = {n: t.double() for n, t in narrow.items()}
    expected = run(given | wide | {"q": given["q"].double()})
    result = run(given | narrow | {"q": given["q"].double()})
    assert result.dtype == torch.float64
    assert torch.equal(result, expected)
    assert run(given | narrow).dtype == torch.float32


def test_a_later_token_does_not_change_an_earlier_row():
    given = call([9], [9])
    before = run(given)
    last = int(given["block_table"][0, 2])
    given["k_cache"][last, 0] = 100.0
    given["v_cache"][last, 0] = 100.0
    assert torch.equal(run(given)[:8], before[:8])
    assert not torch.equal(run(given)[8], before[8])
