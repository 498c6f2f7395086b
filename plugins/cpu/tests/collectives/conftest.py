"""Groups of processes on this machine: functions of a file in ``bodies`` run on every rank."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import runpy
import signal
import time
from pathlib import Path

import pytest

from trivet_cpu.collectives import missing

BODIES = Path(__file__).parent / "bodies"
DEADLINE_SECONDS = 40.0
GRACE_SECONDS = 6.0


@pytest.fixture(scope="session")
def forkserver():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "trivet_cpu.collectives"])
    return context


@pytest.fixture
def ranks(forkserver, tmp_path):
    """Runs bodies on so many ranks; returns what each rank said.

    ``dies`` are ranks that end on purpose, or that are stopped and ended here, with nothing said.
    """
    assert not missing()
    count = 0

    def run(file, bodies, size, *, dies=(), seconds=20.0, argument=None):
        nonlocal count
        count += 1
        folder = tmp_path / f"group{count}"
        folder.mkdir()
        jobs = [
            {"file": str(BODIES / file), "bodies": bodies, "rank": rank, "size": size,
             "folder": str(folder), "seconds": seconds, "argument": argument}
            for rank in range(size)
        ]  # fmt: skip
        entry = str(BODIES / "entry.py")
        processes = [
            forkserver.Process(target=runpy.run_path, args=(entry, {"JOB": job}, "__rank__"))
            for job in jobs
        ]
        for process in processes:
            process.start()
        wait_for(processes, dies)
        said = [read(folder / f"{rank}.txt") for rank in range(size)]
        for rank, process in enumerate(processes):
            if rank not in dies:
                code = process.exitcode
                assert code == 0, f"rank {rank} ended with {code}: " + "\n".join(said)
        return said

    return run


def wait_for(processes, dies):
    """Waits for all but those that die; whoever is left then is killed."""
    living = [p for rank, p in enumerate(processes) if rank not in dies]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(p.exitcode is None for p in living) and time.monotonic() < deadline:
        if any(p.exitcode for p in living):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)  # the rest would wait
        multiprocessing.connection.wait([p.sentinel for p in living if p.exitcode is None], 0.1)
    for process in processes:
        if process.exitcode is None:
            process.kill()
        process.join()
    killed = [p for p in living if p.exitcode == -signal.SIGKILL]
    assert not killed, f"{len(killed)} ranks did not end"


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""
