"""What a device says of itself: one typed vocabulary; unknown is None, never 0."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

import torch

from trivet.errors import DeclarationError


class Execution(StrEnum):
    """How something was executed: the same five words in every report.

    hardware: on the thing itself.
    emulated: on something that stands in for it, such as another processor or host memory.
    interpreted: kernels ran in an interpreter of their language.
    compile_only: it was compiled, nothing of it ran.
    not_run: neither.
    """

    HARDWARE = "hardware"
    EMULATED = "emulated"
    INTERPRETED = "interpreted"
    COMPILE_ONLY = "compile_only"
    NOT_RUN = "not_run"


@dataclass(frozen=True)
class DeviceInfo:
    """Facts of one device.

    Args:
        kind: device kind, the name that ``trivet.device()`` takes (``"cpu"``).
        index: which of several devices of that kind.
        torch_type: the type of ``torch.device`` that its tensors live on.
        name: what the maker calls it.
        arch: architecture names, most specific first (``"x86-64-v4"``, ``"x86-64-v3"``).
        features: named abilities that an implementation may require (``"avx2"``).
        dtypes: names of dtypes with native arithmetic.
        cores: parallel units (cores, compute units), or None.
        subgroup_width: lanes that run in step (SIMD lanes of fp32, warp), or None.
        shared_bytes: on-chip memory that one group of threads shares, or None.
        cache_bytes: bytes of each cache level by name (``{"l2": 2097152}``).
        memory_bytes: bytes of device memory, or None.
        execution: how code runs there; one of ``Execution``.
        notes: sentences for ``trivet doctor`` (why a feature is missing).

    Raises:
        DeclarationError: kind, index or torch_type cannot be those of a device.
    """

    kind: str
    index: int = 0
    torch_type: str = "cpu"
    name: str = ""
    arch: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    cores: int | None = None
    subgroup_width: int | None = None
    shared_bytes: int | None = None
    cache_bytes: dict[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    execution: Execution = Execution.HARDWARE
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what ``torch.device`` would refuse later, or would silently change."""
        who = f"DeviceInfo({self.kind!r})"
        if not _is_name(self.kind):
            raise DeclarationError(f"{who}: the kind is no name", fix="the name of the plugin")
        if type(self.index) is not int or self.index < 0:
            raise DeclarationError(f"{who}: index {self.index!r} is none", fix="0, 1, 2, ...")
        try:
            index = torch.device(self.torch_type, self.index).index
        except (RuntimeError, TypeError) as error:
            msg = f"{who}: torch_type {self.torch_type!r} is no type of torch.device"
            fix = 'the type alone, such as "cpu"; index= is apart'
            raise DeclarationError(msg, fix=f"{fix}: {str(error).splitlines()[0]}") from None
        if index != self.index and self.torch_type != "cpu":  # torch keeps 8 bits of it
            msg = f"{who}: torch.device makes {index} of index {self.index}"
            raise DeclarationError(msg, fix="0, 1, 2, ...")

    @property
    def torch(self) -> torch.device:
        """The ``torch.device`` of its tensors; the CPU has no index."""
        if self.torch_type == "cpu":
            return torch.device("cpu")
        return torch.device(self.torch_type, self.index)

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values with sorted lists in place of sets."""
        plain = asdict(self)
        return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in plain.items()}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()
