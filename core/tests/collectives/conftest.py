"""Worlds of processes: functions of a file in ``bodies`` run on every rank of a new world."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import runpy
import time
from pathlib import Path

import pytest

BODIES = Path(__file__).parent / "bodies"
DEADLINE_SECONDS = 60.0
GRACE_SECONDS = 3.0


@pytest.fixture(scope="session")
def forkserver():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "trivet.collectives", "pytest"])
    return context


@pytest.fixture
def world(forkserver, tmp_path):
    """Runs bodies of a file one after the other on so many ranks; returns what each rank said.

    ``dies`` are ranks that end on purpose without saying anything.
    """

    def run(file, bodies, size, dies=(), environ=None):
        folder = tmp_path / "world"
        folder.mkdir()
        processes = []
        for rank in range(size):
            job = {
                "file": file,
                "bodies": bodies,
                "rank": rank,
                "size": size,
                "folder": str(folder),
                "environ": environ or {},
            }
            processes.append(
                forkserver.Process(  # a function of the standard library: children can import it
                    target=runpy.run_path,
                    args=(str(BODIES / "entry.py"), {"JOB": job}, "__world__"),
                )
            )
        for process in processes:
            process.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while any(p.exitcode is None for p in processes) and time.monotonic() < deadline:
            if any(p.exitcode for rank, p in enumerate(processes) if rank not in dies):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)  # the rest would wait
            multiprocessing.connection.wait([p.sentinel for p in processes if p.is_alive()], 0.2)
        hanging = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        for rank in hanging:
            processes[rank].kill()
            processes[rank].join()
        said = {}
        for rank in range(size):
            path = folder / f"{rank}.txt"
            said[rank] = path.read_text(encoding="utf-8") if path.exists() else ""
        for rank, process in enumerate(processes):
            if rank not in dies and rank not in hanging:
                code = process.exitcode
                assert code == 0, f"rank {rank} ended with {code}:\n{said[rank]}"
        assert not hanging, f"ranks {hanging} hang; said: {said}"
        return [said[rank] for rank in range(size)]

    return run
