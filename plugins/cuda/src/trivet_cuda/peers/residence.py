"""Where the tensors of a call lie: a kernel of a peer starts only if all are on a GPU.

Triton launches on whatever address it is given, and so do compiled kernels for the tensors that did
not choose them: a ``meta`` tensor has none, a CPU's means nothing there, and the fault would cost
every later call of the process its context.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from trivet.errors import DomainError

_HERE: Final = nullcontext()


def on_gpu(*tensors: Tensor | None) -> None:
    """Refuses a call with a tensor that is somewhere else.

    Raises:
        DomainError: one is on another kind of device.
    """
    for tensor in tensors:
        if not (tensor is None or tensor.is_cuda):
            refuse(tensor)


def current(first: Tensor, *others: Tensor | None) -> AbstractContextManager[Any]:
    """``on_gpu``, and the GPU of the first tensor as the current one: some launch on that.

    Raises:
        DomainError: one is on another kind of device.
    """
    on_gpu(first, *others)
    if not first.is_cuda or first.get_device() == torch.cuda.current_device():
        return _HERE  # on no GPU at all only where a test stands in for one
    return torch.cuda.device(first.device)


def refuse(tensor: Tensor) -> NoReturn:
    """Says where a tensor is instead.

    Raises:
        DomainError: always.
    """
    msg = f"a tensor of shape {list(tensor.shape)} is on {tensor.device}, not on a GPU"
    raise DomainError(msg, fix="pass tensors of the device that the implementation is for")
