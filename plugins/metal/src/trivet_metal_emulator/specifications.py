"""Arguments of a kernel as words of a command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trivet_metal_emulator.errors import LaunchError

__all__ = ["EXAMPLES", "argument", "numbers", "sizes"]

EXAMPLES = "x.npy, randn:4x1024:f16, nan:4x1024:f32, zeros:8:i32, arange:64, int32:1024, float:1e-6"
_DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_CASTS = {"int32", "int16", "int8", "uint8", "fp16", "bf16"}


def sizes(text: str) -> tuple[int, ...]:
    """`4x1024` as numbers.

    Raises:
        LaunchError: it is something else.
    """
    try:
        return tuple(int(word) for word in text.replace(",", "x").split("x"))
    except ValueError as error:
        raise LaunchError(f"{text!r} is no size", fix="for example 4x1024") from error


def numbers(text: str) -> int | float | list[int] | list[float]:
    """One number, or several with commas between.

    Raises:
        LaunchError: it is something else.
    """
    words = text.split(",")
    try:
        integers = [int(word) for word in words]
    except ValueError:
        pass
    else:
        return integers if len(integers) > 1 else integers[0]
    try:
        reals = [float(word) for word in words]
    except ValueError as error:
        raise LaunchError(f"{text!r} is no number") from error
    return reals if len(reals) > 1 else reals[0]


def argument(
    text: str, generator: torch.Generator
) -> tuple[Tensor | int | float | list[int] | list[float], str | None]:
    """A tensor or numbers, and the cast for numbers.

    Raises:
        LaunchError: the words say nothing known.
    """
    if text.endswith(".npy"):
        return _load(Path(text)), None
    kind, _, rest = text.partition(":")
    if kind in {"int", "float"}:
        value = numbers(rest)
        return (float(value) if kind == "float" and isinstance(value, int) else value), None
    if kind in _CASTS:
        return numbers(rest), kind
    shape, _, word = rest.partition(":")
    dtype = _DTYPES.get(word or "f32")
    try:
        made = None if dtype is None or not shape else _make(kind, sizes(shape), dtype, generator)
    except (RuntimeError, TypeError, OverflowError) as error:  # torch's: no such size, no memory
        raise LaunchError(f"argument {text!r} cannot be made: {error}") from error
    if made is None:
        raise LaunchError(
            f"argument {text!r} is not understood",
            fix=f"for example {EXAMPLES}; dtypes: {', '.join(_DTYPES)}",
        )
    return made, None


def _make(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Tensor | None:
    if kind == "randn":
        return torch.randn(shape, generator=generator).to(dtype)
    if kind in {"zeros", "ones"}:
        return torch.full(shape, int(kind == "ones"), dtype=dtype)
    if kind == "nan":  # for results: what was not written is seen
        whole = 1 if dtype is torch.bool else None
        value = float("nan") if dtype.is_floating_point else whole or torch.iinfo(dtype).max
        return torch.full(shape, value, dtype=dtype)
    if kind == "arange":
        count = 1
        for size in shape:
            count *= size
        return torch.arange(count).reshape(shape).to(dtype)
    return None


def _load(path: Path) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (OSError, ValueError, TypeError) as error:
        raise LaunchError(f"{path} cannot be loaded: {error}") from error
