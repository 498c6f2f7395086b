"""Rotary variants of real models, as tables for the one kernel contract.

``rotary_embedding`` takes cos and sin rows per token; what makes one model differ from another is
only which angles stand in them. A ``Rope`` says it, ``from_config`` reads it from the
configuration of a Hugging Face checkpoint, and ``tables`` computes the rows.

Everything is computed in float64 and rounded once to float32, so an entry is within one unit in
the last place of the formula at any position up to 2**26. Code that computes angles in float32
(transformers) is further away: an angle near 2**17 has steps of 2**-7 there, and entries differ by
up to about 0.01 at that position, by less than 1e-4 below position 1000.
"""

from __future__ import annotations

from trivet.rope.config import from_config
from trivet.rope.kinds import Dynamic, Linear, Llama3, LongRope, Yarn
from trivet.rope.plain import Rope

__all__ = ["Dynamic", "Linear", "Llama3", "LongRope", "Rope", "Yarn", "from_config"]
