"""Numbers that no order of reduction can round, and what each rank must have of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.collectives import REDUCING

DTYPES: Final = (
    "float32", "bfloat16", "float16", "float64", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool", "float8_e4m3fn", "float8_e5m2", "complex64",
    "complex128",
)  # fmt: skip
"""Every dtype that is tried, the usual ones first."""

_ABOVE: Final = MappingProxyType(
    {
        "float8_e4m3fn": 4, "float8_e5m2": 2, "bfloat16": 31, "float16": 1 << 8, "int8": 15,
        "uint8": 31, "int16": 1 << 12, "uint16": 1 << 12, "float32": 1 << 20, "int32": 1 << 27,
        "uint32": 1 << 27, "complex64": 1 << 20, "bool": 2,
    }
)  # fmt: skip
"""The numbers of a sum stay below this, so that the sum of eight ranks is exact."""

_TWO: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip

ROOTED: Final = ("reduce", "broadcast", "gather", "scatter")
SHARED_OUT: Final = ("reduce_scatter", "scatter", "all_to_all")
"""Operations whose input has a part for each rank."""

FUSED: Final = "all_reduce_add_rms_norm"
EPS: Final = 1e-5


@dataclass(frozen=True)
class Call:
    """One call of an operation, the same on every rank.

    Args:
        operation: which.
        dtype: of what is moved or reduced.
        count: elements of a rank's part.
        reduction: of a reduction; empty otherwise.
        root: of an operation that has one.
    """

    operation: str
    dtype: torch.dtype
    count: int
    reduction: str = ""
    root: int = 0

    def __str__(self) -> str:
        """It in words."""
        name = str(self.dtype).removeprefix("torch.")
        root = f", root {self.root}" if self.operation in ROOTED else ""
        words = f" {self.reduction}" if self.reduction else ""
        return f"{self.operation}{words} of {self.count} x {name}{root}"

    def nbytes(self, size: int) -> int:
        """The fact of that name, of which domains are made."""
        shared = self.operation in SHARED_OUT and self.operation != "scatter"
        return self.count * self.dtype.itemsize * (size if shared else 1)


def whole(rank: int, count: int, name: str) -> Tensor:
    """Whole numbers that depend on the rank and on the index."""
    most = _ABOVE.get(name, 1 << 49)
    return (torch.arange(count) * 7919 + rank * 1_000_003 + 1) % most


def numbers(rank: int, count: int, dtype: torch.dtype, reduction: str = "") -> Tensor:
    """What a rank brings to a call; without a reduction any bytes, NaN among them."""
    name = str(dtype).removeprefix("torch.")
    if not reduction:
        i = torch.arange(count * dtype.itemsize)
        raw = (i * 7 + torch.div(i, 251, rounding_mode="floor") + rank * 113 + 1) % 251
        return (raw % 2 if dtype == torch.bool else raw).to(torch.uint8).view(dtype)
    values = whole(rank, count, name)
    if reduction == "prod":
        values = values % 2 + 1
    signed = dtype.is_signed and not dtype.is_complex
    if reduction in {"max", "min"} and signed:
        values = values * (1 - 2 * (values % 2))
    if dtype.is_complex:
        return torch.complex(values.double(), (values // 3).double()).to(dtype)
    return values.to(dtype)


def reduced(size: int, count: int, dtype: torch.dtype, reduction: str) -> Tensor:
    """The reduction of what all ranks bring, exact."""
    exact = torch.complex128 if dtype.is_complex else torch.int64
    rows = [numbers(r, count, dtype, reduction).to(exact) for r in range(size)]
    return reduce(_TWO[reduction], rows).to(dtype)


def given(call: Call, rank: int, size: int) -> Tensor:
    """The input of a rank."""
    if call.operation == "all_to_all_v":
        return numbers(rank, sum(splits(call.count, size)[rank]), call.dtype)
    parts = size if call.operation in SHARED_OUT else 1
    return numbers(rank, call.count * parts, call.dtype, call.reduction)


def splits(count: int, size: int) -> list[list[int]]:
    """How many elements each rank sends to each, some none at all."""
    return [[count * ((a + 2 * b) % 3) // 2 for b in range(size)] for a in range(size)]


def wanted(call: Call, rank: int, size: int) -> Tensor:
    """The result of a rank."""
    n, dtype, operation = call.count, call.dtype, call.operation
    parts = size if operation in SHARED_OUT else 1
    nothing = torch.empty(0, dtype=dtype)
    if operation in REDUCING:
        total = reduced(size, n * parts, dtype, call.reduction)
        if operation == "reduce_scatter":
            return total[rank * n : (rank + 1) * n]
        return nothing if operation == "reduce" and rank != call.root else total
    everybody = [given(call, r, size) for r in range(size)]
    if operation in {"all_gather", "gather"}:
        return nothing if operation == "gather" and rank != call.root else torch.cat(everybody)
    if operation == "broadcast":
        return everybody[call.root]
    if operation == "scatter":
        return everybody[call.root][rank * n : (rank + 1) * n]
    if operation == "all_to_all":
        return torch.cat([x[rank * n : (rank + 1) * n] for x in everybody])
    rows = splits(n, size)
    return torch.cat([torch.split(everybody[r], rows[r])[rank] for r in range(size)])


def same(got: Tensor, expected: Tensor) -> str:
    """How two tensors differ in shape or bits; empty where they do not."""
    got = got.detach().cpu()
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype} {list(got.shape)}, not {expected.dtype} {list(expected.shape)}"
    dense = torch.contiguous_format
    a, b = (t.reshape(-1).clone(memory_format=dense).view(torch.uint8) for t in (got, expected))
    if torch.equal(a, b):
        return ""
    width = expected.dtype.itemsize
    wrong = (a != b).nonzero()[:, 0].div(width, rounding_mode="floor").tolist()
    at = int(wrong[0])
    some = f"{len(set(wrong))} of {expected.numel()} elements differ"
    return f"{some}, the first at {at}: {got.view(-1)[at]}, not {expected.view(-1)[at]}"


def start(group: Any, call: Call, x: Tensor) -> Any:
    """Starts a call on a group; what it returns has ``result``."""
    at = getattr(group.start, call.operation)
    if call.operation in REDUCING:
        args: Sequence[Any] = (
            (call.root, call.reduction) if call.operation == "reduce" else (call.reduction,)
        )
        return at(x, *args)
    if call.operation in ROOTED:
        return at(x, call.root)
    return at(x)
