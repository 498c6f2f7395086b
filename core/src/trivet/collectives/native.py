"""Groups of ``torch.distributed``: made, taken apart, given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from trivet.collectives.agreement import prefixed
from trivet.collectives.health import meaning
from trivet.contracts.collectives import Store
from trivet.errors import CommError

BRIDGE: Final = "trivet"
"""Name of the backend under which groups of trivet are process groups of torch."""

DEFAULT_SECONDS: Final = 1800.0  # torch's own default for gloo


def native(group: Any, device: torch.device) -> tuple[Any, str]:
    """What of a process group takes the calls, and the name of its backend.

    Gloo is called without torch's wrapper, which costs more than a small message.
    """
    if not isinstance(group, dist.ProcessGroup):
        return group, str(group.name())
    found = group._get_backend(device)  # noqa: SLF001 - torch has no other name for it
    name = str(found.name())
    return (found, name) if name == dist.Backend.GLOO else (group, name)


def seconds(backend: Any) -> float:
    """How long a backend waits, where it says so."""
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) else DEFAULT_SECONDS


def gloo(store: Store, rank: int, size: int, timeout: float | None) -> Any:
    """A gloo group of its members alone, known to nobody else.

    Raises:
        CommError: the members did not come, or cannot connect.
    """
    waiting = timedelta(seconds=DEFAULT_SECONDS if timeout is None else timeout)
    try:
        own: Any = prefixed("gloo/", store)
        return dist.ProcessGroupGloo(own, rank, size, waiting)
    except (RuntimeError, ValueError) as error:
        raise meaning(error, "torch.distributed/gloo") from error


def native_group(
    world: dist.ProcessGroup,
    groups: Sequence[tuple[int, ...]],
    backend: str,
    store: Store,
    timeout: float | None,
    where: str,
) -> tuple[Any, Callable[[], None]]:
    """The group of torch for this rank, and how to give it back.

    Args:
        world: all ranks; it serves itself where it does.
        groups: the members of each rank's group, by world rank.
        backend: of the group; empty means the world's.
        store: the group's own part of a store.
        timeout: seconds that a call waits; None leaves torch's.
        where: how errors call the group.

    Raises:
        CommError: torch cannot make it.
    """
    members = groups[world.rank()]
    if groups[0] == tuple(range(world.size())) and not backend and timeout is None:
        return world, lambda: None
    name = backend or str(dist.get_backend(world))
    try:
        if name == dist.Backend.GLOO:
            made = gloo(store, members.index(world.rank()), len(members), timeout)
            return made, lambda: None
        return _registered(world, groups, name, timeout)
    except (RuntimeError, ValueError, AssertionError, CommError) as error:
        found = meaning(error, f"torch.distributed/{name}")
        found.what = f"making {where}: {found.what}"
        raise found from error


def _registered(
    world: dist.ProcessGroup, groups: Sequence[tuple[int, ...]], backend: str, timeout: float | None
) -> tuple[dist.ProcessGroup, Callable[[], None]]:
    """A group that torch knows of: every rank makes every group, in one order."""
    found: dist.ProcessGroup | None = None
    for ranks in sorted(set(groups)):
        made = dist.new_group(
            list(ranks),
            timeout=None if timeout is None else timedelta(seconds=timeout),
            backend=backend,
        )
        if world.rank() in ranks:
            found = made
    if found is None:
        raise CommError(f"torch made no group for world rank {world.rank()}")
    group = found

    def dissolve() -> None:
        # With the world destroyed, by whoever made it, its groups are gone already.
        if dist.is_initialized() and dist.group.WORLD is world:
            dist.destroy_process_group(group)

    return group, dissolve
