from __future__ import annotations

import gc
import threading

import pytest
import torch

from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory import Ledger


def test_amounts_are_counted_by_tag_and_released_once():
    ledger = Ledger()
    weights = ledger.account(100, "weights")
    cache = ledger.account(50, "cache")
    assert ledger.used_bytes == 150
    assert ledger.by_tag() == {"weights": 100, "cache": 50}
    weights.release()
    weights.release()
    assert ledger.used_bytes == 50
    assert ledger.by_tag() == {"cache": 50}
    cache.release()
    assert ledger.by_tag() == {}


def test_a_token_is_a_context():
    ledger = Ledger()
    with ledger.account(10, "scratch") as token:
        assert (token.nbytes, token.tag, ledger.used_bytes) == (10, "scratch", 10)
    assert ledger.used_bytes == 0


def test_the_peak_stays_until_it_is_reset():
    ledger = Ledger()
    ledger.account(30).release()
    ledger.account(10)
    assert ledger.peak_bytes == 30
    ledger.reset_peak()
    assert ledger.peak_bytes == 10


def test_the_limit_names_what_was_asked_what_is_free_and_for_what():
    ledger = Ledger(limit_bytes=100)
    held = ledger.account(70, "weights")
    with pytest.raises(OutOfMemory) as caught:
        ledger.account(31, "cache")
    error = caught.value
    assert (error.requested_bytes, error.free_bytes, error.limit_bytes) == (31, 30, 100)
    assert (error.tag, error.retryable) == ("cache", True)
    assert isinstance(error, torch.OutOfMemoryError)
    assert ledger.by_tag() == {"weights": 70}
    assert ledger.peak_bytes == 70
    held.release()
    ledger.account(31, "cache")
    assert ledger.free_bytes == 69


def test_what_exceeds_the_limit_alone_is_not_worth_a_retry():
    with pytest.raises(OutOfMemory) as caught:
        Ledger(limit_bytes=100).account(101)
    assert not caught.value.retryable


def test_a_limit_below_what_is_used_leaves_nothing_free():
    ledger = Ledger()
    ledger.account(10)
    assert ledger.free_bytes is None
    ledger.limit_bytes = 4
    assert ledger.free_bytes == 0
    ledger.account(0)
    with pytest.raises(OutOfMemory):
        ledger.account(1)


def test_a_negative_amount_is_refused():
    with pytest.raises(MemoryFault):
        Ledger().account(-1)


def test_a_tensor_counts_with_its_whole_storage_until_the_last_view_ends():
    ledger = Ledger()
    tensor = torch.empty(1000, dtype=torch.float32)
    ledger.account(tensor, "weights")
    view = tensor[10:20]
    del tensor
    gc.collect()
    assert ledger.used_bytes == 4000
    assert view.shape == (10,)
    del view
    gc.collect()
    assert ledger.used_bytes == 0


def test_tied_tensors_count_once_until_both_tokens_are_released():
    ledger = Ledger()
    embedding = torch.empty(8, 4)
    first = ledger.account(embedding, "embedding")
    second = ledger.account(embedding.view(4, 8), "head")
    assert ledger.by_tag() == {"embedding": 128}
    assert second.tag == "embedding"
    first.release()
    assert ledger.used_bytes == 128
    second.release()
    assert ledger.used_bytes == 0
    ledger.account(embedding, "again")
    assert ledger.by_tag() == {"again": 128}


def test_a_token_may_outlive_its_tensor():
    ledger = Ledger()
    token = ledger.account(torch.empty(4))
    gc.collect()
    assert ledger.used_bytes == 0
    token.release()
    assert ledger.used_bytes == 0


def test_a_tensor_may_outlive_its_token():
    ledger = Ledger()
    tensor = torch.empty(4)
    ledger.account(tensor).release()
    del tensor
    gc.collect()
    assert ledger.used_bytes == 0
    assert ledger.by_tag() == {}


def test_storages_that_come_and_go_leave_nothing():
    ledger = Ledger()
    for n in range(200):  # identities are reused all the time here
        ledger.account(torch.empty(n + 1, dtype=torch.uint8), f"tag {n % 3}")
    gc.collect()
    assert ledger.used_bytes == 0
    assert ledger.by_tag() == {}


def test_a_token_is_bound_once():
    ledger = Ledger()
    token = ledger.account(16)
    tensor = torch.empty(4)
    token.bind(tensor)
    with pytest.raises(MemoryFault):
        token.bind(torch.empty(4))
    del tensor
    gc.collect()
    assert ledger.used_bytes == 0


def test_threads_lose_nothing():
    ledger = Ledger(limit_bytes=10_000)
    start = threading.Barrier(8)
    refused = []

    def body(seed):
        start.wait()
        kept = []
        for i in range(400):
            try:
                if i % 3 == 0:
                    kept.append(ledger.account(torch.empty(1 + (seed * i) % 7), f"tag {i % 5}"))
                else:
                    kept.append(ledger.account(1 + (seed * i) % 11, f"tag {i % 5}"))
            except OutOfMemory as error:
                refused.append(error.requested_bytes)
            if i % 2:
                kept.pop(0).release()
        for token in kept:
            token.release()
            token.release()

    threads = [threading.Thread(target=body, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert ledger.used_bytes == 0
    assert ledger.by_tag() == {}
    assert 0 < ledger.peak_bytes <= 10_000


def test_concurrent_reservations_never_pass_the_limit_together():
    ledger = Ledger(limit_bytes=100)
    start = threading.Barrier(8)
    outcomes = []

    def body():
        start.wait()
        for _ in range(5):
            try:
                outcomes.append(ledger.account(10).nbytes)
            except OutOfMemory:
                outcomes.append(0)

    threads = [threading.Thread(target=body) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcomes) == ledger.used_bytes == 100
    assert len(outcomes) == 40


def test_a_collection_under_the_lock_does_not_block():
    ledger = Ledger()
    tensor = torch.empty(4)
    ledger.account(tensor)
    with ledger._lock:  # as if a collection struck in the middle of an update
        del tensor
        gc.collect()
    assert ledger.used_bytes == 0


def test_a_tensor_without_storage_counts_as_long_as_it_lives():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("not_run: this torch has no oneDNN")
    ledger, plain = Ledger(), torch.zeros(16, 8)
    opaque = plain.to_mkldnn()
    ledger.account(opaque, "packs")
    ledger.account(opaque, "again")
    assert ledger.by_tag() == {"packs": plain.nbytes}
    holder = [opaque]
    del opaque
    assert ledger.used_bytes == plain.nbytes
    holder.clear()
    assert ledger.used_bytes == 0


def test_a_reserved_amount_counts_at_once_and_in_the_peak_when_it_is_confirmed():
    ledger = Ledger(limit_bytes=100)
    first = ledger.reserve(60, "a")
    assert (ledger.used_bytes, ledger.peak_bytes) == (60, 0)
    with pytest.raises(OutOfMemory):
        ledger.reserve(41, "b")
    with ledger.account(10, "c"):
        assert ledger.peak_bytes == 10
    first.release()
    assert (ledger.used_bytes, ledger.peak_bytes) == (0, 10)
    second = ledger.reserve(30, "a")
    ledger.reset_peak()
    assert ledger.peak_bytes == 0
    second.confirm()
    second.confirm()
    assert ledger.peak_bytes == 30
    second.release()
    second.confirm()
    assert (ledger.used_bytes, ledger.peak_bytes) == (0, 30)


def test_amounts_of_nothing_come_and_go():
    ledger = Ledger()
    tokens = [ledger.account(0, "t"), ledger.account(5, "t"), ledger.account(0, "t")]
    for token in tokens:
        token.release()
    assert (ledger.used_bytes, ledger.by_tag()) == (0, {})
