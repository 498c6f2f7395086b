"""AMD's own default constants of the attention kernels; others take the author's.

Nothing here was measured: tiles are chosen so that nothing is spilled and matrix instructions are
used, on the architectures and by the versions of Triton that the gates name. ``waves_per_eu`` says
for how many wavefronts of a SIMD the compiler shares out registers (1 leaves room for one alone);
``matrix_instr_nonkdim`` asks for matrix instructions of 16 rows, which leave accumulators in fewer
registers than those of 32.

A product of float32 has no matrix instruction on RDNA: each thread holds whole rows, so that tiles
are small and threads many. RDNA3 keeps operands of matrix instructions twice, which heads of more
than 128 features pay with spills; the gates say how many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from trivet.kernels.triton.tuned import Buckets, Config, Key
from trivet_triton.hardware import Own

_TILE_MASK: Final = 2
"""In a key of dense attention: each query has its own entries of the mask."""
_STAGED: Final = 64 << 10
"""Bytes of keys and values that a config worth measuring has in shared memory, at most."""


class Tile(NamedTuple):
    """A tile of the kernels over queries and keys."""

    queries: int
    keys: int
    warps: int


@dataclass(frozen=True)
class Tiles:
    """What one family of architectures takes, by kind of call.

    Kinds are ``half`` and ``half_wide`` for 16-bit types, ``float`` and ``float_wide`` for
    float32; wide is a head of more than 128 features.

    Args:
        decode: keys of a tile and warps, by kind.
        stages: of decoding.
        few: tiles for few queries; 16-bit types alone.
        some: tiles for up to 256 tokens.
        many: tiles for more.
        masked: tiles for all of these where a mask has entries of its own for each query.
        warps: numbers of warps that are worth measuring.
        options: of the compiler, for every kernel with products.
    """

    decode: Mapping[str, tuple[int, int]]
    stages: int
    few: Mapping[str, Tile]
    some: Mapping[str, Tile]
    many: Mapping[str, Tile]
    masked: Mapping[str, Tile]
    warps: tuple[int, ...]
    options: Mapping[str, int] = field(default_factory=dict)

    def decoding(self, key: Key) -> Buckets:
        """Short tiles of keys, so that several programs of a unit are in flight."""
        keys, warps = self.decode[kind(key)]
        return ((inf, self._decoding(keys, warps, self.stages, 4)),)

    def decoding_space(self, key: Key, rows: int) -> Iterator[Config]:
        """Configs worth measuring."""
        del rows
        for keys in (16, 32, 64):
            for warps in self.warps:
                for stages in (1, 2):
                    if 2 * keys * _row_bytes(key) * stages <= _STAGED:
                        for resident in (2, 4, 8):
                            yield self._decoding(keys, warps, stages, resident)

    def prefill(self, key: Key) -> Buckets:
        """Larger tiles for many tokens."""
        at = kind(key)
        return self._buckets((256, self.some[at]), (inf, self.many[at]))

    def dense(self, key: Key) -> Buckets:
        """As prefill, with small tiles for few queries."""
        at = kind(key)
        if key["mask"] == _TILE_MASK:
            return self._buckets((16, self.few[at]), (inf, self.masked[at]))
        return self._buckets((16, self.few[at]), (256, self.some[at]), (inf, self.many[at]))

    def fixed(self, key: Key) -> Buckets:
        """One size for every batch."""
        return self._buckets((inf, self.some[kind(key)]))

    def space(self, key: Key, rows: int) -> Iterator[Config]:
        """Configs of the kernels over tiles that are worth measuring."""
        del rows
        for queries in (16, 32, 64, 128):
            for keys in (16, 32, 64):
                for warps in self.warps:
                    for stages in (1, 2):
                        if 2 * keys * _row_bytes(key) * stages <= _STAGED:
                            yield self._tile(Tile(queries, keys, warps), stages)

    def table(self) -> dict[str, Own]:
        """By the names of tables."""
        return {
            "paged_attention_decode": Own(self.decoding, self.decoding_space),
            "paged_attention_prefill": Own(self.prefill, self.space),
            "paged_attention_invariant": Own(self.fixed),
            "attention": Own(self.dense, self.space),
            "limited_candidate": Own(_few_tokens),
        }

    def _decoding(self, keys: int, warps: int, stages: int, resident: int) -> dict[str, Any]:
        made = {"BLOCK_N": keys, "LEAST": 128, "RESIDENT": resident}
        return {**made, "num_warps": warps, "num_stages": stages, **self.options}

    def _tile(self, tile: Tile, stages: int = 1) -> dict[str, Any]:
        made = {"BLOCK_M": tile.queries, "BLOCK_N": tile.keys}
        return {**made, "num_warps": tile.warps, "num_stages": stages, **self.options}

    def _buckets(self, *tiles: tuple[float, Tile]) -> Buckets:
        """One bucket for neighbours that are equal."""
        kept = [one for one, after in zip(tiles, (*tiles[1:], None), strict=True)
                if after is None or after[1] != one[1]]  # fmt: skip
        return tuple((most, self._tile(tile)) for most, tile in kept)


def _few_tokens(key: Key) -> Buckets:
    """Four to eight tokens of a thread: CDNA has 106 scalar registers for their comparisons.

    RDNA would spill with more, since 16 wavefronts share out its vector registers.
    """
    del key
    return ((inf, {"BLOCK": 4096, "PIECE": 512, "EACH": 256}),)


def kind(key: Key) -> str:
    """The kind of a call, by the key of a table."""
    name = "float" if key["dtype"] == "float32" else "half"
    return f"{name}_wide" if int(key["head_dim"]) > 128 else name


def _row_bytes(key: Key) -> int:
    width = 1 << (int(key["head_dim"]) - 1).bit_length()
    return width * (4 if key["dtype"] == "float32" else 2)


def _each(half: Tile, half_wide: Tile, floats: Tile, float_wide: Tile) -> dict[str, Tile]:
    return {"half": half, "half_wide": half_wide, "float": floats, "float_wide": float_wide}


CDNA: Final = Tiles(
    decode={"half": (32, 4), "half_wide": (16, 4), "float": (16, 4), "float_wide": (16, 4)},
    stages=2,
    few=_each(Tile(16, 32, 4), Tile(16, 32, 4), Tile(16, 16, 4), Tile(16, 16, 8)),
    some=_each(Tile(64, 32, 4), Tile(32, 32, 4), Tile(32, 16, 4), Tile(16, 16, 8)),
    many=_each(Tile(128, 32, 8), Tile(32, 32, 4), Tile(32, 16, 4), Tile(16, 16, 8)),
    masked=_each(Tile(64, 32, 8), Tile(32, 32, 4), Tile(32, 16, 4), Tile(16, 16, 8)),
    warps=(1, 2, 4, 8),
    options={"matrix_instr_nonkdim": 16, "waves_per_eu": 2},
)
"""512 registers of a thread with the accumulators, 64 lanes."""

RDNA3: Final = Tiles(
    decode={"half": (16, 4), "half_wide": (16, 8), "float": (16, 16), "float_wide": (16, 16)},
    stages=1,
    few=_each(Tile(16, 16, 4), Tile(16, 16, 8), Tile(16, 16, 16), Tile(16, 16, 16)),
    some=_each(Tile(64, 16, 8), Tile(16, 16, 8), Tile(16, 16, 16), Tile(16, 16, 16)),
    many=_each(Tile(64, 16, 8), Tile(16, 16, 8), Tile(16, 16, 16), Tile(16, 16, 16)),
    masked=_each(Tile(16, 16, 4), Tile(16, 16, 8), Tile(16, 16, 16), Tile(16, 16, 16)),
    warps=(2, 4, 8, 16),
)
"""256 registers of a thread, 32 lanes, operands of matrix instructions twice."""

RDNA4: Final = Tiles(
    decode={"half": (16, 4), "half_wide": (16, 4), "float": (16, 16), "float_wide": (16, 16)},
    stages=1,
    few=_each(Tile(16, 16, 4), Tile(16, 16, 4), Tile(16, 16, 16), Tile(16, 16, 16)),
    some=_each(Tile(64, 16, 4), Tile(16, 16, 4), Tile(16, 16, 16), Tile(16, 16, 16)),
    many=_each(Tile(128, 16, 8), Tile(32, 16, 4), Tile(16, 16, 16), Tile(16, 16, 16)),
    masked=_each(Tile(64, 16, 8), Tile(32, 16, 4), Tile(16, 16, 16), Tile(16, 16, 16)),
    warps=(2, 4, 8, 16),
)
"""256 registers of a thread, 32 lanes, operands of matrix instructions once."""

TALL: Final = {"num_warps": 8}
"""Least options of tiles of 64 rows in decoding on RDNA, for their sums' registers."""

OF_FAMILY: Final = {"CDNA2": CDNA, "CDNA3": CDNA, "CDNA4": CDNA, "RDNA3": RDNA3, "RDNA4": RDNA4}
