"""Runs one config in a process of its own: whether it runs, and computes what the default does."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple

import torch

from trivet.errors import DeclarationError
from trivet.kernels.triton.children import Spoilt
from trivet.kernels.triton.kernel_set import Call, Trials, Tunable, tuned_of
from trivet.kernels.triton.tuned import Config, Key, Trial, Tuned, config_at

OK: Final = "ok"
FAILED: Final = "failed"
WRONG: Final = "wrong"

_SEED: Final = 20
_RELATIVE: Final = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
"""What another order of summation may do: two units of the last place of narrow types."""
_NARROW: Final = 0.25
"""The same of types with 8 bits."""


@dataclass(frozen=True)
class Verdict:
    """Of one config at one number of rows: a word, and why."""

    word: str
    reason: str = ""


def attempt(
    module: str,
    name: str,
    trial: Trial,
    key: Key,
    config: Config,
    rows: Sequence[int],
    device: str,
    arch: str,
) -> dict[int, Verdict]:
    """Runs a config for each number of rows.

    Raises:
        Spoilt: the device cannot be used by this process any more.
    """
    tuned = tuned_of(import_module(module))[name]
    buckets, where = tuned.defaults(arch, key), torch.device(device)
    one = Tunable(module, tuned, Trials(trial, ()))
    found = {n: _verdict(one, key, n, config, config_at(buckets, n), where) for n in rows}
    if where.type != "cpu":  # others use the same device
        torch.get_device_module(where).empty_cache()
    return found


def _verdict(
    one: Tunable, key: Key, rows: int, config: Config, usual: Config, device: torch.device
) -> Verdict:
    try:
        found = _results(one, key, rows, config, device)
        wanted = found if config == usual else _results(one, key, rows, usual, device)
    except Exception as error:  # a vendor's code; reported in its place
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if why := spoilt(device):
            raise Spoilt(f"{reason}; then {why}") from error
        return Verdict(FAILED, reason)
    problem = differs(found, wanted)
    return Verdict(WRONG, problem) if problem else Verdict(OK)


def _results(
    one: Tunable, key: Key, rows: int, config: Config, device: torch.device
) -> list[torch.Tensor]:
    """Copies of what the first call of a fresh trial computes."""
    made = prepared(one, key, rows, config, device).first
    found = [made] if isinstance(made, torch.Tensor) else made
    if not isinstance(found, Sequence) or not all(isinstance(t, torch.Tensor) for t in found):
        msg = f"the trial of {one.tuned.name} returns a {type(made).__name__}, nothing to compare"
        raise DeclarationError(msg, fix="return the tensors that the kernel wrote")
    copies = [t.clone() for t in found]
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return copies


class Prepared(NamedTuple):
    """A trial that ran once: what to call, the bytes it moves, and what the first call gave."""

    call: Call
    moved: int
    first: object


def prepared(one: Tunable, key: Key, rows: int, config: Config, device: torch.device) -> Prepared:
    """A trial of a config, with the inputs of every other one of the same key and rows.

    It may be a call of an operator, which keeps its launches: so the caches of the kernels'
    package are emptied before, and the first call is made while the config is forced.
    """
    forget(one.module.rpartition(".")[0])
    torch.manual_seed(_SEED)
    with one.tuned.forced(config) as asked:
        call, moved = one.trials.trial(key, rows, config, device)
        made = Prepared(call, moved, call())
    if asked and dict(key) not in map(dict, asked):
        msg = f"the trial of {one.tuned.name} asks for {dict(asked[0])}, not for {dict(key)}"
        raise DeclarationError(msg, fix="correct the key: rows under it would never be read")
    return made


def forget(package: str) -> None:
    """Empties the caches of functions of a package, whose results may hang on a config."""
    for name, module in list(sys.modules.items()):
        if package and name.startswith(f"{package}."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear") and value.__module__ == name:
                    value.cache_clear()


def spoilt(device: torch.device) -> str:
    """Why this process can use a device no more; empty when it can."""
    if device.type == "cpu":
        return ""
    try:
        torch.accelerator.synchronize(device)
    except RuntimeError as error:
        return f"the device fails: {' '.join(str(error).split())[:200]}"
    return ""


def differs(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> str:
    """Where results differ by more than the order of summation explains; empty when nowhere.

    What is allowed is a share of an element and of the mean of its row, whose sums have its size.
    """
    if len(found) != len(wanted):
        return f"{len(found)} results, the default gives {len(wanted)}"
    for at, (mine, its) in enumerate(zip(found, wanted, strict=True)):
        if mine.shape != its.shape or mine.dtype != its.dtype:
            return f"result {at} is {mine.dtype} {tuple(mine.shape)}, not {its.dtype} {its.shape}"
        if not mine.is_floating_point():
            off = mine != its
        else:
            relative = _RELATIVE.get(mine.dtype, _NARROW)
            exact, given = its.double(), mine.double()
            size = exact.nan_to_num(0.0, 0.0, 0.0).abs().mean(-1, keepdim=True)
            near = (given - exact).abs() <= relative * (exact.abs() + size)
            off = ~(near | (given == exact) | (given.isnan() & exact.isnan()))
        if count := int(off.sum()):
            one = tuple(int(i) for i in off.nonzero()[0])
            return (
                f"result {at} differs in {count} of {off.numel()} elements, "
                f"first at {one}: {mine[one].item()!r}, the default gives {its[one].item()!r}"
            )
    return ""


def choices(tuned: Tuned, arch: str, key: Key, rows: int) -> list[Mapping[str, object]]:
    """The default config, then the others of the space, each once."""
    found = [dict(config_at(tuned.defaults(arch, key), rows))]
    for config in tuned.candidates(arch, key, rows):
        if dict(config) not in found:
            found.append(dict(config))
    return list(found)
