"""What is held of a device: by tag and tier, by torch besides, and by nobody that we can see."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from trivet.contracts.memory import MemoryInfo, Stats
from trivet.memory.ledger import Ledger
from trivet.memory.system import resident_bytes


@dataclass(frozen=True, slots=True)
class Holding:
    """Bytes under one tag in one tier; an empty tier is the device's own memory."""

    tag: str
    tier: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """All of one device at one moment; None is unknown, 0 is none.

    Args:
        device: as trivet names it; as torch does where it was opened without a plugin.
        accounted_bytes: in the ledger.
        peak_bytes: the most that it was.
        held: the same by tag and tier, largest first.
        outside_bytes: what this process holds besides: on an accelerator what torch's allocator
            reserves beyond accounted tensors, on the host the resident pages beyond the account.
            Never below 0: memory that is accounted and was not touched yet is no page.
        unseen_bytes: of an accelerator, what is in use and none of the above: contexts, libraries
            that allocate themselves, other processes.
        soft_bytes: the soft limit.
        hard_bytes: the hard limit.
        info: the device's totals, which must not be mistaken for one another.
    """

    device: str
    accounted_bytes: int
    peak_bytes: int
    held: tuple[Holding, ...]
    outside_bytes: int | None
    unseen_bytes: int | None
    soft_bytes: int | None
    hard_bytes: int | None
    info: MemoryInfo

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values."""
        return asdict(self)


def is_accelerator(device: torch.device) -> bool:
    """Whether torch's current accelerator is of this kind."""
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == device.type


def torch_stats(device: torch.device) -> Stats:
    """What torch's own allocator counts; all unknown on the host and where torch does not say."""
    if not is_accelerator(device):
        return Stats()  # torch's host allocator does not count
    try:
        found = torch.accelerator.memory_stats(device)
    except RuntimeError:  # not every accelerator of torch counts: unknown, as on the host
        return Stats()
    return Stats(
        allocated_bytes=found.get("allocated_bytes.all.current"),
        reserved_bytes=found.get("reserved_bytes.all.current"),
        max_allocated_bytes=found.get("allocated_bytes.all.peak"),
        max_reserved_bytes=found.get("reserved_bytes.all.peak"),
    )


def release_torch_cache(device: torch.device) -> int:
    """Has torch's allocator give its unused memory back; how much it was, 0 when unknown."""
    before = torch_stats(device).reserved_bytes
    torch.accelerator.empty_cache()
    after = torch_stats(device).reserved_bytes
    return 0 if before is None or after is None else max(0, before - after)


def holdings(
    device: torch.device, ledger: Ledger, soft_bytes: int | None, info: MemoryInfo
) -> Holdings:
    """The numbers of this moment."""
    places, tied = ledger.by_place(), ledger.tied_bytes
    accounted = sum(places.values())
    outside = unseen = None
    if device.type == "cpu":
        resident = resident_bytes()
        outside = None if resident is None else max(0, resident - accounted)
    else:
        reserved = torch_stats(device).reserved_bytes
        outside = None if reserved is None else max(0, reserved - tied)
        if outside is not None and info.total_bytes is not None and info.free_bytes is not None:
            on_device = sum(n for (_, tier), n in places.items() if tier in {"", "device"})
            unseen = max(0, info.total_bytes - info.free_bytes - outside - on_device)
    ordered = sorted(places.items(), key=lambda item: (-item[1], item[0]))
    return Holdings(
        device=str(device),
        accounted_bytes=accounted,
        peak_bytes=ledger.peak_bytes,
        held=tuple(Holding(tag, tier, n) for (tag, tier), n in ordered),
        outside_bytes=outside,
        unseen_bytes=unseen,
        soft_bytes=soft_bytes,
        hard_bytes=ledger.limit_bytes,
        info=info,
    )
