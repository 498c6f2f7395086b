"""Triton kernels of every operator for any vendor whose devices Triton compiles for.

A library: it brings no device and no entry point. A vendor's package says what its devices are
(``hardware``) and offers the functions of ``kernels/``; constants by size come from its tables,
its own defaults where it has some, else from the kernel's author (``constants``).

A new implementation is a function in a file of ``kernels/``; no other file lists it. Importing
this package imports no Triton.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
