"""Kernels between GPUs, interpreted: ranks are processes, their memory files that all map.

What an interpreter cannot show is the order in which hardware makes stores seen; that is
``benchmarks/collectives_gpu.py`` on real GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import required

required.triton()

HERE = Path(__file__).parent
OF_TWO = (
    "one_shot", "other dtypes", "unaligned", "reduce_scatter", "all_gather", "in_place", "fused",
    "alternating", "slow reader", "nobody_comes", "stopped", "ended",
)  # fmt: skip
OF_THREE = ("one_shot", "two_shot", "reduce_scatter", "all_gather", "in_place")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each of three ranks says of each case; empty where it was right."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(HERE / "ranks_program.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(3):
        with (folder / f"errors.{rank}").open("w") as errors:
            one = [*command, str(rank), str(folder)]
            ranks.append(subprocess.Popen(one, stderr=errors, env=environment))
    until = time.monotonic() + 150
    for process in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(1.0, until - time.monotonic()))
        process.kill()
        process.wait()
    paths = [folder / f"said.{rank}" for rank in range(3)]
    texts = [(folder / f"errors.{rank}").read_text() for rank in range(3)]
    assert all(path.exists() for path in paths), texts
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("case", OF_TWO)
def test_two_ranks(said, case):
    assert [rank.get(case, "not reached") for rank in said[:2]] == ["", ""]


@pytest.mark.parametrize("case", OF_THREE)
def test_three_ranks(said, case):
    assert [rank.get(f"{case} of 3", "not reached") for rank in said] == ["", "", ""]
