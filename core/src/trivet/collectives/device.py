"""What ``dev.collectives`` is: it opens groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, cast

import torch
import torch.distributed as dist

from trivet.collectives.agreement import FAILED, Agreement, Prefixed, Record
from trivet.collectives.group import DeviceGroup
from trivet.collectives.start import Members
from trivet.collectives.stock import StockCollective
from trivet.collectives.work import Health, reported
from trivet.contracts.collectives import (
    OPERATIONS,
    Closable,
    CollectiveProvider,
    GroupInfo,
    Store,
)
from trivet.errors import CommError, CommUnavailable, OrderError, PluginBroken
from trivet.plugins.answers import has_abilities

_DEFAULT_SECONDS: Final = 1800.0  # torch's own default for gloo


class DeviceCollectives:
    """Opens groups of ranks for one device.

    Args:
        device: where the tensors of its groups lie.
        provided: what the device's plugin brought (a ``CollectiveProvider``), or None.
        check: compare every call across ranks before it is made.

    Raises:
        PluginBroken: ``provided`` is something else.
    """

    def __init__(self, device: torch.device, provided: object, *, check: bool) -> None:
        if provided is not None and not has_abilities(provided, CollectiveProvider):
            raise PluginBroken(
                f"the collectives that the plugin of {device} brings, "
                f"{type(provided).__qualname__}, have no name or no open(group, store)",
                fix="see trivet.contracts.collectives, or return None from trivet_collectives",
            )
        self.device = device
        self.provided = cast("CollectiveProvider | None", provided)
        self.check = check
        self._groups: dict[str, tuple[Record, dist.ProcessGroup, DeviceGroup]] = {}

    def group(
        self,
        name: str = "world",
        ranks: Sequence[int] | None = None,
        backend: str | None = None,
        *,
        timeout: float | None = None,
        check: bool | None = None,
    ) -> DeviceGroup:
        """Open a group, or return the open one of that name.

        Every rank of the world makes this call, each with the ranks of its own group: ranks 0 and
        1 with ``[0, 1]``, ranks 2 and 3 with ``[2, 3]``. One that takes no part names itself.

        Args:
            name: what errors and explanations call it.
            ranks: world ranks of this process's group, itself included; None means all.
            backend: a backend of torch; by default the world's, or torch's own choice for the
                device when the world has none for it.
            timeout: seconds that an operation waits for other ranks; None leaves torch's.
            check: compare every call across ranks; None is what the device was opened with.

        Raises:
            CommUnavailable: torch has no distributed package, or no backend for the device.
            OrderError: ``torch.distributed`` was not initialised.
            CommError: the ranks' calls do not fit together, or the name is open otherwise.
        """
        world = _world()
        check = self.check if check is None else check
        backend = backend or _fitting_backend(self.device)
        mine: dict[str, object] = {
            "ranks": list(range(world.size())) if ranks is None else sorted(ranks),
            "backend": backend,
            "device": self.device.type,
            "timeout": timeout,
            "check": check,
            "name": name,
        }
        opened = self._groups.get(name)
        if opened is not None and opened[1] is world and not opened[2].closed:
            if opened[0] != mine:
                raise CommError(
                    f"group {name} is open as {dict(opened[0])}, asked for as {mine}",
                    fix="close it first, or use another name",
                )
            return opened[2]
        group = self._open(world, mine, timeout, check)
        self._groups[name] = (mine, world, group)
        return group

    def close(self) -> None:
        """Close every group that is open here; a second call does nothing."""
        while self._groups:
            self._groups.popitem()[1][2].close()

    def _open(
        self, world: dist.ProcessGroup, mine: Record, timeout: float | None, check: bool
    ) -> DeviceGroup:
        health = Health(f"group {mine['name']}")
        store, rank = world.get_group_store(), world.rank()
        number = store.add(f"trivet/calls/{rank}", 1)  # counted where a new world starts anew
        prefix = f"trivet/{number}/"
        waiting = timedelta(seconds=_DEFAULT_SECONDS if timeout is None else timeout)
        everyone = Agreement(
            Prefixed(store, f"{prefix}world/"), rank, world.size(), waiting, health
        )
        rank_lists = _partition(everyone.exchange(mine), health.where)
        torch_group, dissolve = _torch_group(world, rank_lists, mine, timeout, health.where)
        members = rank_lists[rank]
        info = GroupInfo(str(mine["name"]), members.index(rank), members, self.device)
        own = Prefixed(store, f"{prefix}{members[0]}/")
        agreement = Agreement(own, info.rank, info.size, waiting, health)
        stock_name = f"torch.distributed/{mine['backend'] or dist.get_backend(torch_group)}"
        try:
            vendor = self._vendor(info, Prefixed(own, "vendor/"), agreement, stock_name)
        except CommError:
            dissolve()
            raise
        return DeviceGroup(
            Members(
                info,
                StockCollective(torch_group, self.device),
                stock_name,
                vendor,
                self.provided.name if self.provided else "",
                agreement,
                health,
                check,
                dissolve,
            )
        )

    def _vendor(
        self, info: GroupInfo, store: Store, agreement: Agreement, stock_name: str
    ) -> object:
        """What the vendor opens for this group; all ranks agree on it, or none gets a group."""
        vendor: object = None
        record: Record
        try:
            if self.provided is not None:
                with reported(f"opening group {info.name}", self.provided.name):
                    vendor = self.provided.open(info, store)
            name = self.provided.name if self.provided else ""
            record = {op: name if hasattr(vendor, op) else stock_name for op in OPERATIONS}
        except CommError as error:
            record = {FAILED: error.what}
        try:
            agreement.agree(record)
        except CommError:
            if isinstance(vendor, Closable):
                vendor.close()
            raise
        return vendor


def _world() -> dist.ProcessGroup:
    """The world group.

    Raises:
        CommUnavailable: torch was built without it.
        OrderError: it was not initialised.
    """
    if not dist.is_available():
        raise CommUnavailable(
            "this torch was built without torch.distributed",
            fix="install a build that has it; a single process needs no collectives",
        )
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        raise OrderError(
            "a group was asked for before torch.distributed was initialised",
            fix="call torch.distributed.init_process_group(...) on every rank first",
        )
    return world


def _fitting_backend(device: torch.device) -> str:
    """The backend for a device when none is named; empty means that the world group fits.

    Raises:
        CommUnavailable: torch knows none.
    """
    config = dict(part.split(":", 1) for part in dist.get_backend_config().split(","))
    if device.type in config:
        return ""
    backend = dist.Backend.default_device_backend_map.get(device.type)
    if backend is None:
        raise CommUnavailable(
            f"torch.distributed has no backend for {device.type}",
            fix="pass backend=, or initialise the world with one that serves this device",
        )
    return str(backend)


def _partition(records: Sequence[Record], where: str) -> list[tuple[int, ...]]:
    """The group of each world rank.

    Raises:
        CommError: on every rank alike, when two ranks of one group do not say the same.
    """
    groups: list[tuple[int, ...]] = [tuple(r["ranks"]) for r in records]  # type: ignore[arg-type]
    for rank, group in enumerate(groups):
        if rank not in group or len(set(group)) < len(group):
            raise CommError(
                f"{where}: world rank {rank} named the ranks {list(group)}; they must include "
                "itself, each once",
                fix="every rank names its own group; one that takes no part names itself",
            )
        for other in group:
            if not 0 <= other < len(records):
                raise CommError(f"{where}: there is no world rank {other} (named by {rank})")
            if records[other] != records[rank]:
                raise CommError(
                    f"{where}: world ranks {rank} and {other} do not ask for the same: "
                    f"{dict(records[rank])} and {dict(records[other])}"
                )
    return groups


def _torch_group(
    world: dist.ProcessGroup,
    groups: Sequence[tuple[int, ...]],
    mine: Record,
    timeout: float | None,
    where: str,
) -> tuple[dist.ProcessGroup, Callable[[], None]]:
    """The group of torch for this rank, and how to give it back."""
    everyone = tuple(range(world.size()))
    if groups[0] == everyone and not mine["backend"] and timeout is None:
        return world, lambda: None
    found: dist.ProcessGroup | None = None
    for ranks in sorted(set(groups)):  # torch wants every rank to make every group, in one order
        with reported(f"making {where}", f"torch.distributed/{mine['backend'] or 'default'}"):
            made = dist.new_group(
                list(ranks),
                timeout=None if timeout is None else timedelta(seconds=timeout),
                backend=mine["backend"] or None,
            )
        if world.rank() in ranks:
            found = made
    if found is None:
        raise CommError(f"{where}: torch made no group for world rank {world.rank()}")
    made_group = found

    def dissolve() -> None:
        # With the world destroyed, by whoever made it, its groups are gone already.
        if dist.is_initialized() and dist.group.WORLD is world:
            dist.destroy_process_group(made_group)

    return made_group, dissolve
