"""The CUDA vendor package of trivet: Triton kernels, and torch's own, for NVIDIA GPUs.

``trivet_cuda.plugin`` is what the entry point names. ``trivet_cuda.discovery`` says which GPUs
there are, or why none can be used, without starting CUDA. Importing either imports neither Triton
nor NVML.

A new implementation is a function in a file of ``triton_kernels/``, or of ``on_torch/``; no other
file lists it.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
