"""The program of one rank: it joins a world, and does what the kit asks until it is told to end."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from trivet.collectives import DeviceGroup
from trivet_conformance.collective.judged import Wrong
from trivet_conformance.subject.comm_leg import CommLeg, comm_leg_of

RENDEZVOUS_SECONDS: Final = 60
Answer = tuple[str, Any]
"""A word (``ok``, ``wrong``, ``error``) and what belongs to it."""


class Here:
    """One rank, as the bodies of checks see it.

    Args:
        job: what the kit said.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.rank: int = job["rank"]
        self.size: int = job["size"]
        self.timeout: float = job["timeout"]
        self.leg: CommLeg = comm_leg_of(job["recipe"])
        self.device = _device(self.leg.device, self.rank)
        self.dev = self.leg.open(self.device)
        self._opened = 0

    def group(self, **options: Any) -> DeviceGroup:
        """A new group; every rank asks for the same ones in the same order."""
        self._opened += 1
        options = {"timeout": self.timeout, **options}
        return self.dev.group(f"conformance{self._opened}", **options)


def main(connection: Connection, job: Mapping[str, Any]) -> None:
    """Joins the world, then answers one question after the other."""
    _end_with_parent()
    torch.set_num_threads(1)
    os.environ.update(job["environ"])
    try:
        _join(job)
        here = Here(job)
    except BaseException:  # noqa: BLE001 - told to the kit, and the process ends
        _tell(connection, ("error", traceback.format_exc()))
        os._exit(1)
    _tell(connection, ("ok", os.getpid()))
    while True:
        try:
            body, given, limit = connection.recv()
        except EOFError:
            os._exit(0)
        faulthandler.dump_traceback_later(limit, exit=True, file=_nowhere())
        _tell(connection, _answer(here, body, given))
        faulthandler.cancel_dump_traceback_later()


def _answer(here: Here, body: str, given: Mapping[str, Any]) -> Answer:
    module, _, name = body.partition(":")
    try:
        return "ok", getattr(importlib.import_module(module), name)(here, **given)
    except Wrong as problem:
        return "wrong", str(problem)
    except BaseException as error:  # noqa: BLE001 - of a vendor or of core: told to the kit
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "error", f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def _tell(connection: Connection, answer: Answer) -> None:
    try:
        connection.send(answer)
    except OSError:  # the kit is gone
        os._exit(0)


def _join(job: Mapping[str, Any]) -> None:
    loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.pop())
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(job['folder']) / 'store'}",
        rank=job["rank"],
        world_size=job["size"],
        timeout=timedelta(seconds=RENDEZVOUS_SECONDS),
    )


def _device(first: torch.device, rank: int) -> torch.device:
    """The device of a rank: one each where there are several."""
    if first.type == "cpu":
        return first
    device = torch.device(first.type, rank)
    torch.accelerator.set_device_index(rank)
    return device


def devices(first: torch.device) -> int:
    """How many ranks have a device each; 0 is without a limit."""
    return 0 if first.type == "cpu" else torch.accelerator.device_count()


def world_sizes(first: torch.device, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those sizes for which there are devices."""
    most = devices(first)
    return tuple(n for n in sizes if not most or n <= most)


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def _end_with_parent() -> None:
    """Asks the system, where it knows how, to end this process with the one that forked it."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
