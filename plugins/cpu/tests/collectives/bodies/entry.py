"""The main program of one rank: share memory with the others, run bodies, write what they say."""

from __future__ import annotations

import runpy
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from trivet.contracts.collectives import Group, Member
from trivet_cpu.collectives.shared_memory import SharedMemoryRanks


def group_of(job, name="g"):
    members = tuple(Member(rank, "here", 0, "cpu") for rank in range(job["size"]))
    return Group(name, job["rank"], members, torch.device("cpu"), job["seconds"])


def main(job):
    said = Path(job["folder"]) / f"{job['rank']}.txt"
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(f"{job['folder']}/store", job["size"])
        bodies = runpy.run_path(job["file"], {"JOB": job})
        text = ""
        for body in job["bodies"].split():
            if getattr(bodies[body], "opens", False):
                text += bodies[body](group_of(job), store) or ""
                continue
            group = group_of(job, body)
            ranks = SharedMemoryRanks(group, dist.PrefixStore(body, store))
            text += bodies[body](ranks) or ""
            ranks.close()
    except BaseException:  # noqa: BLE001  # written down, and the exit status says it
        said.write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(1)
    said.write_text(text, encoding="utf-8")


if __name__ == "__rank__":
    main(globals()["JOB"])  # given by whoever runs this file
