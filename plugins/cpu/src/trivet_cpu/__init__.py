"""The CPU vendor package of trivet: vectorised C++ kernels, oneDNN and torch as providers.

``trivet_cpu.plugin`` is what the entry point names. ``trivet_cpu.isa`` says which instruction set
level the kernels use. Without a compiled library the package works on torch and core's references.

A new implementation is a function in a file of ``compiled/``, over the C++ kernels, or of
``on_torch/``; no other file lists it.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
