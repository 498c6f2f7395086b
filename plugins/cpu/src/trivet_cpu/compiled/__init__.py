"""Implementations over the C++ kernels, used where those were built.

Every module here is found by itself. It asks ``trivet_cpu.kernel_library.op`` for its kernels and
lists their files as ``sources``.
"""

from __future__ import annotations

from typing import Final

PROMISES: Final = frozenset({"graph_safe", "deterministic", "batch_invariant"})
"""What each implementation here declares, since kernels are operators of torch that keep
nothing and go row by row in one order; a module whose kernels do not says ``PROMISES`` itself."""
