"""What the kernels between GPUs claim: the domains of their methods, by number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from trivet.contracts.collectives import provides
from trivet.contracts.terms import Term, between, dtype, one_of
from trivet_cuda.collectives import plan

_HERE: Final[tuple[Term, ...]] = (one_of("hosts", 1), one_of("p2p", True))
_FLOATS: Final[tuple[Term, ...]] = (dtype("x", "bfloat16", "float16", "float32"),)
_SUMS: Final[tuple[Term, ...]] = (*_FLOATS, one_of("reduction", "sum"))


def sums(
    operation: str, name: str, most: Mapping[int, int], *more: Term, on_request: bool = False
) -> Callable[[Any], Any]:
    """Marks a reduction with its sizes by number of ranks."""

    def mark(method: Any) -> Any:
        for least, ranks, nbytes in reversed(plan.bands(most)):  # the first is marked last
            sizes = between("size", least, ranks), between("nbytes", 0, nbytes)
            method = provides(
                operation, name=name, domain=[*_HERE, *sizes, *_SUMS, *more],
                determinism=["order"], graph_safe=True, on_request=on_request,
            )(method)  # fmt: skip
        return method

    return mark


def moves(operation: str, name: str, most: Mapping[int, int]) -> Callable[[Any], Any]:
    """Marks a movement with its sizes by number of ranks."""

    def mark(method: Any) -> Any:
        for least, ranks, nbytes in reversed(plan.bands(most)):  # the first is marked last
            sizes = between("size", least, ranks), between("nbytes", 0, nbytes)
            domain = [*_HERE, *sizes]
            method = provides(operation, name=name, domain=domain, graph_safe=True)(method)
        return method

    return mark
