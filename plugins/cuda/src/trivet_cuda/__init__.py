"""The CUDA vendor package of trivet: Triton kernels, and torch's own, for NVIDIA GPUs.

``trivet_cuda.plugin`` is what the entry point names. ``trivet_cuda.discovery`` says which GPUs
there are, or why none can be used, without starting CUDA. Importing either imports neither Triton
nor NVML.

The kernels in Triton are those of ``trivet_triton``, which every vendor shares; what is NVIDIA's of
them (targets, measured constants, gates, launches that overlap) is here, with other projects'
kernels, memory and topology.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
