"""Many nights of one process: neither contents nor memory are lost."""

from __future__ import annotations

import gc
import hashlib
from pathlib import Path

import pytest
import torch

import trivet.memory
from trivet.memory.tiers.mapping import bytes_of

CPU = torch.device("cpu")
NIGHTS = 100


@pytest.mark.soak
def test_a_hundred_nights_lose_neither_contents_nor_memory():
    def resident():
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096

    memory = trivet.memory.open(CPU)
    # beyond 32 MiB malloc maps each piece by itself; smaller ones leave holes of varying size
    weights = {"w": torch.randn(9 << 20)}
    caches = memory.kv_caches(1, 36, 16, 8, 4096, torch.bfloat16)
    for layer in caches:
        for tensor in layer:
            tensor.normal_()
    memory.sleeper.add(weights)

    def checksum():
        digest = hashlib.blake2b()
        for tensor in (*weights.values(), *(t for layer in caches for t in layer)):
            digest.update(bytes_of(tensor))  # numpy() would fix the size of its storage for ever
        return digest.hexdigest()

    first = checksum()
    memory.sleep(keep=["weights", "kv_cache"])
    memory.wake()
    before = resident()
    for _ in range(NIGHTS):
        memory.sleep(keep=["weights", "kv_cache"])
        memory.wake()
        assert checksum() == first
    gc.collect()
    assert abs(resident() - before) <= before // 100
