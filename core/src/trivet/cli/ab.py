"""``trivet ab``: two providers of one operator side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import torch

from trivet.binding.binder import Binder
from trivet.binding.example_calls import arguments
from trivet.cli import values
from trivet.cli.comparison import (
    Selected,
    clock_for,
    difference,
    interleaved,
    oracle,
    results,
    select,
)
from trivet.cli.comparison import (
    threads as torch_threads,
)
from trivet.cli.device_name import where
from trivet.cli.example import makeable, size_names
from trivet.cli.program import FOUND_PROBLEM
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.contracts.declaration import Operator
from trivet.devices import device
from trivet.plugins import capture

KEYS: Final = {
    "operator": "name",
    "providers": "[first, second]",
    "device": "NAME:INDEX",
    "dtype": "of the activations",
    "rounds": "timed rounds of each case",
    "threads": "of torch",
    "clock": "cpu, wall, or empty when time was not measured",
    "cases": "[{sizes, scalars, bytes, difference, sides, ...}]",
    "ratio": "geometric mean of time first / second, or null",
    "not_measured": "[text], what these numbers do not say",
}
"""Keys of the document.

Each case has ``ratio`` (time first / second), ``skipped`` (why nothing was compared, or empty)
and two ``sides``: ``{provider, error, seconds, gb_per_s}``. ``difference`` (first against second)
and ``error`` (against the float64 oracle) are ``{max, mean, relative_rms, mismatches,
elements}``.
"""


@click.command("ab", epilog=key_page(KEYS))
@click.argument("pair", metavar="OPERATOR=FIRST,SECOND")
@click.option("--size", "sizes", multiple=True, metavar="DIM=N",
              callback=values.each(values.size),
              help="One case with this size; the others are those of the first one.")  # fmt: skip
@click.option("--dtype", "dtypes", multiple=True, metavar="[VAR=]NAME",
              callback=values.each(values.dtype),
              help="Dtype of the activations (float32), or of a dtype variable.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=11, show_default=True,
              help="Timed rounds of each case; the median counts.")  # fmt: skip
@click.option("--threads", "count", type=click.IntRange(min=1), default=1, show_default=True,
              help="Threads of torch; with more than one, wall time counts.")  # fmt: skip
@click.option("--oracle/--no-oracle", "with_oracle", default=True,
              help="Compare with the float64 oracle too (slow for large sizes).")  # fmt: skip
@values.device_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    pair: str,
    *,
    sizes: dict[str, int],
    dtypes: dict[str, torch.dtype],
    rounds: int,
    count: int,
    with_oracle: bool,
    device_name: str,
    as_json: bool,
) -> None:
    """Compares two providers of an operator on its declared cases, or on given sizes.

    A provider is PLUGIN/NAME or `reference`. Runs both on the same arguments, one thread, in
    turns. Exit code 1 when a provider fails, or no case could be compared.
    """
    name, both = values.split(pair, "OPERATOR=FIRST,SECOND")
    providers = [p.strip() for p in both.split(",")]
    if len(providers) != 2 or not all(providers):
        raise click.BadParameter(f"{both!r} is not two providers separated by a comma")
    dev = device(device_name)
    bind = dev.binder
    op, _ = bind.target(name)
    if name.partition("@")[0] != op.name:
        raise click.UsageError(f"ab compares the plain form: {op.name}, not {name}")
    values.known("size", sizes, size_names(op))
    on_cpu = dev.torch.type == "cpu"
    duel = _Duel(bind, op, (providers[0], providers[1]), dtypes, rounds if on_cpu else 0,
                 count, with_oracle=with_oracle)  # fmt: skip
    printed = capture.Captured()
    with capture.stdout(printed), torch_threads(count), torch.no_grad():
        cases = [duel.case(dims, scalars) for dims, scalars in _cases(op, sizes)]
    if printed.text:
        click.echo(f"printed by a provider: {printed.text}", err=True)
    ratios = [c["ratio"] for c in cases if c["ratio"]]
    document = {
        "operator": op.name,
        "providers": providers,
        "device": where(dev),
        "dtype": values.shown(duel.dtype),
        "rounds": rounds,
        "threads": count,
        "clock": ("cpu" if count == 1 else "wall") if on_cpu else "",
        "cases": cases,
        "ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "not_measured": list(_not_measured(op, count, cases, on_cpu=on_cpu, oracle=with_oracle)),
    }
    if as_json:
        emit(document)
    else:
        _show(document)
    compared = any(not c["skipped"] for c in cases)
    ctx.exit(0 if compared and not duel.failed else FOUND_PROBLEM)


def _cases(
    op: Operator, sizes: Mapping[str, int]
) -> list[tuple[Mapping[str, int], Mapping[str, Any]]]:
    chosen = [{**op.cases.sizes[0], **sizes}] if sizes else op.cases.sizes
    return [(dims, scalars) for dims in chosen for scalars in op.cases.scalars]


class _Duel:
    """Both providers on one case after the other."""

    def __init__(
        self,
        bind: Binder,
        op: Operator,
        providers: tuple[str, str],
        dtypes: Mapping[str, torch.dtype],
        rounds: int,
        count: int,
        *,
        with_oracle: bool,
    ) -> None:
        self.bind = bind
        self.op = op
        self.providers = providers
        self.dtype = dtypes.get("", torch.float32)
        self.dtypes = {n: d for n, d in dtypes.items() if n}
        self.rounds = rounds
        self.clock = clock_for(count)
        self.with_oracle = with_oracle
        self.failed = False

    def case(self, dims: Mapping[str, int], scalars: Mapping[str, Any]) -> dict[str, Any]:
        """One entry of ``cases``."""
        rng = torch.Generator().manual_seed(0)
        with makeable():
            given = arguments(self.op, dims, self.dtype, rng, scalars=scalars, dtypes=self.dtypes)
        want = oracle(self.op, given) if self.with_oracle else None
        place = self.bind.info.torch
        given = {n: _to(a, place) for n, a in given.items()}
        sides: list[dict[str, Any]] = [
            {"provider": p, "error": None, "seconds": None, "gb_per_s": None}
            for p in self.providers
        ]
        nbytes = self.op.bytes_moved(given)
        found: dict[str, Any] = {"sizes": dict(dims), "scalars": dict(scalars), "bytes": nbytes,
                                 "difference": None, "sides": sides, "ratio": None,
                                 "skipped": ""}  # fmt: skip
        selected = [select(self.bind, self.op, p, given) for p in self.providers]
        for provider, one in zip(self.providers, selected, strict=True):
            if isinstance(one, str):
                return found | {"skipped": f"{provider}: {one}"}
        ready, got = [], []
        for one in (s for s in selected if isinstance(s, Selected)):
            try:
                ready.append(one.contender(given))
                got.append(results(self.op, ready[-1].function, ready[-1].arguments))
            except Exception as error:  # noqa: BLE001 - a provider's own code, reported by name
                self.failed = True
                why = f"{one.arm.provider} raises {type(error).__name__}: {error}"
                return found | {"skipped": why}
        if want is not None:
            for side, result in zip(sides, got, strict=True):
                side["error"] = difference(result, want)
        found["difference"] = difference(got[0], got[1])
        if self.rounds and found["difference"]["elements"]:
            times = interleaved((ready[0], ready[1]), self.rounds, self.clock).medians()
            found["ratio"] = times[0] / times[1] if times[1] else None
            for side, seconds in zip(sides, times, strict=True):
                side["seconds"] = seconds
                side["gb_per_s"] = nbytes / seconds / 1e9 if seconds else None
        return found


def _to(value: Any, place: torch.device) -> Any:
    if isinstance(value, list):
        return [_to(v, place) for v in value]
    return value.to(place) if isinstance(value, torch.Tensor) else value


def _not_measured(
    op: Operator, count: int, cases: Sequence[Mapping[str, Any]], *, on_cpu: bool, oracle: bool
) -> Iterator[str]:
    if skipped := sum(bool(c["skipped"]) for c in cases):
        yield f"{skipped} of {len(cases)} cases, which one of the two does not run"
    if empty := sum(bool(c["difference"]) and not c["difference"]["elements"] for c in cases):
        yield f"{empty} of {len(cases)} cases, which have no elements"
    if not oracle:
        yield "errors against the oracle"
    if not on_cpu:
        yield "time: work on this device is asynchronous"
        return
    yield "cold caches: every round uses the same arguments"
    if count == 1:
        yield "CPU time of threads that a provider starts itself"
    if op.prepare is not None:
        yield "packing the weight"
    if "schedule" in op.parameters:
        yield "preparing the step"


# --- text ------------------------------------------------------------------------------------


def _show(found: Mapping[str, Any]) -> None:
    screen = Screen()
    first, second = found["providers"]
    screen.heading(f"{found['operator']}: {first} and {second}")
    clock = {"cpu": "CPU time", "wall": "wall time", "": ""}[found["clock"]]
    timed = f"median {clock} of {found['rounds']} interleaved rounds" if clock else "no time"
    threads = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
    screen.line(f"{found['device']}, {found['dtype']}, {threads}, {timed}", 2)
    for case in found["cases"]:
        said = {**case["sizes"], **case["scalars"]}
        screen.heading(" ".join(f"{n}={values.shown(v)}" for n, v in said.items()))
        if case["skipped"]:
            screen.line(f"not compared: {case['skipped']}", 2)
            continue
        screen.table(
            ("provider", "max error", "relative rms", "wrong", "us a call", "GB/s"),
            [_side(side) for side in case["sides"]],
            flexible=(),
        )
        apart = case["difference"]
        ratio = f"; time of the first / second {case['ratio']:.3g}" if case["ratio"] else ""
        wrong = f", {apart['mismatches']} elements apart" if apart["mismatches"] else ""
        screen.line(f"max difference {_number(apart['max'])}{wrong}{ratio}", 2)
    screen.heading("Summary")
    if found["ratio"]:
        screen.line(f"time of {first} / {second}: {found['ratio']:.3g} (geometric mean)", 2)
    for text in found["not_measured"]:
        screen.line(f"not measured: {text}", 2)


def _side(side: Mapping[str, Any]) -> tuple[str, ...]:
    error = side["error"] or {"max": None, "relative_rms": None, "mismatches": None}
    micro = side["seconds"] and side["seconds"] * 1e6
    wrong = "-" if error["mismatches"] is None else str(error["mismatches"])
    return (side["provider"], _number(error["max"]), _number(error["relative_rms"]), wrong,
            _number(micro), _number(side["gb_per_s"]))  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
