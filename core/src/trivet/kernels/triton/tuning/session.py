"""One run of ``trivet tune``: key by key, every config is tried, measured, and the best written.

The configs of a key first run in processes of their own, side by side, which compiles them; one
that is wrong, or ends its process, is refused there. Then this process measures the rest, alone
on the device. A key's rows are written when it is done, so that a run that was stopped leaves
a table that holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

import torch

from trivet.errors import PluginBroken
from trivet.kernels.triton.children import Children, Lost
from trivet.kernels.triton.kernel_set import KernelSet, Stopwatch, Tunable, triton_version
from trivet.kernels.triton.tuned import Config, Key
from trivet.kernels.triton.tuning import trials
from trivet.kernels.triton.tuning.kept import Kept, source_digest
from trivet.kernels.triton.tuning.table import merge

CLOSE: Final = 1.15
"""Configs that are slower than this times the fastest so far are not measured cold."""

Say: TypeAlias = Callable[[str, int, int], None]
"""``say(what, done, of)`` while a run goes on."""


@dataclass(frozen=True)
class Tried:
    """One config at one place: its times in microseconds, or why it has none."""

    config: Config
    word: str
    reason: str = ""
    us: float = inf
    cold_us: float = inf


@dataclass
class Place:
    """One kernel, key and number of rows, with what was tried; the default config is the first."""

    kernel: str
    key: Key
    rows: int
    bytes_moved: int = 0
    tried: list[Tried] = field(default_factory=list)

    @property
    def timed(self) -> list[Tried]:
        """Those that have times."""
        return [t for t in self.tried if t.us < inf]

    @property
    def best(self) -> Tried | None:
        """The one for the table: the least product of both times; None when nothing was measured.

        A serving process meets both: data that the kernel before has left in the cache, and weights
        or pages that it has not seen for a whole step.
        """
        return min(self.timed, key=lambda t: (t.us * t.cold_us, t.us), default=None)

    def row(self, usual: Config) -> dict[str, Any]:
        """The row of a table; with the default config and no time when nothing was measured."""
        best = self.best
        row = {"kernel": self.kernel, "key": dict(self.key), "rows": self.rows}
        if best is None:
            return row | {"config": dict(usual), "us": None}
        times = {"us": round(best.us, 3), "cold_us": round(best.cold_us, 3)}
        for default in self.timed:
            if default.config == usual:
                times["default_us"] = round(default.us, 3)
        return row | {"config": dict(best.config)} | times


class Session:
    """What a run needs; ``run`` does it.

    Args:
        kernels: of the plugin.
        device: what is measured.
        table: the file that is written.
        kept: measurements of earlier runs; None measures everything.
        processes: how many try configs at once.
        seconds: after which nothing new is begun.
        say: is told how far it is.
        clock: seconds that pass.
    """

    def __init__(
        self,
        kernels: KernelSet,
        device: torch.device,
        table: Path,
        *,
        kept: Kept | None,
        processes: int,
        seconds: float = inf,
        say: Say = lambda _what, _done, _of: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arch, self.table = kernels.arch_of(device), table
        self.stopwatch: Stopwatch = kernels.stopwatch(device)
        self.measured = {
            **self.stopwatch.about(),
            "torch": torch.__version__,
            "triton": triton_version(),
        }
        self.places: list[Place] = []
        self.complete = True
        self._tuned, self._device, self._kept = kernels.tuned(), device, kept
        self._processes, self._say, self._clock = processes, say, clock
        self._home = kernels.home
        self._end = clock() + seconds

    def run(self, wanted: Iterable[tuple[str, Key, Sequence[int]]]) -> None:
        """Tunes kernels, by name, key and numbers of rows; ``places`` and the table have it all.

        Raises:
            PluginBroken: the device failed while it measured; what was measured is written.
        """
        with Children(self._processes, home=self._home) as children:
            for name, key, rows in wanted:
                if self._late():
                    return
                places = [Place(name, key, n) for n in sorted(set(rows))]
                self.places += places
                try:
                    self._key(children, places)
                finally:
                    self._write(places)

    def usual(self, place: Place) -> Config:
        """The default config of a place."""
        tuned = self._tuned[place.kernel].tuned
        return trials.choices(tuned, self.arch, place.key, place.rows)[0]

    def _late(self) -> bool:
        late = self._clock() >= self._end
        self.complete = self.complete and not late
        return late

    def _key(self, children: Children, places: Sequence[Place]) -> None:
        one = self._tuned[places[0].kernel]
        homes = one.module, one.trials.trial.__module__, type(self.stopwatch).__module__
        source = source_digest(*map(import_module, dict.fromkeys(homes)))
        configs = {p.rows: trials.choices(one.tuned, self.arch, p.key, p.rows) for p in places}
        request = {p.rows: self._request(p, source) for p in places}
        known = {
            (n, at): old
            for n, ask in request.items()
            for at, config in enumerate(configs[n])
            if self._kept and (old := self._kept.get(ask | {"config": config}))
        }
        verdicts = self._try(children, one, places, configs, known)
        done, total = 0, sum(map(len, configs.values()))
        for place in places:
            for at, config in enumerate(configs[place.rows]):
                done += 1
                answer = known.get((place.rows, at))
                if answer is None:
                    verdict = verdicts.get((place.rows, at))
                    if verdict is None or self._late():
                        self.complete = False
                        continue
                    answer = self._measure(one, place, config, verdict)
                    if self._kept and verdict.word == trials.OK:
                        self._kept.put(request[place.rows] | {"config": config}, answer)
                place.bytes_moved = answer.get("bytes", 0) or place.bytes_moved
                times = {n: answer[n] for n in ("us", "cold_us") if n in answer}
                place.tried.append(Tried(config, answer["word"], answer["reason"], **times))
                self._say(f"measure {place.kernel}", done, total)

    def _request(self, place: Place, source: str) -> dict[str, Any]:
        about = {"arch": self.arch, **self.measured, "source": source}
        return about | {"kernel": place.kernel, "key": dict(place.key), "rows": place.rows}

    def _try(
        self,
        children: Children,
        one: Tunable,
        places: Sequence[Place],
        configs: Mapping[int, Sequence[Config]],
        known: Mapping[tuple[int, int], object],
    ) -> dict[tuple[int, int], trials.Verdict]:
        """Runs what is not known in other processes, a config for all its rows in one."""
        jobs: list[tuple[Any, ...]] = []
        places_of: list[dict[int, int]] = []
        first = places[0]
        who = one.module, first.kernel, one.trials.trial
        for place in places:
            for at, config in enumerate(configs[place.rows]):
                if (place.rows, at) in known:
                    continue
                same = next((i for i, job in enumerate(jobs) if job[4] == config), None)
                if same is None:
                    same = len(jobs)
                    jobs.append((*who, first.key, config, [], str(self._device), self.arch))
                    places_of.append({})
                jobs[same][5].append(place.rows)
                places_of[same][place.rows] = at
        found: dict[tuple[int, int], trials.Verdict] = {}
        for done, (job, answer) in enumerate(children.done(trials.attempt, jobs), 1):
            lost = (
                trials.Verdict(trials.FAILED, answer.reason) if isinstance(answer, Lost) else None
            )
            for n, at in places_of[jobs.index(job)].items():
                found[n, at] = lost or answer[n]
            self._say(f"try {first.kernel}", done, len(jobs))
            if self._late():
                break
        return found

    def _measure(
        self, one: Tunable, place: Place, config: Config, verdict: trials.Verdict
    ) -> dict[str, Any]:
        if verdict.word != trials.OK:
            return {"word": verdict.word, "reason": verdict.reason}
        try:
            made = trials.prepared(one, place.key, place.rows, config, self._device)
            us, cold = median(self.stopwatch.warm(made.call)), {}
            if us <= CLOSE * min((t.us for t in place.timed), default=inf):
                cold = {"cold_us": median(self.stopwatch.cold(made.call))}
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            if why := trials.spoilt(self._device):
                msg = f"{place.kernel} with {dict(config)} at {place.rows} rows: {reason}; {why}"
                fix = f"start again: what was measured stands in {self.table}, and is kept"
                raise PluginBroken(msg, fix=fix) from error
            return {"word": trials.FAILED, "reason": reason}
        return {"word": trials.OK, "reason": "", "us": us, "bytes": made.moved, **cold}

    def _write(self, places: Sequence[Place]) -> None:
        """A key with one time has a row for each number of rows, so that no limit is missing."""
        if not any(p.timed for p in places):
            return
        rows = [p.row(self.usual(p)) for p in places]
        date = datetime.now(UTC).date().isoformat()
        merge(self.table, self.arch, {**self.measured, "date": date}, rows)
