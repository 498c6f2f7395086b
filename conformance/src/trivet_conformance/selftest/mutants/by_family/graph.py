"""Right in every call, wrong in a graph, and declared for one: killed by the graph family."""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

_kept: list[tuple[weakref.ref[Tensor], int, Tensor]] = []


@implements("silu_and_mul@1", name="asks_the_host", graph_safe=True)
def asks_the_host(x: Tensor) -> Tensor:
    """Takes another way for zeros: the branch of the capture would be that of every replay."""
    if x.numel() and not bool(x.any()):
        return x.new_zeros(*x.shape[:-1], x.shape[-1] // 2)
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("silu_and_mul@1", name="writes_behind_torch", graph_safe=True)
def writes_behind_torch(x: Tensor) -> Tensor:
    """Writes its result through an address: a list of calls has only the allocation."""
    right: Tensor = silu_and_mul.reference(x)
    if type(right) is not Tensor or right.device.type != "cpu":
        return right
    right = right.contiguous()
    result = torch.empty(right.shape, dtype=right.dtype)
    ctypes.memmove(result.data_ptr(), right.data_ptr(), right.nbytes)
    return result


@implements("silu_and_mul@1", name="keeps_the_last_result", graph_safe=True)
def keeps_the_last_result(x: Tensor) -> Tensor:
    """Computes again only where torch says that the input was written: not in a replay."""
    if type(x) is not Tensor:
        y: Tensor = silu_and_mul.reference(x)
        return y
    version = x._version  # noqa: SLF001  # what tells a write
    if not (_kept and _kept[0][0]() is x and _kept[0][1] == version):
        _kept[:] = [(weakref.ref(x), version, silu_and_mul.reference(x))]
    return _kept[0][2].clone()


VARIANTS = variants("graph", (asks_the_host, writes_behind_torch, keeps_the_last_result))
