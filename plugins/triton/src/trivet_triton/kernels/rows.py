"""How a program reads and writes tiles of rows, and what it may rely on.

A row is cut into pieces of ``BLOCK`` elements, so that its length need be no power of two: 5120 is
five pieces of 1024. Pieces of a tile of ``[ROWS, BLOCK]`` stay in registers, as a tuple.
"""

from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl

VECTOR: Final = 8
"""Elements a thread takes of a piece: 16 bytes of the 16-bit types, two times 16 of float32."""


def pieces(width: int, warps: int) -> tuple[int, int]:
    """The piece that ``warps`` read with one vector a thread, and how many cover a row."""
    block = min(triton.next_power_of_2(width), 32 * VECTOR * warps)
    return block, triton.cdiv(width, block)


def promises(pointers: str, strides: str, *, aligned: bool) -> dict[str, int]:
    """What the compiler may rely on: 16 bytes for tensors, a vector for strides; or nothing."""
    if not aligned:
        return {}
    return {**dict.fromkeys(pointers.split(), 16), **dict.fromkeys(strides.split(), VECTOR)}


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
