"""What a thread does while it is captured: what no graph can replay is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trivet.capture.addresses import Addresses
from trivet.capture.emulated import computed, decomposed
from trivet.capture.tensors import Alive, tensors
from trivet.errors import CaptureUnsafe

FIX: Final = (
    "compute it on the device, call it through trivet.capture.boundary(function, ...), or take an "
    "implementation that declares graph_safe"
)
_ON_DATA: Final = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_MASKS: Final = {torch.bool, torch.uint8}
_READS: Final[dict[Callable[..., Any], str]] = {
    Tensor.tolist: "tolist",
    Tensor.numpy: "numpy",
    Tensor.cpu: "cpu",
    Tensor.__array__: "__array__",
}
"""Methods that hand numbers to the host; on the CPU torch's dispatcher sees nothing of them."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses calls that need the host, and notes tensors that the captured work found.

    Args:
        addresses: is told them.
    """

    def __init__(self, addresses: Addresses) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.addresses = addresses
        self.site = ""
        self.calls = 0
        self._made: Alive[bool] = Alive()

    def made(self, tree: Any) -> None:
        """Notes tensors of the captured work itself, and static buffers."""
        for tensor in tensors(tree):
            self._made.put(tensor, True)

    def is_made(self, tensor: Tensor) -> bool:
        """Whether the captured work made a tensor, as far as was seen."""
        return self._made.get(tensor) is not None

    def found(self, tree: Any, name: str) -> None:
        """Notes the tensors of an argument that existed before; several have numbers."""
        several = tensors(tree)
        for i, tensor in enumerate(several):
            if not self.is_made(tensor):
                self.addresses.note(tensor, f"{name}[{i}]" if tree is not tensor else name)

    def refuse(self, what: str) -> CaptureUnsafe:
        """The error for something that a site, or the step itself, does."""
        operator = self.site.partition(" ")[0]
        return CaptureUnsafe(f"{self.site or 'the step'} {what}", operator=operator, fix=FIX)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Judges one call and makes it."""
        del types
        kwargs = kwargs or {}
        if (parts := decomposed(self, func, args, kwargs)) is not NotImplemented:
            return parts
        if problem := _problem(func, args):
            raise self.refuse(f"{problem} ({func})")
        self.calls += 1
        for i, value in enumerate([*args, *kwargs.values()]):
            self.found(value, f"argument {i} of {func}")
        if torch.Tag.inplace_view in func.tags and not self.is_made(args[0]):
            raise self.refuse(f"changes the shape of a tensor that existed before ({func})")
        result = func(*args, **kwargs)
        if len({t.device.type for t in tensors([args, kwargs, result]) if t.dim()}) > 1:
            raise self.refuse(f"moves numbers from one device to another ({func})")
        given = {id(t) for t in tensors([args, kwargs])}
        self.made([t for t in tensors(result) if id(t) not in given])
        self.made(computed(func, args, kwargs, result))
        return result


def _problem(func: Any, args: Any) -> str:
    """Why a call cannot be replayed without the host; empty where it can."""
    name = func.overloadpacket.__name__
    if name == "lift_fresh":
        return "makes a tensor from numbers of the host"
    if "index" in name and len(args) > 1 and isinstance(args[1], (list, tuple)):
        masked = any(t.dtype in _MASKS for t in tensors(args[1]))
        return "selects by a mask, so that a size depends on numbers" if masked else ""
    if torch.Tag.data_dependent_output in func.tags:
        return "reads a number on the host"
    if _ON_DATA & set(func.tags):
        return "has a result whose size depends on numbers"
    return ""


class HostReads(TorchFunctionMode):
    """Refuses methods that hand a tensor's numbers to the host; for the rest see ``Watch``."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Judges one call and makes it."""
        del types
        if func in _READS:
            raise self._watch.refuse(f"reads numbers on the host (Tensor.{_READS[func]})")
        return func(*args, **(kwargs or {}))
