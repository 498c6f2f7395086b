"""What plugin code must leave alone: public functions that everybody uses, and torch's state.

The identities are taken before a plugin is loaded. What differs later is named and put back, so
that one implementation that patches the world harms no other one's results.
"""

from __future__ import annotations

import builtins
import math
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import overrides
from torch.utils import _python_dispatch as dispatch

import trivet.binding.checks
import trivet.judging.choices
import trivet.judging.statistics

KIT: Final = __name__.partition(".")[0]
_MISSING: Final = object()


@dataclass(frozen=True)
class Name:
    """One public name: its owner, what it means, and its code where that is Python."""

    owner: Any
    label: str
    attr: str
    value: Any
    code: types.CodeType | None
    inherited: bool

    def now(self) -> object:
        """What the name means now."""
        for owner in self.owner.__mro__ if self.inherited else (self.owner,):
            if self.attr in vars(owner):
                return vars(owner)[self.attr]
        return _MISSING

    def restore(self) -> None:
        """Makes the name mean what it meant."""
        if self.code is not None and self.value.__code__ is not self.code:
            self.value.__code__ = self.code
        if self.now() is self.value:
            return
        if self.inherited and self.attr in vars(self.owner):
            delattr(self.owner, self.attr)
        if self.now() is not self.value:
            setattr(self.owner, self.attr, self.value)


@dataclass(frozen=True)
class Fact:
    """One piece of state of the process, and how it is put back."""

    label: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


class Guard:
    """The world as it was before the plugin came."""

    def __init__(self) -> None:
        self._names = list(_names())
        self._facts = [(fact, fact.read()) for fact in FACTS]

    def changes(self) -> list[str]:
        """What plugin code changed since the last call; each is put back."""
        return [*self._replaced(), *self._state()]

    def _replaced(self) -> Iterator[str]:
        for i, name in enumerate(self._names):
            now = name.now()
            swapped = name.code is not None and name.value.__code__ is not name.code
            if now is name.value and not swapped:
                continue
            if not swapped and _is_torch_s_own(now):
                self._names[i] = Name(
                    name.owner, name.label, name.attr, now, _code(now), name.inherited
                )
                continue
            new = name.value.__code__.co_filename if swapped else _called(now)
            what = f"the code of {name.label} was replaced by one of {new}"
            yield what if swapped else f"{name.label} was {_removed(now, new)}"
            name.restore()

    def _state(self) -> Iterator[str]:
        for fact, before in self._facts:
            now = fact.read()
            if now == before:
                continue
            yield f"{fact.label} was changed{_values(before, now)}"
            fact.write(before)


def _removed(now: object, new: str) -> str:
    return "removed" if now is _MISSING else f"replaced by {new}"


def _called(value: object) -> str:
    module = getattr(value, "__module__", None) or type(value).__module__
    name = getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
    return f"{module}.{name}"


def _values(before: object, now: object) -> str:
    short = all(isinstance(v, bool | int | float | str | torch.dtype) for v in (before, now))
    return f" from {before} to {now}" if short else ""


def _is_torch_s_own(value: object) -> bool:
    """Whether torch itself put it there: it fills some of its names when they are first used."""
    code = _code(value)
    home = os.path.dirname(torch.__file__)  # noqa: PTH120 - compared as text
    if code is not None:
        return code.co_filename.startswith(home)
    if isinstance(value, type | types.ModuleType):
        return (getattr(value, "__module__", "") or "").partition(".")[0] == "torch"
    return False


def _code(value: object) -> types.CodeType | None:
    return value.__code__ if isinstance(value, types.FunctionType) else None


def _names() -> Iterator[Name]:
    plain: list[tuple[Any, str]] = [
        (torch, "torch"),
        (torch.testing, "torch.testing"),
        (torch.nn.functional, "torch.nn.functional"),
        (torch.library, "torch.library"),
        (torch.linalg, "torch.linalg"),
        (time, "time"),
        (math, "math"),
        (builtins, "builtins"),
        (trivet.binding.checks, "trivet.binding.checks"),
        (trivet.judging.choices, "trivet.judging.choices"),
        (trivet.judging.statistics, "trivet.judging.statistics"),
    ]
    plain += [(m, n) for n, m in sys.modules.items() if n.partition(".")[0] == KIT]
    for owner, label in plain:
        for attr, value in list(vars(owner).items()):
            if callable(value) and not attr.startswith("__"):
                yield Name(owner, f"{label}.{attr}", attr, value, _code(value), inherited=False)
            own = isinstance(value, type) and value.__module__ == label
            if own and label.startswith(KIT):
                yield from _members(value, f"{label}.{attr}")
    seen: set[str] = set()
    for klass in torch.Tensor.__mro__[:-1]:
        for attr, value in list(vars(klass).items()):
            if attr not in seen and callable(value):
                seen.add(attr)
                label = f"torch.Tensor.{attr}"
                yield Name(torch.Tensor, label, attr, value, _code(value), inherited=True)


def _members(owner: type, label: str) -> Iterator[Name]:
    for attr, value in list(vars(owner).items()):
        if isinstance(value, types.FunctionType):
            yield Name(owner, f"{label}.{attr}", attr, value, _code(value), inherited=False)


def _flushes() -> bool:
    """Whether this thread takes numbers below the smallest normal one for zero."""
    return float(torch.tensor(1e-40) * 1.0) == 0.0


def _pop(depth: Callable[[], int], pop: Callable[[], object]) -> Callable[[int], None]:
    def down(before: int) -> None:
        while depth() > before:
            pop()

    return down


def _function_modes() -> int:
    return torch._C._len_torch_function_stack()  # noqa: SLF001 - torch has no other


def _dispatch_modes() -> int:
    return len(dispatch._get_current_dispatch_mode_stack())  # noqa: SLF001 - torch has no other


def _set_threads(count: int) -> None:
    torch.set_num_threads(count)


FACTS: Final = (
    Fact(
        "the stack of torch function modes (a mode was left on)",
        _function_modes,
        _pop(_function_modes, overrides._pop_mode),  # noqa: SLF001 - torch has no other
    ),
    Fact(
        "the stack of torch dispatch modes (a mode was left on)",
        _dispatch_modes,
        _pop(_dispatch_modes, dispatch._pop_mode),  # noqa: SLF001 - torch has no other
    ),
    Fact("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Fact("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Fact("torch's inference mode", torch.is_inference_mode_enabled, lambda _: None),
    Fact(
        "torch.use_deterministic_algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    Fact(
        "torch's precision of float32 products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    Fact("torch's number of threads", torch.get_num_threads, _set_threads),
    Fact(
        "the state of torch's global random numbers",
        lambda: bytes(torch.get_rng_state().tolist()),
        lambda state: torch.set_rng_state(torch.tensor(list(state), dtype=torch.uint8)),
    ),
    Fact(
        "autocast on the CPU",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    Fact("torch's anomaly mode", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    Fact("flushing of small numbers to zero", _flushes, torch.set_flush_denormal),
    Fact("the working directory", os.getcwd, os.chdir),
    Fact("sys.settrace", sys.gettrace, sys.settrace),
    Fact("sys.setprofile", sys.getprofile, sys.setprofile),
    Fact("sys.stdout", lambda: sys.stdout, lambda v: setattr(sys, "stdout", v)),
    Fact("sys.stderr", lambda: sys.stderr, lambda v: setattr(sys, "stderr", v)),
)
"""State of the process that belongs to everybody in it."""
