"""What a plugin says of its Triton kernels, for the tools that compile and measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch

from trivet.errors import DeclarationError, PluginNotFound
from trivet.kernels.triton.code_facts import ReadCode
from trivet.kernels.triton.kernel import Variant
from trivet.kernels.triton.tuned import Key, Trial, Tuned

Call: TypeAlias = Callable[[], object]


class Stopwatch(Protocol):
    """Times work of one device; what the call returns is dropped."""

    def warm(self, call: Call) -> Sequence[float]:
        """Microseconds of one of many calls in a captured graph, once a sample."""
        ...

    def cold(self, call: Call) -> Sequence[float]:
        """Microseconds of a captured call behind a flush of the caches, once a sample."""
        ...

    def about(self) -> Mapping[str, str]:
        """What decides times besides torch and Triton: the device's name, its driver."""
        ...


ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Numbers of rows that are measured unless somebody says others."""


@dataclass(frozen=True)
class Trials:
    """How one ``Tuned`` is measured, where it does not say so itself.

    Args:
        trial: a function of a module, it runs in other processes.
        keys: typical keys.
        rows: numbers of rows.
    """

    trial: Trial
    keys: tuple[Key, ...]
    rows: tuple[int, ...] = ROWS


class Tunable(NamedTuple):
    """A ``Tuned``, where it stands, and how it is measured."""

    module: str
    tuned: Tuned
    trials: Trials


@dataclass(frozen=True)
class KernelSet:
    """The Triton kernels of a plugin: what its hook ``trivet_kernels`` returns.

    Args:
        modules: names of modules. One that has ``variants(arch)`` gives typical variants as pairs
            of name and ``Variant``; each ``Tuned`` among its globals can be measured.
        targets: architecture -> ``GPUTarget`` of Triton's, what it compiles for.
        read: the reader of compiled code; a function of a module, it runs in other processes.
        gates: the file of its gates.
        arch_of: the architecture of a device, a key of ``targets``.
        stopwatch: what times work of a device.
        trials: name of a ``Tuned`` -> how it is measured, for those that have no ``trial``.
        home: a module that other processes import first: it states what the kernels rely on.
    """

    modules: tuple[str, ...]
    targets: Mapping[str, Any]
    read: ReadCode
    gates: Path
    arch_of: Callable[[torch.device], str]
    stopwatch: Callable[[torch.device], Stopwatch]
    trials: Mapping[str, Trials] = field(default_factory=dict)
    home: str = ""

    def variants(self, arch: str) -> dict[tuple[str, str], Variant]:
        """(module, name) -> variant, of every module that offers some.

        A module may pass on what another offers; it is listed once.

        Raises:
            DeclarationError: a name stands for two different variants.
        """
        found: dict[tuple[str, str], Variant] = {}
        homes: dict[str, tuple[str, Variant]] = {}
        for module in self.modules:
            for name, variant in offered(import_module(module), arch).items():
                home, before = homes.setdefault(name, (module, variant))
                if before != variant:
                    msg = f"the variant {name} of {module} is another one than that of {home}"
                    raise DeclarationError(msg, fix="give one of them another name")
                found[home, name] = variant
        return found

    def tuned(self) -> dict[str, Tunable]:
        """Every ``Tuned`` that can be measured, by its name."""
        found: dict[str, Tunable] = {}
        for module in self.modules:
            for name, one in tuned_of(import_module(module)).items():
                own = Trials(one.trial, one.keys) if one.trial else self.trials.get(name)
                if own and name not in found:
                    found[name] = Tunable(module, one, own)
        return found


def offered(module: ModuleType, arch: str) -> dict[str, Variant]:
    """The variants of one module by name.

    Raises:
        DeclarationError: a name stands twice.
    """
    make = getattr(module, "variants", None)
    found: dict[str, Variant] = {}
    for name, variant in make(arch) if make else ():
        if name in found:
            msg = f"{module.__name__}.variants gives {name} twice"
            raise DeclarationError(msg, fix="give one of them another name")
        found[name] = variant
    return found


def tuned_of(module: ModuleType) -> dict[str, Tuned]:
    """Each ``Tuned`` among the globals of a module by its name in tables."""
    return {one.name: one for one in vars(module).values() if isinstance(one, Tuned)}


def triton_version() -> str:
    """The installed Triton, which decides code and times.

    Raises:
        PluginNotFound: there is none.
    """
    try:
        return version("triton")
    except PackageNotFoundError:
        raise PluginNotFound("triton is not installed", fix="pip install triton") from None
