"""Arguments of a launch as bytes and sizes, by the rules of torch.mps.compile_shader."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from trivet_metal_emulator.errors import LaunchError

__all__ = ["Argument", "Casts", "Grid", "grid_of", "read_arguments"]

Argument: TypeAlias = "Tensor | float | Sequence[float] | Sequence[Tensor] | None"
Casts: TypeAlias = "str | Mapping[int, str] | None"
Bound: TypeAlias = "Tensor | bytes | list[Tensor] | None"

_CASTS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
_UNSUPPORTED = {torch.float64, torch.complex128}
_MOST_DIMS = 3


@dataclass(frozen=True)
class Grid:
    """Threads in all, and threads of a group, always with three dimensions."""

    threads: tuple[int, int, int]
    group: tuple[int, int, int]

    @property
    def groups(self) -> int:
        """Number of groups; those at the edge may be smaller."""
        x, y, z = (-(-t // g) for t, g in zip(self.threads, self.group, strict=True))
        return x * y * z


def read_arguments(arguments: Sequence[Argument], casts: Casts) -> list[Bound]:
    """Tensors as they are, numbers as their bytes.

    Raises:
        LaunchError: torch would refuse them too, or they are on another device.
    """
    return [_read(i, argument, casts) for i, argument in enumerate(arguments)]


def _read(index: int, argument: Argument, casts: Casts) -> Bound:
    if isinstance(argument, Tensor):
        return _tensor(index, argument)
    if argument is None:  # a buffer that a function constant takes away
        return None
    values = list(argument) if isinstance(argument, Sequence) else [argument]
    if not values:
        raise LaunchError(f"argument {index} is an empty list")
    tensors = [value for value in values if isinstance(value, Tensor)]
    if tensors:
        if len(tensors) != len(values):
            raise LaunchError(f"argument {index} mixes tensors and numbers")
        return [_tensor(index, tensor) for tensor in tensors]
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) != len(values):
        bad = next(value for value in values if not isinstance(value, int | float))
        raise LaunchError(f"argument {index} is a {type(bad).__name__}: tensors, int and float go")
    cast = casts.get(index) if isinstance(casts, Mapping) else casts
    if cast is not None:
        return _cast(index, numbers, cast)
    letter = "f" if isinstance(numbers[0], float) else "q"
    try:
        return struct.pack(f"<{len(numbers)}{letter}", *numbers)
    except (struct.error, OverflowError) as error:
        raise LaunchError(f"argument {index} does not fit its type: {error}") from error


def _tensor(index: int, tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise LaunchError(
            f"argument {index} is on {tensor.device}: the emulator runs on tensors of the CPU"
        )
    if tensor.dtype in _UNSUPPORTED:
        raise LaunchError(f"argument {index} is {tensor.dtype}, which is not supported on MPS")
    if tensor.layout is not torch.strided:
        raise LaunchError(f"argument {index} has the layout {tensor.layout}; only strided goes")
    return tensor


def _cast(index: int, numbers: Sequence[float], cast: str) -> bytes:
    dtype = _CASTS.get(str(cast))
    if dtype is None:
        known = ", ".join(_CASTS)
        raise LaunchError(f"Unsupported cast: {cast} of argument {index}", fix=f"one of {known}")
    try:
        made = torch.tensor(list(numbers)).to(dtype)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise LaunchError(f"argument {index} does not fit {cast}: {error}") from error
    return bytes(made.view(torch.uint8).tolist())


def _sizes(value: object, what: str) -> tuple[int, ...]:
    items = tuple(value) if isinstance(value, Sequence) else (value,)
    sizes = tuple(item for item in items if isinstance(item, int))
    if len(sizes) != len(items) or any(size < 1 for size in sizes):
        raise LaunchError(f"{what} is {value!r}: positive integers, at most three")
    return sizes


def grid_of(threads: object, group_size: object, arguments: Sequence[Argument], most: int) -> Grid:
    """The grid that torch would dispatch: threads in all, and the default group.

    Raises:
        LaunchError: with torch's words, where torch has some.
    """
    if threads is None:
        first = next((a for a in arguments if isinstance(a, Tensor)), None)
        if first is None:
            raise LaunchError("Number of threads is undefined or has wrong dimension")
        threads = first.numel()
    total = _sizes(threads, "threads")
    if len(total) > _MOST_DIMS:
        raise LaunchError("Number of threads is undefined or has wrong dimension")
    if group_size is None:
        group = (min(total[0], most),) if len(total) == 1 else (most,) + (1,) * (len(total) - 1)
    else:
        group = _sizes(group_size, "group_size")
    if len(group) != len(total):
        raise LaunchError("threads and group_size must have the same number of dimensions")
    count = 1
    for size in group:
        count *= size
    if count > most:
        raise LaunchError(
            f"Threadgroup size exceeds {most} limit: {'x'.join(map(str, group))} threads",
            fix="a smaller group_size",
        )
    x, y, z = (*total, 1, 1)[:3]
    a, b, c = (*group, 1, 1)[:3]
    grid = Grid((x, y, z), (a, b, c))
    if max(grid.threads) >= 1 << 32 or grid.groups >= 1 << 31:
        raise LaunchError(f"a grid of {'x'.join(map(str, total))} threads is too large")
    return grid
