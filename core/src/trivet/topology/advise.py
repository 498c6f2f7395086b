"""Advice on which rank runs where: the groups that talk most get the fastest links.

Ranks of one tensor-parallel group are consecutive, then come those of data parallelism where
expert groups span it, else pipeline stages. The same topology and sizes always give the same
advice, and every sentence of it says which pair of devices decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any, Final

from trivet.errors import ConfigError
from trivet.topology.verdict import Verdict

SAME_HOST: Final = 1e10
"""Bytes a second that are assumed between devices of one host where no link is known."""

SAME_NUMA: Final = 1.2e10
OTHER_HOST: Final = 1e9
_FAR: Final = 1e-6
"""Makes any pair of one host weigh more than a pair of two, whose messages take longer, too."""

_ROUNDS: Final = 8
_MOST: Final = 128
_STARTS: Final = 4
_EXCHANGED: Final = 16
"""Largest groups whose members are exchanged; larger ones stay as they grew."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How ranks share a model.

    Args:
        tp: ranks that share every layer.
        pp: stages of layers.
        dp: copies of all that.
        ep: ranks that share the experts; 1 for none; it divides ``tp * dp``.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Placement:
    """Which rank runs on which device.

    Args:
        plan: what was asked for.
        devices: name of the device of each rank.
        groups: the groups of each kind that has any, as ranks: ``tp``, ``pp``, ``dp``, ``ep``.
        reasons: why, a sentence each.
        warnings: what will be slow, a sentence each.
    """

    plan: Plan
    devices: tuple[str, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        plan = self.plan
        return {
            "plan": {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep},
            "devices": list(self.devices),
            "groups": {kind: [list(g) for g in rows] for kind, rows in self.groups.items()},
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
        }


def advise(verdict: Verdict, plan: Plan, kind: str = "") -> Placement:
    """Which rank should run on which device.

    Args:
        verdict: how they are connected.
        plan: how ranks share the model.
        kind: kind of the devices; by default the kind of which there are most. ``numa`` places
            ranks on NUMA nodes.

    Raises:
        ConfigError: there are too few devices, or ``ep`` does not divide ``tp * dp``.
    """
    _check(plan)
    names = _devices(verdict, kind)
    if len(names) < plan.size:
        raise ConfigError(
            f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} are {plan.size} ranks, and there are "
            f"{len(names)} devices of kind {_kind(names[0]) if names else kind or 'any'}",
            fix="ask for fewer ranks, for another kind (--kind numa), or give the topology of all "
            "machines (TRIVET_TOPOLOGY)",
        )
    if len(names) > _MOST:
        raise ConfigError(f"{len(names)} devices are more than {_MOST}", fix="advise on a part")
    rates = _Rates(verdict, names)
    inner, outer = _order(plan)
    blocks: list[tuple[str, ...]] = [(name,) for name in names]
    for size in (plan.tp, inner, outer):
        blocks = _grouped(blocks, size, rates, plan.size // (size * len(blocks[0])))
    devices = blocks[0]
    groups = _groups(plan)
    reasons, warnings = _said(plan, devices, groups, rates, verdict)
    return Placement(plan, devices, groups, tuple(reasons), tuple(warnings))


def _check(plan: Plan) -> None:
    for what in ("tp", "pp", "dp", "ep"):
        if getattr(plan, what) < 1:
            raise ConfigError(f"{what} is {getattr(plan, what)}", fix="1 or more")
    if plan.tp * plan.dp % plan.ep:
        raise ConfigError(
            f"ep {plan.ep} does not divide tp {plan.tp} x dp {plan.dp}",
            fix="experts are shared by ranks of one stage: ep divides tp * dp",
        )


def _kind(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]


def _devices(verdict: Verdict, kind: str) -> list[str]:
    """The devices of a kind, in the order of the verdict."""
    by_kind: dict[str, list[str]] = {}
    for node in verdict.nodes:
        if node.kind == "device" or (node.kind == kind == "numa"):
            by_kind.setdefault(_kind(node.name), []).append(node.name)
    if kind:
        return by_kind.get(kind, [])
    return max(by_kind.values(), key=len, default=[])


def _order(plan: Plan) -> tuple[int, int]:
    """Sizes of the second and third level: stages inside copies, or copies inside stages."""
    return (plan.dp, plan.pp) if plan.ep > plan.tp else (plan.pp, plan.dp)


class _Rates:
    """Bytes a second between devices: known from a link, else assumed."""

    def __init__(self, verdict: Verdict, names: Sequence[str]) -> None:
        self.verdict = verdict
        self._known = {
            frozenset(pair): self._rate(*pair) for pair in combinations(names, 2)
        }  # fmt: skip

    def between(self, a: str, b: str) -> float:
        return self._known[frozenset((a, b))]

    def weight(self, a: str, b: str) -> float:
        """What a pair counts when groups are made."""
        near = self.verdict.host(a) == self.verdict.host(b)
        return self.between(a, b) * (1 if near else _FAR)

    def _rate(self, a: str, b: str) -> float:
        link = self.verdict.link(a, b)
        if link is not None:
            rate = link.bytes_per_second or SAME_HOST
            return rate if self.direct(a, b) else min(rate, SAME_HOST)
        ours, theirs = self.verdict.host(a), self.verdict.host(b)
        if ours != theirs:
            way = self.verdict.link(ours, theirs)
            return (way.bytes_per_second if way else None) or OTHER_HOST
        near = (set(self.verdict.above(a)[:1]) & set(self.verdict.above(b)[:1])) - {ours}
        return SAME_NUMA if near else SAME_HOST

    def direct(self, a: str, b: str) -> bool:
        return not (self.verdict.vetoes(a, b) or self.verdict.vetoes(b, a))

    def said(self, a: str, b: str) -> str:
        """A pair in words."""
        ours, theirs = self.verdict.host(a), self.verdict.host(b)
        link = self.verdict.link(a, b) if ours == theirs else self.verdict.link(ours, theirs)
        where = "on two hosts" if ours != theirs else "on one host"
        known = link is not None and link.bytes_per_second and (ours != theirs or self.direct(a, b))
        how = "assumed" if not known else "measured" if link and link.measured else "stated"
        what = link.kind if link is not None else "no link known"
        if ours == theirs and not self.direct(a, b):
            what += ", no direct access"
        return f"{a} and {b} {where}: {what}, {self.between(a, b) / 1e9:.3g} GB/s {how}"


def _grouped(
    blocks: list[tuple[str, ...]], size: int, rates: _Rates, number: int
) -> list[tuple[str, ...]]:
    """Put blocks together in ``number`` blocks of ``size``, fast pairs in one; the rest is left."""
    table = {
        (i, j): min(rates.weight(a, b) for a, b in product(blocks[i], blocks[j]))
        for i, j in combinations(range(len(blocks)), 2)
    }

    def rate(i: int, j: int) -> float:
        return table[min(i, j), max(i, j)]

    left = list(range(len(blocks)))
    taken: list[list[int]] = []
    for _ in range(number):
        taken.append(_best_start(left, size, rate))
        left = [i for i in left if i not in taken[-1]]
    if size <= _EXCHANGED:
        _improve([*taken, left], number, rate)
    taken = sorted(sorted(group) for group in taken)
    return [tuple(name for i in group for name in blocks[i]) for group in taken]


def _score(group: Sequence[int], rate: Any) -> tuple[float, float]:
    """The slowest pair of a group, and the sum of all."""
    found = [rate(i, j) for i, j in combinations(group, 2)]
    return (min(found, default=float("inf")), sum(found))


def _best_start(left: Sequence[int], size: int, rate: Any) -> list[int]:
    """The best group that grows from any of what is left by its best next member."""
    best: list[int] = []
    for first in left[:_STARTS]:
        group = [first]
        while len(group) < size:
            rest = [i for i in left if i not in group]
            group.append(max(rest, key=lambda i: (min(rate(i, j) for j in group),
                                                  sum(rate(i, j) for j in group), -i)))  # fmt: skip
        if size == 1:
            return group
        if not best or _score(group, rate) > _score(best, rate):
            best = group
    return best


def _improve(groups: list[list[int]], number: int, rate: Any) -> None:
    """Exchange members while that makes the slowest pair faster, or the sum larger."""

    def total(a: list[int], b: list[int]) -> tuple[float, float]:
        counted = [_score(group, rate) for group in ((a, b) if b is not groups[number] else (a,))]
        return (min(s[0] for s in counted), sum(s[1] for s in counted))

    for _ in range(_ROUNDS):
        changed = False
        for a, b in combinations(groups, 2):
            for i, j in product(range(len(a)), range(len(b))):
                before = total(a, b)
                a[i], b[j] = b[j], a[i]
                if total(a, b) > before:
                    changed = True
                else:
                    a[i], b[j] = b[j], a[i]
        if not changed:
            return


def _groups(plan: Plan) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The ranks of each group; rank 0 up, in the order of ``_order``."""
    inner_is_dp = plan.ep > plan.tp

    def rank(t: int, p: int, d: int) -> int:
        if inner_is_dp:
            return (p * plan.dp + d) * plan.tp + t
        return (d * plan.pp + p) * plan.tp + t

    T, P, D = range(plan.tp), range(plan.pp), range(plan.dp)
    found = {
        "tp": [tuple(rank(t, p, d) for t in T) for p in P for d in D],
        "pp": [tuple(rank(t, p, d) for p in P) for d in D for t in T],
        "dp": [tuple(rank(t, p, d) for d in D) for p in P for t in T],
    }
    stages = [[rank(t, p, d) for d in D for t in T] for p in P]
    found["ep"] = [
        tuple(stage[i : i + plan.ep]) for stage in stages for i in range(0, len(stage), plan.ep)
    ]
    return {k: tuple(sorted(rows)) for k, rows in found.items() if getattr(plan, k) > 1}


_TALKS: Final = {
    "tp": "two all-reduces a layer",
    "ep": "two exchanges of tokens an expert layer",
    "pp": "one message a stage",
    "dp": "gradients, or nothing",
}


def _said(
    plan: Plan,
    devices: Sequence[str],
    groups: dict[str, tuple[tuple[int, ...], ...]],
    rates: _Rates,
    verdict: Verdict,
) -> tuple[list[str], list[str]]:
    """Why it is so, and what will be slow."""
    order = "tp, dp, pp: expert groups span copies" if plan.ep > plan.tp else "tp, pp, dp"
    reasons = [f"ranks count in the order {order}"]
    warnings = []
    for kind in ("tp", "ep", "pp", "dp"):
        if kind not in groups:
            continue
        pairs = [
            (devices[a], devices[b])
            for group in groups[kind]
            for a, b in (pairwise(group) if kind == "pp"
                         else combinations(group, 2))
        ]  # fmt: skip
        slowest = min(pairs, key=lambda pair: rates.between(*pair))
        reasons.append(
            f"{kind}: {len(groups[kind])} group(s) of {getattr(plan, kind)} ({_TALKS[kind]}); "
            f"slowest pair {rates.said(*slowest)}"
        )
        if kind in {"tp", "ep"}:
            if any(verdict.host(a) != verdict.host(b) for a, b in pairs):
                warnings.append(f"{kind}: a group spans hosts")
            broken = next((p for p in pairs if not rates.direct(*p)), None)
            if broken:
                warnings.append(f"{kind}: a group has a pair without direct access: "
                                f"{broken[0]} and {broken[1]}")  # fmt: skip
    left = len(_devices(verdict, _kind(devices[0]))) - len(devices)
    if left:
        reasons.append(f"{left} device(s) stay without a rank")
    return reasons, warnings
