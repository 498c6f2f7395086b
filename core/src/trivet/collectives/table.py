"""The choice of a group, made once: for each operation, dtype and reduction, by size in bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from trivet.collectives.candidates import Candidate, Facts, Known
from trivet.contracts.collectives import REDUCING
from trivet.contracts.terms import Interval
from trivet.contracts.terms.value import Between
from trivet.errors import CommUnsupported


class Arm(NamedTuple):
    """Who makes calls of one band; in order, the first whose rest of the domain holds."""

    candidate: Candidate
    open_terms: tuple[Any, ...]


class Band(NamedTuple):
    """Sizes from after the band before up to ``most`` bytes; None is without end."""

    most: int | None
    arms: tuple[Arm, ...]


Key = tuple[str, torch.dtype, str, bool]


class Table:
    """Chooses among the candidates of a group.

    Args:
        where: how errors call the group.
        candidates: by operation, best first.
        facts: those of the group.
    """

    def __init__(
        self, where: str, candidates: Mapping[str, Sequence[Candidate]], facts: Facts
    ) -> None:
        self.where = where
        self.candidates = candidates
        self.facts = facts
        self._bands: dict[Key, tuple[Band, ...]] = {}

    def find(
        self, operation: str, dtype: torch.dtype, reduction: str, nbytes: int,
        symmetric: bool = False,
    ) -> Candidate:  # fmt: skip
        """Who makes a call.

        Raises:
            CommUnsupported: nobody does; each with the reason.
        """
        key = (operation, dtype, reduction, symmetric)
        bands = self._bands.get(key)
        if bands is None:
            bands = self._bands[key] = self.bands(*key)
        for most, arms in bands:
            if most is None or nbytes <= most:
                for candidate, open_terms in arms:
                    if not open_terms or self._holds(open_terms, key, nbytes):
                        return candidate
        raise self._unsupported(key, nbytes)

    def bands(
        self, operation: str, dtype: torch.dtype, reduction: str, symmetric: bool = False
    ) -> tuple[Band, ...]:
        """The choice by size."""
        facts = self._call(operation, dtype, reduction, symmetric)
        useful = [c for c in self.candidates[operation] if not c.refused]
        cuts: set[int] = set()
        for candidate in useful:
            for term in candidate.claim.domain:
                if isinstance(term, Between) and term.path == "nbytes":
                    cuts |= {term.high} if term.high is not None else set()
                    cuts |= {term.low - 1} if term.low else set()
        found: list[Band] = []
        low = 0
        for most in [*sorted(cuts), None]:
            arms = self._arms(useful, {**facts, "nbytes": Interval(low, most)})
            if found and found[-1].arms == arms:
                found[-1] = Band(most, arms)
            else:
                found.append(Band(most, arms))
            low = low if most is None else most + 1
        return tuple(found)

    def why(self, candidate: Candidate, key: Key, nbytes: int) -> str:
        """Why a candidate does not make a call; empty where it could."""
        if candidate.refused:
            return candidate.refused
        view = Known({**self._call(*key), "nbytes": nbytes})
        answers = (term.decide(view) for term in candidate.claim.domain)
        return next((answer for answer in answers if isinstance(answer, str)), "")

    @staticmethod
    def _arms(useful: Sequence[Candidate], facts: Facts) -> tuple[Arm, ...]:
        view, arms = Known(facts), []
        for candidate in useful:
            answers = [(term, term.decide(view)) for term in candidate.claim.domain]
            if any(isinstance(answer, str) for _, answer in answers):
                continue
            rest = tuple(term for term, answer in answers if answer is None)
            arms.append(Arm(candidate, rest))
            if not rest:
                break
        return tuple(arms)

    def _holds(self, terms: tuple[Any, ...], key: Key, nbytes: int) -> bool:
        view = Known({**self._call(*key), "nbytes": nbytes})
        return all(term.decide(view) is True for term in terms)

    def _call(
        self, operation: str, dtype: torch.dtype, reduction: str, symmetric: bool
    ) -> dict[str, Any]:
        del operation
        call = {"x.dtype": dtype, "reduction": reduction, "symmetric": symmetric}
        return {**self.facts, **call}

    def _unsupported(self, key: Key, nbytes: int) -> CommUnsupported:
        operation, dtype, reduction, _ = key
        name = str(dtype).removeprefix("torch.")
        what = f"{reduction} of {name}" if operation in REDUCING else name
        rows = {
            f"{c.id}: {self.why(c, key, nbytes) or 'no'}": None for c in self.candidates[operation]
        }
        reasons = "".join(f"\n    {row}" for row in rows)
        return CommUnsupported(
            f"{self.where}: nobody makes {operation} ({what}, {nbytes} bytes){reasons}",
            operation=operation,
            fix="convert to a dtype that is reduced, or take a restriction away",
        )


def digest(document: Mapping[str, Any]) -> str:
    """Sixteen hex digits over plain values."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def bound(candidate: Candidate) -> Callable[..., Any]:
    """The method of a candidate whose provider was made."""
    if candidate.function is None:  # a table is only asked after its providers were made
        raise CommUnsupported(f"{candidate.id} was not made", operation=candidate.claim.operation)
    return candidate.function
