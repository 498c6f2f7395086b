"""The ROCm vendor package of trivet: Triton kernels, and torch's own, for AMD GPUs.

Compile-verified and interpreted; not run on AMD hardware.

``trivet_rocm.plugin`` is what the entry point names. ``trivet_rocm.discovery`` says which GPUs
there are, or why none can be used, without starting HIP. The kernels in Triton are those of
``trivet_triton``, which every vendor shares; what is AMD's of them (targets, constants, gates, the
reader of its assembly) is here.
"""

from __future__ import annotations

__version__ = "0.1.0"

STATUS = "compile-verified and interpreted; not run on AMD hardware"
"""What may be claimed of this package; it stands in everything that it reports."""

__all__ = ["STATUS", "__version__"]
