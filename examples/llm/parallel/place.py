"""Which rank this process is: what a launcher says in variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from llm.errors import RequestError

_PORTS = 15000, 20000  # the first, and how many: of jobs whose launcher names no port


@dataclass(frozen=True)
class Place:
    """One rank of a run.

    Args:
        rank: Which one.
        size: How many there are.
        local_rank: Which one it is on its machine.
        local_size: How many are on its machine.
        by: Who started them.
        address: Where they meet: a machine and a port.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    by: str = "engine"
    address: tuple[str, int] = ("127.0.0.1", 0)


def launched(environ: Mapping[str, str]) -> Place | None:
    """The place that torchrun or SLURM's srun gave this process; None where nobody did.

    Raises:
        RequestError: The launcher's variables cannot be right.
    """
    try:
        if "RANK" in environ and int(environ.get("WORLD_SIZE", "1")) > 1:
            return _by_torch(environ)
        if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            return _by_slurm(environ)
    except (KeyError, ValueError) as error:
        what = f"the variables of the launcher cannot be right: {error!r}"
        raise RequestError(what, fix="start with torchrun or srun, or with --tp alone") from error
    return None


def _by_torch(environ: Mapping[str, str]) -> Place:
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    return Place(
        rank,
        size,
        int(environ.get("LOCAL_RANK", rank)),
        int(environ.get("LOCAL_WORLD_SIZE", size)),
        "torchrun",
        (environ["MASTER_ADDR"], int(environ["MASTER_PORT"])),
    )


def _by_slurm(environ: Mapping[str, str]) -> Place:
    node = int(environ.get("SLURM_NODEID", "0"))
    per_node = _per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    first, several = _PORTS
    number = int(environ["SLURM_JOB_ID"]) * 31 + int(environ.get("SLURM_STEP_ID", "0"))
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    return Place(
        int(environ["SLURM_PROCID"]),
        int(environ["SLURM_STEP_NUM_TASKS"]),
        int(environ["SLURM_LOCALID"]),
        per_node[node],
        "srun",
        (host, int(environ.get("MASTER_PORT", first + number % several))),
    )


def _per_node(text: str) -> list[int]:
    """``2(x3),1`` as [2, 2, 2, 1]."""
    found = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        found += [int(count)] * int(times.rstrip(")") or 1)
    return found


def first_host(text: str) -> str:
    """``node[07-09,12]-a,other`` as node07-a."""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", text)
    if found is None:
        raise ValueError(text)
    return "".join(part or "" for part in found.groups())
