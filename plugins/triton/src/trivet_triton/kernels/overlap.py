"""Lets a kernel start while the one before it on its stream ends, where the vendor says it can.

A launch may be marked there so that its programs are placed as soon as those of the kernel before
have all been placed and let it; they wait until that kernel has ended and its memory can be seen.
What is saved is the time between two kernels, about a microsecond. It holds for any kernel before,
and for any after, which need not know of it; in captured graphs too.
(CUDA programming guide, "Programmatic Dependent Launch and Synchronization".)
"""

# ruff: noqa: ANN201  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from trivet.kernels.triton import Settled
from trivet_triton.hardware import vendor_of


@triton.jit
def after_previous(OVERLAP: tl.constexpr):
    """Waits for the kernel before, then lets the next one be placed.

    It is the first statement of every kernel, in every program: what is read before it may be old,
    and a grid that ends without it could be taken for proof that the kernel before it has ended.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


def overlap(target: Any) -> Settled:
    """``settle`` of a kernel: the constant ``OVERLAP``, and launches that are marked."""
    options = None if target is None else vendor_of(target).overlapping(target)
    if options is None:
        return Settled({"OVERLAP": False})
    return Settled({"OVERLAP": True}, options)
