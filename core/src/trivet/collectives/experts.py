"""The exchanges of expert layers, made of ``all_to_all``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivet.contracts.experts import ExpertExchange
from trivet.errors import CommArgumentError

if TYPE_CHECKING:
    from trivet.collectives.group import DeviceGroup


@dataclass(frozen=True)
class _Sent:
    """What a dispatch knows for its combine.

    Args:
        source: places of what was sent in ``[tokens * k]``, in the order of sending.
        sorting: how the rows that came were put in order of expert.
        to: rows sent to each rank.
        of: rows that came from each rank.
        places: ``tokens`` and ``k``.
    """

    source: Tensor
    sorting: Tensor
    to: list[int]
    of: list[int]
    places: tuple[int, int]


class ComposedExperts(ExpertExchange):
    """Rows are sorted by expert, exchanged, and sorted again where they arrive.

    A first exchange tells how many rows come; on a device with streams the host waits for it.

    Args:
        group: whose ranks have the experts.
    """

    def __init__(self, group: DeviceGroup) -> None:
        self._group = group

    def dispatch(self, x: Tensor, experts: Tensor, local: int) -> tuple[Tensor, Tensor, object]:
        """Send each token to the ranks of its experts."""
        size, k = self._group.size, experts.shape[1]
        chosen = experts.reshape(-1)
        order = torch.argsort(chosen, stable=True)
        source = order[int((chosen < 0).sum()) :]
        wanted = chosen[source]
        counts = torch.bincount(wanted, minlength=size * local)
        came = self._group.all_to_all(counts).view(size, local)
        to, of = counts.view(size, local).sum(1).tolist(), came.sum(1).tolist()
        rows = self._group.all_to_all(x[source // k], of, to)
        names = torch.arange(local, device=x.device).repeat(size)
        sorting = torch.argsort(torch.repeat_interleave(names, came.reshape(-1)), stable=True)
        handle = _Sent(source, sorting, to, of, (experts.shape[0], k))
        return rows[sorting], came.sum(0), handle

    def combine(self, rows: Tensor, handle: object, weights: Tensor) -> Tensor:
        """Send what the experts made of the rows back, and add it up."""
        if not isinstance(handle, _Sent):
            raise CommArgumentError("combine: this is no handle of dispatch")
        unsorted = torch.empty_like(rows)
        unsorted[handle.sorting] = rows
        back = self._group.all_to_all(unsorted, handle.to, handle.of)
        tokens, k = handle.places
        every = rows.new_zeros(tokens * k, *rows.shape[1:])
        every[handle.source] = back
        pieces = every.view(tokens, k, *rows.shape[1:]).unbind(1)
        total = torch.zeros_like(pieces[0], dtype=torch.float32) if k else rows.new_zeros(tokens)
        for piece, weight in zip(pieces, weights.unbind(1), strict=True):
            total += piece.float() * weight.float().unsqueeze(-1)
        return total.to(rows.dtype)


def exchange(group: DeviceGroup, sessions: list[object]) -> ExpertExchange:
    """The first provider that brings the exchanges, or the composition."""
    brought = (s for s in sessions if isinstance(s, ExpertExchange))
    return next(brought, None) or ComposedExperts(group)


def require(x: Tensor, experts: Tensor, local: int, size: int) -> None:
    """Refuse what no exchange takes.

    Raises:
        CommArgumentError: says which.
    """
    if x.dim() != 2 or experts.dim() != 2 or experts.shape[0] != x.shape[0]:
        shapes = f"{list(x.shape)} and {list(experts.shape)}"
        raise CommArgumentError(f"dispatch: {shapes} are no [tokens, hidden] and [tokens, k]")
    if experts.dtype != torch.int64 or local < 1 or not experts.shape[1]:
        raise CommArgumentError(
            f"dispatch: experts are {experts.dtype}, {experts.shape[1]} a token, {local} a rank",
            fix="int64, at least one of each",
        )
    if experts.numel() and experts.device.type == "cpu" and int(experts.max()) >= local * size:
        raise CommArgumentError(
            f"dispatch: there is no expert {int(experts.max())} on {size} ranks with {local} each"
        )
