"""Rows of tensors: where they lie, and how a program reads and writes tiles of them.

A row is cut into pieces of ``BLOCK`` elements, so that its length need be no power of two: 5120 is
five pieces of 1024. Pieces of a tile of ``[ROWS, BLOCK]`` stay in registers, as a tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.contracts.terms import has_rows
from trivet.errors import DomainError

TABLES: Final = Path(__file__).parent.parent / "tables"
"""Measured configs, one file an architecture."""

VECTOR: Final = 8
"""Elements a thread takes of a piece: 16 bytes of the 16-bit types, two times 16 of float32."""

FLOATS: Final = ("float32", "float16", "bfloat16")
"""The dtypes of rows and weights."""


def named(dtype: torch.dtype) -> str:
    """How keys of tables spell a dtype."""
    return str(dtype).removeprefix("torch.")


def stride_of(x: Tensor, inner: int = 1) -> int:
    """Elements from one row to the next, where the dims before the last ``inner`` collapse."""
    strides = x.stride()
    lead = len(strides) - inner
    if lead == 1:
        return strides[0]
    sizes = x.shape
    for i in range(lead - 1, -1, -1):
        if sizes[i] != 1:
            return strides[i]
    return sizes[lead:].numel()  # a single row: no step is taken


def rows_of(out: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors of ``out`` themselves: no term of a domain speaks of a list.

    Raises:
        DomainError: one has no dense rows.
    """
    for i, t in enumerate(out):
        if not t.is_contiguous() and not has_rows(t.shape, t.stride(), 1, 1):
            msg = f"out[{i}] has no dense rows: shape {list(t.shape)}, strides {list(t.stride())}"
            raise DomainError(msg, fix="give contiguous tensors, or rows of a wider one")
    return out


def pieces(width: int, warps: int) -> tuple[int, int]:
    """The piece that ``warps`` read with one vector a thread, and how many cover a row."""
    block = min(triton.next_power_of_2(width), 32 * VECTOR * warps)
    return block, triton.cdiv(width, block)


def promises(pointers: str, strides: str, *, aligned: bool) -> dict[str, int]:
    """What the compiler may rely on: 16 bytes for tensors, a vector for strides; or nothing."""
    if not aligned:
        return {}
    return {**dict.fromkeys(pointers.split(), 16), **dict.fromkeys(strides.split(), VECTOR)}


def device(index: int) -> torch.device:
    """The device with the index of ``Tensor.get_device``; -1 is the CPU, which interprets."""
    return torch.device("cpu") if index < 0 else torch.device("cuda", index)


def arch(index: int) -> str:
    """The architecture of a device as tables name it."""
    if index < 0:
        return "interpreted"
    return "sm{}{}".format(*torch.cuda.get_device_capability(index))


def processors(index: int) -> int:
    """How many multiprocessors a device has; two where programs are interpreted."""
    return 2 if index < 0 else torch.cuda.get_device_properties(index).multi_processor_count


@triton.jit
def load_row(
    at: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
    POLICY: tl.constexpr,
) -> Any:
    """The pieces of rows; ``at`` points to their first elements, ``ALL`` says that all exist."""
    found = ()  # it grows by sums of tuples, since Triton unpacks none
    for i in tl.static_range(0, WIDTH, BLOCK):
        col = i + tl.arange(0, BLOCK)[None, :]
        if i + BLOCK > WIDTH:
            inside = (row < rows) & (col < WIDTH)
            piece = tl.load(at + col, mask=inside, other=0.0, eviction_policy=POLICY)
        elif ALL:
            piece = tl.load(at + col, eviction_policy=POLICY)
        else:
            piece = tl.load(at + col, mask=row < rows, other=0.0, eviction_policy=POLICY)
        found = found + (piece,)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def store_piece(
    at: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    piece: tl.tensor,
    i: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
) -> None:
    """Writes the piece that starts at column ``i`` of rows."""
    col = i + tl.arange(0, BLOCK)[None, :]
    if i + BLOCK > WIDTH:
        tl.store(at + col, piece, mask=(row < rows) & (col < WIDTH))
    elif ALL:
        tl.store(at + col, piece)
    else:
        tl.store(at + col, piece, mask=row < rows)
