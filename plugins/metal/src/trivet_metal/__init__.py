"""The Metal vendor package of trivet: kernels for the GPUs of Apple silicon.

``trivet_metal.plugin`` is what the entry point names; ``trivet_metal.emulated`` offers the same
kernels on CPU tensors, run by ``trivet_metal_emulator``, where that is asked for.

A new implementation is a function in a file of ``operators/``, and a kernel in a file of
``kernels/``; no other file lists them.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
