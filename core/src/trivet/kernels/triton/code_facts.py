"""What a compiled variant is made of, as its back end's assembly says; nothing ran for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class CodeFacts:
    """Facts of the code of one variant on one architecture; unknown is None.

    Args:
        threads: of one program.
        shared: bytes of memory that the threads of one program share.
        registers: of one thread.
        stack: bytes of one thread in memory; values that found no register lie there.
        occupancy: share of the threads of a multiprocessor that can be there at once, 0 to 1.
        loads: bytes that one thread reads by an instruction -> how often one stands in the code;
            of global memory, also without a stay in registers.
        stores: the same for what it writes.
        instructions: abilities that are used, by the vendor's word (``"mma"``), and how often.
        code: bytes of machine code.
        counts: what else the back end counts, by the vendor's word (``"spills"``); a word that is
            not there is unknown.
    """

    threads: int
    shared: int
    registers: int | None = None
    stack: int | None = None
    occupancy: float | None = None
    loads: Mapping[int, int] = field(default_factory=dict)
    stores: Mapping[int, int] = field(default_factory=dict)
    instructions: Mapping[str, int] = field(default_factory=dict)
    code: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {n: dict(v) if isinstance(v, Mapping) else v for n, v in vars(self).items()}
        for name in ("loads", "stores"):
            plain[name] = {str(k): v for k, v in sorted(plain[name].items())}
        return plain


ReadCode: TypeAlias = Callable[[Any, Any], CodeFacts]
"""``read(compiled, target)``: a vendor's reader of Triton's ``CompiledKernel`` for a target."""
