"""The CPU vendor package of trivet: vectorised C++ kernels, oneDNN and torch as providers.

``trivet_cpu.plugin`` is what the entry point names. ``trivet_cpu.isa`` says which instruction set
level the kernels use. Without a compiled library the package works on core's references.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
