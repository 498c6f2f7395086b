"""Speed of the engine of ``examples/llm`` on one machine: prefill, and decoding of 1 and 8 prompts.

The same engine and model run with the installed packages and with the references alone; where
transformers is installed, its own model runs the same weights too, eager, with each of its caches.
Engines take turns in every round. On one thread, processor time is measured; a round's ratio is
that of its own pair, against the faster of transformers' caches, and the lower quartile of the
ratios is the row that stays. On several threads it is wall time. llama.cpp (xllamacpp) is shown
beside them where it is installed: its weights are four-bit, ours float32.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, picture, publish

import trivet

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "examples"))  # the engine is an example, not a package

from engine_peers import (  # noqa: E402
    Engine,
    LlamaCpp,
    Task,
    Transformers,
    WithCache,
    cpu,
    prompts_of,
    wall,
)

from llm import gguf  # noqa: E402
from llm.fetch import fetch  # noqa: E402
from llm.model import Llama  # noqa: E402
from llm.schedule import Scheduler, generate  # noqa: E402

PROMPT = 128  # tokens in the cache before decoding is measured
PREFILL = 256
PAIRS = 9
INSTALLED, REFERENCES, PEER = "installed", "references", "transformers"


class Ours:
    """The engine of the example."""

    def __init__(self, device: trivet.Device, file: gguf.ModelFile) -> None:
        self.model = Llama(device, file, dtype=torch.float32, num_blocks=128, block_size=16)

    def seconds(
        self,
        task: Task,
        clock: Callable[[], float],
        prefilled: Callable[[], object] = lambda: None,
    ) -> list[float]:
        """Times whole steps, scheduling included; ``prefilled`` is called after the prompts."""
        config = self.model.config
        scheduler = Scheduler(
            self.model.pool,
            max_batch=task.prompts,
            budget=task.prompts * task.length,
            context=config.context,
            eos=frozenset(),
        )
        for prompt in prompts_of(task, config.vocab):
            scheduler.submit(prompt, task.steps + 1)
        events = generate(self.model, scheduler)
        times = []
        for _ in range(task.steps + 1):
            start = clock()
            for _ in range(task.prompts):
                next(events)
            times.append(clock() - start)
            if len(times) == 1:
                prefilled()
        scheduler.cancel_all()
        return times


@dataclass
class Result:
    """Seconds of one prefill or one step, by engine, one entry a round."""

    task: Task
    threads: int
    rounds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def speed(self, engine: str) -> float:
        """Tokens per second of the median round."""
        return tokens(self.task) / statistics.median(self.rounds[engine])

    def ratios(self, other: str) -> list[float]:
        """How many times as fast the installed packages are, round by round."""
        names = [n for n in self.rounds if n.startswith(other)]
        best = [min(times) for times in zip(*(self.rounds[n] for n in names), strict=True)]
        return [b / mine for b, mine in zip(best, self.rounds[INSTALLED], strict=True)]

    def others(self) -> list[str]:
        """The engines that the installed packages are compared with."""
        return list(dict.fromkeys(n.partition(" ")[0] for n in self.rounds if n != INSTALLED))


def tokens(task: Task) -> int:
    """Tokens of what is timed: the whole prompt when nothing is decoded, else one step."""
    return task.prompts * (1 if task.steps else task.length)


def measure(
    engines: dict[str, Engine], tasks: Sequence[Task], threads: Sequence[int], rounds: int
) -> list[Result]:
    """Runs all engines in turn, ``rounds`` times, after a round that is not counted."""
    results = []
    for count in threads:
        torch.set_num_threads(count)
        clock = cpu if count == 1 else wall
        for task in tasks:
            result = Result(task, count)
            for number in range(rounds + 1):
                order = list(engines.items())
                for name, engine in order if number % 2 else reversed(order):
                    first, *steps = engine.seconds(task, clock)
                    if number:
                        result.rounds[name].append(statistics.median(steps) if steps else first)
                shown = ", ".join(f"{n} {t[-1] * 1e3:.1f} ms" for n, t in result.rounds.items())
                print(f"{task.name}, {count} threads, round {number}: {shown}", file=sys.stderr)
            results.append(result)
    return results


def rows(results: Sequence[Result]) -> list[Row]:
    """The speed of every engine, then how many times as fast the installed packages are."""
    found = []
    for r in results:
        head = f"engine.{r.task.name}_t{r.threads}"
        clock = "processor time" if r.threads == 1 else "wall time"
        found += [
            Row(f"{head}.{n.replace(' ', '_')}", r.speed(n), "tokens/s", clock) for n in r.rounds
        ]
        for other in r.others():
            ratios = r.ratios(other)
            text = f"{other}, median of {len(ratios)} pairs, {clock}"
            found.append(Row(f"{head}.vs_{other}", statistics.median(ratios), "ratio", text))
            if other == PEER and r.threads == 1:
                low = statistics.quantiles(ratios, n=4)[0] if len(ratios) > 1 else ratios[0]
                text = f"lower quartile of {len(ratios)} pairs, its faster cache"
                found.append(Row(f"engine.{r.task.name.partition('_2')[0]}_vs_{PEER}", low, "ratio",
                                 text))  # fmt: skip
    return found


class Timed:
    """A plan whose sites add their processor time to an account."""

    def __init__(self, plan: Any) -> None:
        self._plan, self.spent = plan, defaultdict[str, float](float)

    def at(self, **sizes: int) -> Any:
        """The step, with every site timed."""
        step, spent = self._plan.at(**sizes), self.spent

        class Step:
            """A step of the plan, timed."""

            def __getattr__(self, name: str) -> Any:
                call = getattr(step, name)

                def timed(*arguments: Any, **more: Any) -> Any:
                    start = time.thread_time()
                    try:
                        return call(*arguments, **more)
                    finally:
                        spent[name] += time.thread_time() - start

                return timed

        return Step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


def by_operator(ours: Ours, tasks: Sequence[Task]) -> list[Row]:
    """Share of each site in a step (in the prefill, where nothing is decoded), on one thread."""
    torch.set_num_threads(1)
    plan, found = ours.model.plan, []
    for task in tasks:
        timed = Timed(plan)
        ours.model.plan, ours.model._at = timed, timed.at  # type: ignore[assignment]  # noqa: SLF001
        forget = timed.spent.clear if task.steps else (lambda: None)
        try:
            first, *steps = ours.seconds(task, time.thread_time, forget)
        finally:
            ours.model.plan, ours.model._at = plan, plan.at  # noqa: SLF001
        total = sum(steps) or first
        head = f"engine.{task.name}.share"
        for site, seconds in sorted(timed.spent.items(), key=lambda item: -item[1]):
            found.append(Row(f"{head}.{site}", seconds / total, "share", "of processor time"))
        rest = 1 - sum(timed.spent.values()) / total
        found.append(Row(f"{head}.python_and_rest", rest, "share", "timing included"))
    return found


def engines_of(file: gguf.ModelFile, *, peer: bool) -> dict[str, Engine]:
    """The engines that this machine can run."""
    device = trivet.device("cpu")
    engines: dict[str, Engine] = {INSTALLED: Ours(device, file)}
    with trivet.prefer(**{"*": "reference"}):
        engines[REFERENCES] = Ours(device, file)
    if peer and importlib.util.find_spec(PEER):
        shared = Transformers(file)
        for kind in ("dynamic", "static"):
            engines[f"{PEER} {kind}"] = WithCache(shared, kind)
    return engines


def beside(path: Path, tasks: Sequence[Task], threads: Sequence[int], vocab: int) -> list[Row]:
    """llama.cpp, where it is installed."""
    if not importlib.util.find_spec("xllamacpp"):
        return []
    found = []
    for count in threads:
        other = LlamaCpp(path, count)
        for task in tasks:
            if task.prompts == 1:
                kind = "decode" if task.steps else "prefill"
                rates = [other.rates(task, vocab)[kind] for _ in range(3)]
                name = f"engine.{task.name}_t{count}.llama_cpp_q4_1"
                found.append(Row(name, statistics.median(rates), "tokens/s", "its own wall clock"))
    return found


@click.command()
@click.option("--quick", is_flag=True, help="Fewer steps and rounds.")
@click.option(
    "--json",
    "target",
    type=click.Path(path_type=Path),
    help="Write figures, and a PNG beside them.",
)
@click.option("--no-peer", is_flag=True, help="Leave transformers and llama.cpp out.")
def main(*, quick: bool, target: Path | None, no_peer: bool) -> None:
    """Measures the example engine: tokens per second of prefill and of decoding."""
    steps, rounds = (6, 2) if quick else (16, PAIRS)
    tasks = [
        Task("decode_b1", 1, PROMPT, steps),
        Task("decode_b8", 8, PROMPT, steps),
        Task(f"prefill_{PREFILL}", 1, PREFILL, 0),
    ]
    threads = sorted({1, torch.get_num_threads()})
    path = fetch(print)
    file = gguf.read(path)
    engines = engines_of(file, peer=not no_peer)
    ours = engines[INSTALLED]
    assert isinstance(ours, Ours)  # noqa: S101  # engines_of made it
    found = rows(measure(engines, tasks, threads, rounds))
    found += by_operator(ours, tasks)
    if not no_peer:
        found += beside(path, tasks, threads, ours.model.config.vocab)
    publish("engine", found, target)
    if target:
        ratios = [r for r in found if r.unit == "ratio"]
        picture(target.with_suffix(".png"), "the installed packages, times as fast", ratios)


if __name__ == "__main__":
    main()
