"""Right on one stream, wrong on several: killed by the stream family, on a device with streams.

They are not among the variants of a run on the CPU, where nothing can tell them from right ones;
``conformance/tests/gpu/stream_check.py`` judges them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

_streams: dict[torch.device, torch.Stream] = {}
_results: dict[object, Tensor] = {}
_copies: dict[object, Tensor] = {}


@implements("silu_and_mul@1", name="works_on_a_side_stream")
def works_on_a_side_stream(x: Tensor) -> Tensor:
    """Neither waits for the caller's stream nor lets it wait."""
    side = _streams.setdefault(x.device, torch.Stream(device=x.device))
    with side:
        y: Tensor = silu_and_mul.reference(x)
    return y


@implements("silu_and_mul@1", name="waits_for_the_host_in_a_graph", graph_safe=True)
def waits_for_the_host_in_a_graph(x: Tensor) -> Tensor:
    """Asks the device for a number, which no capture allows."""
    y: Tensor = silu_and_mul.reference(x)
    return y if bool(torch.isfinite(x).any()) or not x.numel() else torch.clone(y)


@implements("silu_and_mul@1", name="reads_a_copy_of_its_first_input", graph_safe=True)
def reads_a_copy_of_its_first_input(x: Tensor) -> Tensor:
    """In a capture it reads memory that was filled before: a stale pointer."""
    if torch.get_device_module(x.device).is_current_stream_capturing():
        x = _copies.get((x.shape, x.dtype), x)
    else:
        _copies[x.shape, x.dtype] = x.clone()
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("silu_and_mul@1", name="bakes_its_result_in", graph_safe=True)
def bakes_its_result_in(x: Tensor) -> Tensor:
    """A capture copies the result of the call before it."""
    key = (x.shape, x.dtype)
    if torch.get_device_module(x.device).is_current_stream_capturing() and key in _results:
        return _results[key].clone()
    y: Tensor = silu_and_mul.reference(x)
    _results[key] = y.clone()
    return y


DEVICE_VARIANTS = variants(
    "stream",
    (
        works_on_a_side_stream,
        waits_for_the_host_in_a_graph,
        reads_a_copy_of_its_first_input,
        bakes_its_result_in,
    ),
)
"""Mutants that only a device with streams can show."""
