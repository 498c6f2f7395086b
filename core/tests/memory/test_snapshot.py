from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
import torch

from trivet.errors import MemoryFault
from trivet.memory import DeviceMemory, snapshot

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_publisher():
    snapshot.publisher.cache_clear()
    yield
    snapshot.publisher.cache_clear()


def test_what_is_accounted_is_published_and_read_back(tmp_path):
    folder = tmp_path / "new" / "run"
    memory = DeviceMemory(CPU, snapshots=folder)
    memory.account(10, "weights", tier="shared")
    assert memory.publish() == folder / f"{os.getpid()}.json"
    (program,), remarks = snapshot.read(folder)
    assert remarks == []
    assert program["alive"] is True
    assert program["age"] < 60
    assert program["devices"][0]["held"] == [{"tag": "weights", "tier": "shared", "nbytes": 10}]
    assert [(t, n) for _, t, n in program["devices"][0]["timeline"]] == [("weights", 10)]
    assert not list(folder.glob("*.part"))


def test_accounting_writes_at_most_once_in_a_while(tmp_path):
    memory = DeviceMemory(CPU, snapshots=tmp_path)
    memory.account(1, "first")
    written = (tmp_path / f"{os.getpid()}.json").read_bytes()
    for _ in range(100):
        memory.account(1, "second")
    assert (tmp_path / f"{os.getpid()}.json").read_bytes() == written
    memory.publish()
    assert b"second" in (tmp_path / f"{os.getpid()}.json").read_bytes()


def test_nothing_is_written_or_recorded_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    memory = DeviceMemory(CPU)
    memory.account(1, "a")
    assert memory.publish() is None
    assert memory.ledger.timeline() == []
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    memory = DeviceMemory(CPU, snapshots=blocked)
    memory.account(5, "a")
    memory.account(5, "a")
    assert memory.ledger.used_bytes == 10
    assert caplog.text.count("no longer published") == 1
    with pytest.raises(MemoryFault, match="cannot be written"):
        memory.publish()


def test_a_process_that_ended_goes_and_one_that_lives_stays(tmp_path):
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        document = json.loads(DeviceMemory(CPU, snapshots=tmp_path).publish().read_text())
        started = snapshot._started(child.pid)
        text = json.dumps(document | {"pid": child.pid, "started": started})
        (tmp_path / "child.json").write_text(text)
        assert {p["pid"] for p in snapshot.read(tmp_path)[0]} == {os.getpid(), child.pid}
        child.communicate(b"\n", 60)
    assert [p["pid"] for p in snapshot.read(tmp_path)[0]] == [os.getpid()]
    assert not (tmp_path / "child.json").exists()


def test_a_number_that_was_used_again_is_another_process(tmp_path):
    memory = DeviceMemory(CPU, snapshots=tmp_path)
    path = memory.publish()
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"where": "elsewhere"}))
    assert [p["alive"] for p in snapshot.read(tmp_path)[0]] == [None]
    if document["started"] is not None:
        path.write_text(json.dumps(document | {"started": document["started"] - 1}))
        assert snapshot.read(tmp_path)[0] == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 0}', '{"schema": 1}', '{"schema": 1, "where": 1, "pid": 1}']
)
def test_a_damaged_file_is_named_and_left(tmp_path, text):
    (tmp_path / "1.json").write_text(text)
    found, remarks = snapshot.read(tmp_path)
    assert found == []
    assert remarks[0].startswith("1.json: ")
    assert (tmp_path / "1.json").exists()


def test_a_reader_never_sees_half_a_file(tmp_path):
    memory = DeviceMemory(CPU, snapshots=tmp_path)
    memory.account(1, "a")
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            memory.publish()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert snapshot.read(tmp_path)[1] == []
    finally:
        ends.set()
        for thread in threads:
            thread.join(60)
