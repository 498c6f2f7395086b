"""``trivet-rocm verify-on-hardware``: what nobody has run yet, on a machine with an AMD GPU.

One JSON file comes of it, to be sent back: answers of the machine, what doctor says, the kit at
level L2, the code that this Triton makes, each kernel beside torch's and AITER's. Each step is a
process of its own; one that fails or hangs costs only itself.
"""

from __future__ import annotations

from trivet_rocm.verify.command import main

__all__ = ["main"]
