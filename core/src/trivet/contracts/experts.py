"""Rows of tokens on their way to the ranks of their experts, and back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["ExpertExchange"]


@runtime_checkable
class ExpertExchange(Protocol):
    """Of a provider of collectives, beside what it marks: the two exchanges of expert layers.

    Expert ``e`` lives on rank ``e // local``. Every member makes both calls, one after the other.
    """

    def dispatch(self, x: Tensor, experts: Tensor, local: int) -> tuple[Tensor, Tensor, object]:
        """Send each token to the ranks of its experts.

        Args:
            x: ``[tokens, hidden]``; ranks may have different numbers of tokens, also none.
            experts: ``[tokens, k]``, ``int64``; negative for none.
            local: experts on each rank.

        Returns:
            ``[rows, hidden]``, the rows of this rank's experts in order of expert, within one in
            order of rank and token; ``[local]``, ``int64``, how many each has; and what
            ``combine`` needs.
        """
        ...

    def combine(self, rows: Tensor, handle: object, weights: Tensor) -> Tensor:
        """Send what the experts made of the rows back, and add it up.

        Args:
            rows: ``[rows, hidden]``, in the order of ``dispatch``.
            handle: what ``dispatch`` returned.
            weights: ``[tokens, k]``.

        Returns:
            ``[tokens, hidden]``: the sum over ``k`` in its order, accumulated in float32, of
            ``weights`` times what came back.
        """
        ...
