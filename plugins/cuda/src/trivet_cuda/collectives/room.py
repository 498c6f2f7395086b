"""Memory of every GPU of a group that each of them can address: torch's symmetric memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.distributed as dist

from trivet.contracts.collectives import Group, Store
from trivet.errors import CommUnsupported
from trivet_cuda.collectives.talk import Talk


@dataclass
class Piece:
    """One allocation.

    Args:
        own: this rank's, ``uint8``.
        peers: that of each rank as this one sees it, by rank.
        holder: what keeps the others' alive.
    """

    own: torch.Tensor
    peers: Sequence[torch.Tensor]
    holder: Any = field(default=None, repr=False)

    @property
    def addresses(self) -> list[int]:
        """Where each rank's begins, as this rank addresses it."""
        return [one.data_ptr() for one in self.peers]


class Room(Protocol):
    """Allocates such memory; every rank makes the same calls."""

    def take(self, nbytes: int, fill: int) -> Piece:
        """Memory of so many bytes on every rank, each byte of which is ``fill`` on all of them."""
        ...

    def close(self) -> None:
        """Give everything back that is not in use elsewhere."""
        ...


class TorchRoom:
    """The symmetric memory of torch, under a name that no process group has.

    Args:
        group: the group.
        store: where its ranks exchange the handles.
        talk: in which they say that they have come so far.

    Raises:
        CommUnsupported: this torch has no symmetric memory for CUDA.
    """

    def __init__(self, group: Group, store: Store, talk: Talk) -> None:
        self._group, self._talk = group, talk
        made = getattr(import_module("torch._C._distributed_c10d"), "_SymmetricMemory", None)
        if made is None:
            raise CommUnsupported(
                "this torch has no symmetric memory", fix="install a build of torch for CUDA"
            )
        self._memory: Any = made
        self.name = f"trivet/{group.token}"
        own = dist.PrefixStore("symmetric/", store)  # type: ignore[attr-defined, arg-type]
        # Older versions look a name up there, newer ones among the process groups.
        if hasattr(made, "set_group_info"):
            made.set_group_info(self.name, group.rank, group.size, own)
        self._process_group = _registered(self.name, group, own)

    def take(self, nbytes: int, fill: int) -> Piece:
        """Memory of so many bytes on every rank.

        Raises:
            CommUnsupported: on all ranks alike, where one of them cannot.
        """
        device, found = self._group.device, []
        size = max(16, -(-nbytes // 16) * 16)

        def allocate() -> dict[str, Any]:
            own = self._memory.empty_strided_p2p((size,), (1,), torch.uint8, device)
            own.fill_(fill)
            torch.cuda.synchronize(device)
            found.append(own)
            return {"bytes": size}

        def meet() -> dict[str, Any]:
            handle = self._memory.rendezvous(found[0], self.name)
            found.append(handle)
            if any(address % 16 for address in handle.buffer_ptrs):
                raise CommUnsupported(f"memory of peers lies at {handle.buffer_ptrs}")
            return {}

        self._talk.say(allocate)
        self._talk.say(meet)  # nobody writes to anybody before all have come here
        own, handle = found
        rank, each = self._group.rank, range(self._group.size)
        peers = [
            own if one == rank else handle.get_buffer(one, (size,), torch.uint8) for one in each
        ]
        return Piece(own[:nbytes], [peer[:nbytes] for peer in peers], handle)

    def close(self) -> None:
        """Forget the name."""
        if self._process_group is not None:
            _c10d("_unregister_process_group")(self.name)
            self._process_group = None


def _registered(name: str, group: Group, store: Any) -> Any:
    """A process group that has a name and a store and moves nothing."""
    made: Any = dist.ProcessGroup(store, group.rank, group.size)
    made._set_group_name(name)  # noqa: SLF001  # torch has no public name for it
    _c10d("_register_process_group")(name, made)
    return made


def _c10d(name: str) -> Any:
    return getattr(import_module("torch._C._distributed_c10d"), name)
