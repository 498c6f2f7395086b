"""The peers of the GPU benchmark: what ``trivet_cuda.peers`` offers, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

import torch
from gpu_clock import Call
from torch import Tensor

from trivet.contracts import DeviceInfo
from trivet.contracts.implementation import claims_of
from trivet_cuda import peers

NOT_TIMED_HERE = "sdpa"  # attention has its own cells


class Function(NamedTuple):
    """A peer's function of one operator."""

    call: Callable[..., Any]
    inplace: bool


Peers = Mapping[str, Mapping[str, Function]]


def found(info: DeviceInfo, only: Sequence[str] = ()) -> tuple[Peers, dict[str, str]]:
    """Peer -> operator -> function on a device, and who offers nothing there, with the reason.

    No peer is imported.
    """
    here: dict[str, dict[str, Function]] = {}
    missing: dict[str, str] = {}
    for one in iter_modules(peers.__path__):
        module = import_module(f"{peers.__name__}.{one.name}")
        own = [f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__]
        for claim in (c for f in own for c in claims_of(f)):
            if claim.name == NOT_TIMED_HERE or (only and claim.name not in only):
                continue
            reasons = [why for need in claim.requires if (why := need.unmet(info))]
            if reasons:
                missing[claim.name] = "; ".join(reasons)
                continue
            name = claim.target.partition("@")[0]
            operator = name.removesuffix("_")
            here.setdefault(claim.name, {})[operator] = Function(claim.function, name != operator)
    return here, {name: why for name, why in missing.items() if name not in here}


def call_of(peer: str, operator: str, function: Function, arguments: Sequence[Any]) -> Call:
    """A call of a peer with everything prepared that an engine would prepare once a step."""
    if operator == "rotary_embedding" and peer != "inductor":
        return _turning(peer, function, arguments)
    if peer == "inductor":
        compiled = import_module(f"{peers.__name__}.inductor").fresh(operator)
        return lambda: compiled(*arguments)
    call = function.call
    return lambda: call(*arguments)


def _turning(peer: str, function: Function, arguments: Sequence[Any]) -> Call:
    """Rotary embedding with the table that a peer wants instead of rows of cosines and sines."""
    q, k, cos, sin = arguments[:4]
    module = import_module(f"{peers.__name__}.{peer}")
    at = import_module(f"{peers.__name__}.arguments").positions(q.shape[0], q.device)
    if peer == "flaggems":
        return lambda: module.rotate(q, k, cos, sin, at, "neox")
    if peer in ("vllm", "flashinfer"):
        table = torch.cat((cos, sin), -1)
        return lambda: module.rotate_(q, k, at, table, "neox")
    return lambda: function.call(q, k, cos, sin)


def tensors(result: object) -> list[Tensor]:
    """What a call returned, as a list."""
    if isinstance(result, Tensor):
        return [result]
    return [t for t in result if isinstance(t, Tensor)] if isinstance(result, (list, tuple)) else []
