"""``trivet ab``: two providers of one operator side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click
import torch

from trivet.binding.binder import Binder
from trivet.binding.example_calls import arguments
from trivet.cli import values
from trivet.cli.comparison import (
    Contender,
    Selected,
    buffers,
    clock_for,
    difference,
    fresh,
    interleaved,
    results,
    select,
    watched,
)
from trivet.cli.comparison import (
    threads as torch_threads,
)
from trivet.cli.device_name import where
from trivet.cli.example import makeable, size_names
from trivet.cli.judging import Judge, wide
from trivet.cli.program import FOUND_PROBLEM
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.contracts.declaration import Operator
from trivet.devices import device
from trivet.errors import ConfigError, ContractBroken, UnknownName
from trivet.plugins import capture
from trivet.plugins.verification import REFERENCE
from trivet.settings import likely

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
    "problems": "[text], what is wrong",
    "not_measured": "[text], what these numbers do not say",
}
"""Keys of the document.

Each case has ``ratio`` (time first / second), ``skipped`` (why nothing was compared, or empty)
and two ``sides``: ``{provider, error, budget, wrong, seconds, gb_per_s}``. ``difference`` (first
against second) and ``error`` (against the float64 oracle) are ``{max, mean, relative_rms,
mismatches, elements}``. ``budget`` is the share used of the error budget that the operator
declares (more than 1 is wrong; null where results must be equal), ``wrong`` the number of elements
outside it.
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
              help="Judge results by the float64 oracle (slow for large sizes).")  # fmt: skip
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

    A provider is PLUGIN/NAME or `reference`; OPERATOR may name a form (rms_norm_, rms_norm_out).
    Runs both on equal arguments of their own, one thread, in turns.

    "of budget" is the share used of the error that the operator allows, measured against the
    float64 oracle: more than 1 is wrong. Exit code 1 when a provider is wrong, fails or changes an
    input, or no case could be compared.
    """
    name, both = values.split(pair, "OPERATOR=FIRST,SECOND")
    providers = [p.strip() for p in both.split(",")]
    if len(providers) != 2 or not all(providers):
        raise click.BadParameter(f"{both!r} is not two providers separated by a comma")
    dev = device(device_name)
    bind = dev.binder
    op, form = bind.target(name)
    _refuse_providers(bind, op, providers)
    values.known("size", sizes, size_names(op))
    timed = dev.torch.type == "cpu" and (form != "inplace" or op.inplace_only)
    duel = _Duel(bind, (op, name, form), (providers[0], providers[1]), dtypes,
                 rounds if timed else 0, count, with_oracle=with_oracle)  # fmt: skip
    printed = capture.Captured()
    with capture.stdout(printed), torch_threads(count), torch.no_grad():
        cases = [duel.case(dims, scalars) for dims, scalars in _cases(op, sizes)]
    if printed.text:
        click.echo(f"printed by a provider: {printed.text}", err=True)
    ratios = [c["ratio"] for c in cases if c["ratio"]]
    document = {
        "operator": name.partition("@")[0],
        "providers": providers,
        "device": where(dev),
        "dtype": values.shown(duel.dtype),
        "rounds": rounds,
        "threads": count,
        "clock": ("cpu" if count == 1 else "wall") if timed else "",
        "cases": cases,
        "ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "problems": duel.problems,
        "not_measured": list(_not_measured(duel, count, cases, on_cpu=dev.torch.type == "cpu")),
    }
    if as_json:
        emit(document)
    else:
        _show(document)
    compared = any(not c["skipped"] for c in cases)
    ctx.exit(0 if compared and not duel.problems else FOUND_PROBLEM)


def _refuse_providers(bind: Binder, op: Operator, providers: Sequence[str]) -> None:
    """Refuses names that are no providers of the operator, and providers that may not run."""
    known = [*bind.providers()[op.name], REFERENCE]
    forbidden = bind.policy().settings.forbidden(op.name)
    for provider in providers:
        if provider not in known:
            fix = f"use one of {likely(provider, known)} (all: trivet ops {op.name})"
            raise UnknownName(f"ab: {op.name} has no provider {provider!r}", fix=fix)
        if provider in forbidden:
            msg = f"ab cannot run {provider!r}: {forbidden[provider]} forbids it for {op.name}"
            raise ConfigError(msg, fix="take it out there for this comparison")


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
        target: tuple[Operator, str, str],
        providers: tuple[str, str],
        dtypes: Mapping[str, torch.dtype],
        rounds: int,
        count: int,
        *,
        with_oracle: bool,
    ) -> None:
        self.bind = bind
        self.op, self.name, self.form = target
        self.providers = providers
        self.dtype = dtypes.get("", torch.float32)
        self.dtypes = {n: d for n, d in dtypes.items() if n}
        self.rounds = rounds
        self.clock = clock_for(count)
        self.with_oracle = with_oracle
        self.problems: list[str] = []

    def case(self, dims: Mapping[str, int], scalars: Mapping[str, Any]) -> dict[str, Any]:
        """One entry of ``cases``."""
        draw = partial(self._draw, dims, scalars)
        on_host, place = draw(0), self.bind.info.torch
        given = {n: _to(a, place) for n, a in on_host.items()}
        sides: list[dict[str, Any]] = [
            {"provider": p, "error": None, "budget": None, "wrong": None, "seconds": None,
             "gb_per_s": None}
            for p in self.providers
        ]  # fmt: skip
        nbytes = self.op.bytes_moved(given)
        found: dict[str, Any] = {"sizes": dict(dims), "scalars": dict(scalars), "bytes": nbytes,
                                 "difference": None, "sides": sides, "ratio": None,
                                 "skipped": ""}  # fmt: skip
        call = given | ({"out": buffers(self.op, given)} if self.form == "out" else {})
        selected = [select(self.bind, self.op, self.name, p, call) for p in self.providers]
        for provider, one in zip(self.providers, selected, strict=True):
            if isinstance(one, str):
                return found | {"skipped": f"{provider}: {one}"}
        ready, got = [], []
        for one in (s for s in selected if isinstance(s, Selected)):
            try:
                ready.append(one.contender({n: fresh(a) for n, a in given.items()}))
                got.append(watched(self.op, self.form, ready[-1]))
            except ContractBroken as error:
                return found | {"skipped": self._problem(error.what)}
            except Exception as error:  # noqa: BLE001 - a provider's own code, reported by name
                why = f"{one.arm.provider} raises {type(error).__name__}: {error}"
                return found | {"skipped": self._problem(why)}
        if self.with_oracle:
            self._judge(on_host, draw, sides, got)
        found["difference"] = difference(got[0], got[1])
        if self.rounds and found["difference"]["elements"]:
            pair = (self._timed(ready[0]), self._timed(ready[1]))
            times = interleaved(pair, self.rounds, self.clock).medians()
            found["ratio"] = times[0] / times[1] if times[1] else None
            for side, seconds in zip(sides, times, strict=True):
                side["seconds"] = seconds
                side["gb_per_s"] = nbytes / seconds / 1e9 if seconds else None
        return found

    def _draw(
        self, dims: Mapping[str, int], scalars: Mapping[str, Any], number: int
    ) -> dict[str, Any]:
        rng = torch.Generator().manual_seed(number)
        with makeable():
            return arguments(self.op, dims, self.dtype, rng, scalars=scalars, dtypes=self.dtypes)

    def _judge(
        self,
        given: Mapping[str, Any],
        draw: Callable[[int], Mapping[str, Any]],
        sides: Sequence[dict[str, Any]],
        got: Sequence[Sequence[torch.Tensor]],
    ) -> None:
        want = results(self.op, self.op.oracle, {n: wide(a) for n, a in given.items()})
        judge = Judge(self.op, given, want, draw)
        for side, result in zip(sides, got, strict=True):
            side["error"] = difference(result, want)
            verdict = judge.verdict(result)
            side["budget"], side["wrong"] = verdict.share, verdict.wrong
            if not verdict.right:
                much = "" if verdict.share is None else f"{verdict.share:.3g} times the budget, "
                self._problem(
                    f"{side['provider']} is wrong: {much}{verdict.wrong} elements outside it"
                    if much
                    else f"{side['provider']} is wrong in {verdict.wrong} elements"
                )

    def _problem(self, text: str) -> str:
        if text not in self.problems:
            self.problems.append(text)
        return text

    def _timed(self, one: Contender) -> Contender:
        if self.form != "out":
            return one
        out = buffers(self.op, one.arguments)
        return replace(one, arguments={**one.arguments, "out": out})


def _to(value: Any, place: torch.device) -> Any:
    if isinstance(value, list):
        return [_to(v, place) for v in value]
    return value.to(place) if isinstance(value, torch.Tensor) else value


def _not_measured(
    duel: _Duel, count: int, cases: Sequence[Mapping[str, Any]], *, on_cpu: bool
) -> Iterator[str]:
    op = duel.op
    if skipped := sum(bool(c["skipped"]) for c in cases):
        yield f"{skipped} of {len(cases)} cases, which one of the two does not run"
    if empty := sum(bool(c["difference"]) and not c["difference"]["elements"] for c in cases):
        yield f"{empty} of {len(cases)} cases, which have no elements"
    if not duel.with_oracle:
        yield "errors against the oracle"
        yield "whether the results are right"
    if not duel.rounds:
        yield "time: " + ("a call changes what the next one reads" if on_cpu else
                          "work on this device is asynchronous")  # fmt: skip
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
        if 0 in case["sizes"].values() and len(found["cases"]) > 1:
            continue  # it has no elements; their number is said in the summary
        said = {**case["sizes"], **case["scalars"]}
        screen.heading(" ".join(f"{n}={values.shown(v)}" for n, v in said.items()))
        if case["skipped"]:
            screen.line(f"not compared: {case['skipped']}", 2)
            continue
        screen.table(
            ("provider", "max error", "relative rms", "of budget", "us a call", "GB/s"),
            [_side(side) for side in case["sides"]],
            flexible=(),
        )
        apart = case["difference"]
        ratio = f"; time of the first / second {case['ratio']:.3g}" if case["ratio"] else ""
        wrong = f", {apart['mismatches']} elements apart" if apart["mismatches"] else ""
        for side in case["sides"]:
            if side["wrong"]:
                screen.line(f"{side['provider']}: {side['wrong']} elements are wrong", 2)
        screen.line(f"max difference {_number(apart['max'])}{wrong}{ratio}", 2)
    screen.heading("Summary")
    if found["ratio"]:
        screen.line(f"time of {first} / {second}: {found['ratio']:.3g} (geometric mean)", 2)
    for text in found["problems"]:
        screen.line(f"problem: {text}", 2)
    for text in found["not_measured"]:
        screen.line(f"not measured: {text}", 2)


def _side(side: Mapping[str, Any]) -> tuple[str, ...]:
    error = side["error"] or {"max": None, "relative_rms": None}
    micro = side["seconds"] and side["seconds"] * 1e6
    used = _number(side["budget"])
    if side["wrong"] is not None and side["budget"] is None:
        used = "wrong" if side["wrong"] else "equal"
    return (side["provider"], _number(error["max"]), _number(error["relative_rms"]), used,
            _number(micro), _number(side["gb_per_s"]))  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
