"""Who is left of a group that has failed."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from trivet.collectives.place import ended
from trivet.contracts.collectives import Group, Store
from trivet.errors import CommTimeout, GroupMismatch

GRACE: Final = 1.0
"""Seconds that a rank which may be alive has to say so, after the first one has."""

_PAUSE: Final = 0.02


def survivors(
    group: Group, store: Store, dead: Collection[int] | None, grace: float, where: str
) -> tuple[int, ...]:
    """Positions of the members that go on; all of them get the same answer.

    Every survivor makes this call. With ``dead``, those are the others. Without, ranks announce
    themselves: the first one to do so decides after ``grace`` seconds who is in, or as soon as
    every rank has come whose process is not known to have ended.

    Raises:
        GroupMismatch: the others decided without this rank, or other ranks are said to be dead.
        CommTimeout: nobody decided in time.
    """
    everyone = range(group.size)
    first = store.add("decides", 1) == 1
    store.set(f"here/{group.rank}", "")
    if first:
        if dead is None:
            members = _announced(group, store, grace)
        else:
            members = [rank for rank in everyone if rank not in dead]
        store.set("members", json.dumps(members))
    try:
        store.wait(["members"], timedelta(seconds=grace + group.timeout))
    except RuntimeError as error:
        raise CommTimeout(
            f"{where}: nobody decided who is left of it", fix="start again"
        ) from error
    decided = tuple(json.loads(store.get("members")))
    told = None if dead is None else tuple(rank for rank in everyone if rank not in dead)
    if group.rank not in decided or (told is not None and told != decided):
        raise GroupMismatch(
            f"{where}: the ranks that go on are {list(decided)}; rank {group.rank} "
            + ("came too late" if told is None else f"was told {list(told)}"),
            ranks=(group.rank,),
            fix="end this process, and let it join a new world",
        )
    return decided


def _announced(group: Group, store: Store, grace: float) -> list[int]:
    deadline = time.monotonic() + grace
    while True:
        here = [rank for rank in range(group.size) if store.check([f"here/{rank}"])]
        if len(here) + len(set(ended(group)) - set(here)) == group.size:
            return here
        if time.monotonic() > deadline:
            return here
        time.sleep(_PAUSE)
