"""The main program of one rank: join the world, run bodies, write down what they say."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import trivet.collectives

RENDEZVOUS_SECONDS = 30


def join(job):
    os.environ.update(job["environ"])
    loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback.pop()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job['folder']}/store",
        rank=job["rank"],
        world_size=job["size"],
        timeout=timedelta(seconds=RENDEZVOUS_SECONDS),
    )


def main(job):
    said = Path(job["folder"]) / f"{job['rank']}.txt"
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    try:
        join(job)
        sys.path.insert(0, str(Path(__file__).parent))
        bodies = runpy.run_path(str(Path(__file__).parent / job["file"]))
        dev = trivet.collectives.open(torch.device("cpu"))
        text = "".join(bodies[body](dev) or "" for body in job["bodies"].split())
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  # written down, and the exit status says it
        said.write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(1)
    said.write_text(text, encoding="utf-8")


if __name__ == "__world__":
    main(globals()["JOB"])  # given by whoever runs this file
