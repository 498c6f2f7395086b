"""A new group of the survivors of one that has failed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from trivet.collectives.agreement import prefixed
from trivet.collectives.assembly import Plan
from trivet.collectives.health import meaning
from trivet.collectives.launch import Launcher
from trivet.collectives.native import gloo
from trivet.collectives.patience import LEEWAY, bounded
from trivet.collectives.survivors import survivors
from trivet.contracts.collectives import Store
from trivet.errors import CommUnavailable, TrivetError
from trivet.selection.authority import COLLECTIVES

if TYPE_CHECKING:
    from trivet.collectives.device import DeviceCollectives
    from trivet.collectives.group import DeviceGroup


def shrunk(
    opener: DeviceCollectives,
    plan: Plan,
    launcher: Launcher,
    dead: Collection[int] | None,
    grace: float,
) -> DeviceGroup:
    """See ``DeviceGroup.shrink``."""
    store = prefixed("shrink/", plan.store)
    where = launcher.health.where
    try:
        left = bounded(
            lambda: survivors(launcher.group, store, dead, grace, where),
            grace + plan.timeout + LEEWAY,
        )
        own = prefixed("group/", store)
        ranks = tuple(plan.ranks[position] for position in left)
        made, dissolve = _made(plan, ranks, left.index(plan.rank), own)
    except TrivetError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        found = meaning(error, "torch.distributed")
        found.what = f"shrink of {where}: {found.what}"
        raise found from error
    argument = plan.policy.argument.items()
    return opener.over(
        made, ranks, left.index(plan.rank), own, f"{plan.name}-{len(ranks)}",
        timeout=plan.timeout, check=launcher.check, determinism=plan.determinism,
        prefer={key.removeprefix(COLLECTIVES): ids for key, ids in argument},
        dissolve=dissolve,
    )  # fmt: skip


def _made(
    plan: Plan, ranks: tuple[int, ...], rank: int, store: Store
) -> tuple[Any, Callable[[], None]]:
    if plan.backend_name == dist.Backend.GLOO:
        return gloo(store, rank, len(ranks), plan.timeout), lambda: None
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        raise CommUnavailable(
            "the world group is gone", fix="initialise torch.distributed again, with the survivors"
        )
    made = dist.new_group(
        list(ranks),
        timeout=timedelta(seconds=plan.timeout),
        backend=plan.backend_name,
        use_local_synchronization=True,
    )

    def dissolve() -> None:
        if dist.is_initialized() and dist.group.WORLD is world:
            dist.destroy_process_group(made)

    return made, dissolve
