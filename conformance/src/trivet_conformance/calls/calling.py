"""Calling a provider's function in its form, and gathering its results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivet.contracts.declaration import Operator
from trivet_conformance.calls.layouts import Layout, Placed, place


class ProviderFault(Exception):
    """A provider raised where it must not; ``error`` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        text = (str(error).strip().splitlines() or ["no message"])[0]
        super().__init__(f"raised {type(error).__name__}: {text}")


@dataclass(frozen=True)
class Outcome:
    """One call that came back.

    Args:
        placed: the arguments as they are after the call.
        raw: what the function returned.
        results: the results in order of the declaration, wherever the form puts them.
    """

    placed: Placed
    raw: object
    results: list[Any]


def poisoned(op: Operator, arguments: Mapping[str, Any]) -> list[Tensor]:
    """Memory for the results of the out form, full of numbers that no kernel leaves there."""
    made = []
    for shape, dtype in op.result_meta(arguments):
        value: float = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min
        made.append(torch.full(shape, value, dtype=dtype))
    return made


def lay_out(
    op: Operator, form: str, arguments: Mapping[str, Any], layout: Layout, device: torch.device
) -> Placed | None:
    """Places the arguments of a form, the out form's results among them."""
    outs = poisoned(op, arguments) if form == "out" else ()
    return place(op, arguments, layout, device, outs)


def invoke(op: Operator, form: str, function: Callable[..., Any], placed: Placed) -> Outcome:
    """Calls a function of a form.

    Raises:
        ProviderFault: it raised.
    """
    arguments = placed.arguments
    positional = [arguments[name] for name in op.signature.names()]
    keyword = {"out": arguments["out"]} if form == "out" else {}
    raw = foreign(function, *positional, **keyword)
    return Outcome(placed, raw, results_of(op, form, raw, arguments))


def foreign(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a provider's code, with as many threads as the process had.

    Raises:
        ProviderFault: it raised.
    """
    threads = _given.get()
    if threads > 1:
        torch.set_num_threads(threads)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise ProviderFault(error) from error
    finally:
        if threads > 1:
            torch.set_num_threads(1)


def results_of(op: Operator, form: str, raw: object, arguments: Mapping[str, Any]) -> list[Any]:
    """The results of a call, from what it returned or wrote."""
    if form == "out":
        return _listed(arguments["out"])
    if form == "inplace":
        order = op.writes or sorted(op.inplace, key=op.inplace.__getitem__)
        return [arguments[name] for name in order if arguments[name] is not None]
    return _listed(raw)


def _listed(raw: object) -> list[Any]:
    return list(raw) if isinstance(raw, (list, tuple)) else [raw]


_given: ContextVar[int] = ContextVar("trivet_conformance_threads", default=1)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Runs the kit's own arithmetic on one thread; providers keep the threads they are given.

    The tensors are small: waking threads for them costs more than they save.
    """
    before = torch.get_num_threads()
    token = _given.set(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _given.reset(token)


def compute(
    op: Operator, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> list[Tensor]:
    """Runs a reference or oracle on copies of the arguments."""
    own = {n: copied(v) for n, v in arguments.items()}
    raw = function(*(own[name] for name in op.signature.names()))
    return results_of(op, "inplace" if op.inplace_only else "functional", raw, own)


def copied(value: Any) -> Any:
    """A copy of an argument that shares no memory with it."""
    if isinstance(value, Tensor):
        return value.clone()  # keeps the strides of what has no gaps
    if isinstance(value, list):
        return [copied(t) for t in value]
    return value


def in_float64(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same stored inputs, with every floating tensor in float64."""
    return {n: _wide(v) for n, v in arguments.items()}


def _wide(value: Any) -> Any:
    if isinstance(value, list):
        return [_wide(t) for t in value]
    floating = isinstance(value, Tensor) and value.dtype.is_floating_point
    return value.double() if floating else value


def on_cpu(results: Sequence[Any]) -> list[Any]:
    """Results where they can be compared; a copy off a device waits for its stream."""
    return [r.detach().cpu() if isinstance(r, Tensor) else r for r in results]
