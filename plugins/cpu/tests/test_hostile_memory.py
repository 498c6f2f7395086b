"""Mapped pages in the hands of somebody who errs: one error, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trivet.errors import InvalidBuffer, MemoryFault
from trivet_cpu.memory.pages import PAGE, Pages, missing
from trivet_cpu.memory.private import PrivateMemory
from trivet_cpu.memory.shared import SharedMemory


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not_run: {missing()}")


@pytest.mark.parametrize("make", [PrivateMemory, SharedMemory])
@pytest.mark.parametrize("nbytes", [-1, -PAGE, 1.5, float("nan"), "8", None])
def test_a_size_that_is_none_is_refused(make, nbytes):
    files = open_files()
    with pytest.raises(MemoryFault, match="cannot be made"):
        make().allocate(nbytes, tag="")
    assert open_files() == files


@pytest.mark.parametrize("make", [PrivateMemory, SharedMemory])
@pytest.mark.parametrize("what", [None, 5, torch.zeros(3), torch.zeros(3).to_sparse()])
def test_what_is_no_buffer_is_refused(make, what):
    memory = make()
    for call in (memory.deallocate, memory.suspend, memory.resume):
        with pytest.raises(InvalidBuffer, match="no live"):
            call(what)


@pytest.mark.parametrize("tag", ["\0", "a\0b", "\ud800", "é" * 200, "日本" * 100, "\n"])
def test_a_tag_of_any_text_names_shared_memory(tag):
    memory = SharedMemory()
    memory.deallocate(memory.allocate(8, tag=tag))


@pytest.mark.parametrize("change", [
    {"nbytes": -8}, {"nbytes": 1e999}, {"nbytes": "8"}, {"nbytes": 8.0}, {"nbytes": True},
    {"pid": -1}, {"pid": None}, {"fd": "../../etc"}, {"inode": [1]},
])  # fmt: skip
def test_an_export_that_is_none_is_refused(change):
    memory = SharedMemory()
    buffer = memory.allocate(8, tag="")
    exported = json.loads(memory.export(buffer, "shm")) | change
    files = open_files()
    with pytest.raises(MemoryFault, match="no export"):
        memory.open(json.dumps(exported).encode(), "shm")
    for text in (b"[" * 100_000, b"\xff", b"", b"[]", None):
        with pytest.raises(MemoryFault, match="no export"):
            memory.open(text, "shm")
    assert open_files() == files


def test_pages_that_the_system_does_not_take_back_stay(monkeypatch):
    def refuse(self):
        raise MemoryFault("locked")

    memory = PrivateMemory(keep_bytes=PAGE)
    small, large = memory.allocate(PAGE, tag=""), memory.allocate(4 * PAGE, tag="")
    large.fill_(7)
    with monkeypatch.context() as patch:
        patch.setattr(Pages, "give_back", refuse)
        with pytest.raises(MemoryFault, match="locked"):
            memory.deallocate(large)
        assert memory.stats().allocated_bytes == 5 * PAGE
        assert large.tolist() == [7] * (4 * PAGE)
        memory.deallocate(small)
        with pytest.raises(MemoryFault, match="locked"):
            memory.trim(0)
        assert memory.stats().reserved_bytes == 5 * PAGE
    memory.deallocate(large)
    assert memory.trim(0) == PAGE
    assert memory.stats().reserved_bytes == 0
