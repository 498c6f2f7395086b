"""What ``dev.collectives`` is: it opens groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from trivet import settings
from trivet.collectives.agreement import Agreement, Record, prefixed
from trivet.collectives.assembly import Plan, assemble, brought
from trivet.collectives.candidates import preferred
from trivet.collectives.group import DeviceGroup
from trivet.collectives.health import Health
from trivet.collectives.lock import Lock
from trivet.collectives.native import BRIDGE, DEFAULT_SECONDS, native, native_group, seconds
from trivet.collectives.table import Table
from trivet.contracts.collectives import DETERMINISM, Store
from trivet.errors import (
    CommArgumentError,
    CommUnavailable,
    GroupMismatch,
    OrderError,
)
from trivet.selection.authority import Policy, current_context

_MEANT: Final = {"batch_invariant": "slice", "deterministic": "run"}
"""Properties of operators that ``require`` may ask for -> what they are for a reduction."""


class DeviceCollectives:
    """Opens groups of ranks for one device.

    Args:
        device: where the tensors of its groups lie.
        provided: what plugins brought, by plugin, the device's own first.
        versions: of the plugins' packages.
        check: compare every call across ranks before it is made.

    Raises:
        PluginBroken: ``provided`` has something else in it.
    """

    def __init__(
        self,
        device: torch.device,
        provided: Mapping[str, object],
        versions: Mapping[str, str],
        *,
        check: bool,
    ) -> None:
        self.device = device
        self.check = check
        self._brought = brought(provided, versions)
        self._groups: dict[str, tuple[Record, dist.ProcessGroup, DeviceGroup]] = {}

    def group(
        self,
        name: str = "world",
        ranks: Sequence[int] | None = None,
        backend: str | None = None,
        *,
        timeout: float | None = None,
        check: bool | None = None,
        determinism: Sequence[str] = (),
        prefer: Mapping[str, str | Sequence[str]] | None = None,
        lock: Lock = None,
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
            determinism: levels that every reduction must reach (``"slice"``, ...).
            prefer: order lists of this group alone: operation -> provider ids.
            lock: that of another group, or a file of it, which the choices must agree with.

        Raises:
            CommUnavailable: torch has no distributed package, or no backend for the device.
            OrderError: ``torch.distributed`` was not initialised.
            GroupMismatch: the ranks' calls do not fit together, or they would choose differently.
            CommArgumentError: an argument cannot be right, or the name is open otherwise.
            UnknownName: an order list names no operation or provider.
            LockMismatch: the lock and this process differ; every field is listed.
        """
        world = _world()
        check = self.check if check is None else check
        backend = _known_backend(backend) if backend else _fitting_backend(self.device)
        levels = _levels(determinism)
        mine: dict[str, object] = {
            "ranks": list(range(world.size())) if ranks is None else sorted(ranks),
            "backend": backend,
            "device": self.device.type,
            "timeout": timeout,
            "check": check,
            "determinism": list(levels),
            "name": name,
        }
        asked = mine | {"prefer": preferred(prefer or {})}
        opened = self._groups.get(name)
        if opened is not None and opened[1] is world and opened[2].usable:
            if opened[0] != asked:
                raise CommArgumentError(
                    f"group {name} is open as {dict(opened[0])}, asked for as {asked}",
                    fix="close it first, or use another name",
                )
            return opened[2]
        group = self._open(world, mine, timeout, check, levels, prefer or {}, lock)
        self._groups = {n: known for n, known in self._groups.items() if not known[2].closed}
        self._groups[name] = (asked, world, group)
        return group

    def adopt(
        self,
        group: dist.ProcessGroup,
        name: str = "",
        *,
        timeout: float | None = None,
        check: bool | None = None,
        determinism: Sequence[str] = (),
        prefer: Mapping[str, str | Sequence[str]] | None = None,
    ) -> DeviceGroup:
        """Make a group of a process group of torch; all its members make this call.

        Its backend serves whatever nobody else brings. ``close`` leaves it as it was. For the
        arguments and errors see ``group``.
        """
        store, rank = group.get_group_store(), group.rank()
        number = store.add(f"trivet/adopted/{rank}", 1)
        own = prefixed(f"trivet/adopted/{number}/", store)
        return self.over(
            group, dist.get_process_group_ranks(group), rank, own, name or f"torch{number}",
            timeout=timeout, check=check, determinism=determinism, prefer=prefer,
        )  # fmt: skip

    def over(
        self,
        backend: Any,
        ranks: Sequence[int],
        rank: int,
        store: Store,
        name: str,
        *,
        timeout: float | None = None,
        check: bool | None = None,
        determinism: Sequence[str] = (),
        prefer: Mapping[str, str | Sequence[str]] | None = None,
        lock: Lock = None,
        dissolve: Callable[[], None] = lambda: None,
    ) -> DeviceGroup:
        """Make a group over a process group or backend of torch that its members have made.

        Args:
            backend: it.
            ranks: world ranks of the members.
            rank: position of this process.
            store: a part of a store that nothing else uses.
            name: what errors call the group.
            timeout: as in ``group``; by default that of the backend.
            check: as in ``group``.
            determinism: as in ``group``.
            prefer: as in ``group``.
            lock: as in ``group``.
            dissolve: is called when the group is closed.
        """
        taken, backend_name = native(backend, self.device)
        if backend_name == BRIDGE:
            raise CommArgumentError(
                f"{name}: this process group is a group of trivet already", fix="use its .trivet"
            )
        context, required = current_context()
        levels = _levels((*determinism, *(_MEANT[r] for r in sorted(required) if r in _MEANT)))
        plan = Plan(
            name, rank, tuple(ranks), self.device, taken, backend_name, store,
            seconds(taken) if timeout is None else timeout,
            self.check if check is None else check,
            Policy(settings.read(), argument=preferred(prefer or {}), context=context),
            levels, lock, dissolve,
        )  # fmt: skip
        return DeviceGroup(self, plan, assemble(plan, self._brought))

    def imagine(
        self, size: int, *, hosts: int = 1, backend: str = "", determinism: Sequence[str] = ()
    ) -> Table:
        """The table that a group of so many members would have; no other process is needed."""
        from trivet.collectives.imagined import imagine

        name = backend or str(dist.Backend.default_device_backend_map.get(self.device.type, ""))
        levels = _levels(determinism)
        return imagine(self.device, self._brought, size, hosts, name, levels)

    def register_backend(self) -> None:
        """Make ``torch.distributed.init_process_group("trivet")`` open groups as these are.

        Further groups and meshes of that world are then made the same way. What no plugin brings,
        gloo serves, so that this is for devices that gloo serves.
        """
        from trivet.collectives.process_group import register_backend

        register_backend(self)

    def close(self) -> None:
        """Close every group that is open here; a second call does nothing."""
        while self._groups:
            self._groups.popitem()[1][2].close()

    def _open(
        self,
        world: dist.ProcessGroup,
        mine: Record,
        timeout: float | None,
        check: bool,
        levels: tuple[str, ...],
        prefer: Mapping[str, str | Sequence[str]],
        lock: Lock,
    ) -> DeviceGroup:
        health = Health(f"group {mine['name']}")
        store, rank = world.get_group_store(), world.rank()
        number = store.add(f"trivet/calls/{rank}", 1)  # counted where a new world starts anew
        prefix = f"trivet/{number}/"
        waiting = timedelta(seconds=DEFAULT_SECONDS if timeout is None else timeout)
        everyone = Agreement(
            prefixed(f"{prefix}world/", store), rank, world.size(), waiting, health
        )
        groups = _partition(everyone.exchange(mine), health.where)
        members = groups[rank]
        own = prefixed(f"{prefix}{members[0]}/", store)
        torch_group, dissolve = native_group(
            world, groups, str(mine["backend"]), own, timeout, health.where
        )
        try:
            return self.over(
                torch_group, members, members.index(rank), own, str(mine["name"]),
                timeout=timeout, check=check, determinism=levels, prefer=prefer, lock=lock,
                dissolve=dissolve,
            )  # fmt: skip
        except BaseException:
            dissolve()
            raise


def _levels(wanted: Sequence[str]) -> tuple[str, ...]:
    for level in wanted:
        if level not in DETERMINISM:
            raise CommArgumentError(
                f"no level of determinism {level!r}", fix=f"one of {', '.join(DETERMINISM)}"
            )
    return tuple(level for level in DETERMINISM if level in wanted)


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


def _known_backend(name: str) -> str:
    if name.lower() not in dist.Backend.backend_list:
        raise CommUnavailable(
            f"torch.distributed has no backend {name!r}",
            fix=f"one of {', '.join(dist.Backend.backend_list)}",
        )
    return name


def _fitting_backend(device: torch.device) -> str:
    """The backend for a device when none is named; empty means that the world group fits.

    Raises:
        CommUnavailable: torch knows none.
    """
    config = dict(part.split(":", 1) for part in dist.get_backend_config().split(","))
    if config.get(device.type, BRIDGE) != BRIDGE:
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
        GroupMismatch: on every rank alike, when two ranks of one group do not say the same.
        CommArgumentError: on every rank alike, when one names ranks that cannot be.
    """
    groups: list[tuple[int, ...]] = [tuple(r["ranks"]) for r in records]  # type: ignore[arg-type]
    for rank, group in enumerate(groups):
        if rank not in group or len(set(group)) < len(group):
            raise CommArgumentError(
                f"{where}: world rank {rank} named the ranks {list(group)}; they must include "
                "itself, each once",
                fix="every rank names its own group; one that takes no part names itself",
            )
        for other in group:
            if not 0 <= other < len(records):
                raise CommArgumentError(
                    f"{where}: there is no world rank {other} (named by {rank})"
                )
            if records[other] != records[rank]:
                raise GroupMismatch(
                    f"{where}: world ranks {rank} and {other} do not ask for the same: "
                    f"{dict(records[rank])} and {dict(records[other])}",
                    ranks=(rank, other),
                )
    return groups
