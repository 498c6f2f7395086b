"""Compiles variants without a device, in processes of their own, and judges their code.

The word of execution is ``compile_only``: the compiler's output was read, none of it ran. Triton
keeps what it compiled on disk, so that a second run only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from trivet.errors import TrivetError
from trivet.kernels.triton import gates
from trivet.kernels.triton.children import Children, Lost
from trivet.kernels.triton.code_facts import CodeFacts, ReadCode
from trivet.kernels.triton.kernel_set import KernelSet, offered, triton_version

PROCESSES: Final = 2
UNMEASURED: Final = "unmeasured"
"""Of a variant that no gate knows on this series of Triton and this architecture."""


@dataclass(frozen=True)
class Built:
    """One variant on one architecture.

    Args:
        module: where it is declared.
        variant: its name.
        arch: what it was compiled for.
        facts: of its code; None where it did not compile.
        verdict: ``"ok"``, ``"breach"`` or ``"unmeasured"``.
        breaches: what is wrong, one sentence each.
    """

    module: str
    variant: str
    arch: str
    facts: CodeFacts | None
    verdict: str
    breaches: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {n: v for n, v in vars(self).items() if n != "facts"}
        return plain | {"facts": self.facts.to_json() if self.facts else None}


def compiled(
    kernels: KernelSet,
    archs: Sequence[str],
    wanted: Sequence[str] = (),
    *,
    processes: int = PROCESSES,
) -> Iterator[Built]:
    """Compiles variants for architectures and compares them with the gates, as they are done.

    Args:
        kernels: of the plugin.
        archs: keys of its targets.
        wanted: parts of variants' names; all of them without any.
        processes: how many compile at once.
    """
    rules, series = gates.load(kernels.gates), triton_series()
    jobs = [
        (kernels.read, module, name, arch, kernels.targets[arch])
        for arch in archs
        for module, name in kernels.variants(arch)
        if not wanted or any(part in name for part in wanted)
    ]
    with Children(min(processes, len(jobs)), home=kernels.home) as children:
        for (_, module, name, arch, _), answer in children.done(facts_of, jobs):
            limits = rules.limits(series, arch, name)
            yield judged(module, name, arch, answer, limits)


def judged(
    module: str, name: str, arch: str, answer: CodeFacts | Lost, limits: Mapping[str, Any] | None
) -> Built:
    """Compares what became of a variant with its limits; without any it is unmeasured."""
    if isinstance(answer, Lost):
        return Built(module, name, arch, None, "breach", (answer.reason,))
    if limits is None:
        return Built(module, name, arch, answer, UNMEASURED)
    found = tuple(gates.breaches(answer, limits))
    return Built(module, name, arch, answer, "breach" if found else "ok", found)


def facts_of(read: ReadCode, module: str, name: str, arch: str, target: Any) -> CodeFacts | Lost:
    """Compiles one variant of a module in this process and reads its code."""
    try:
        return read(offered(import_module(module), arch)[name].compile(target), target)
    except TrivetError as error:
        return Lost(" ".join(str(error).split()))


def triton_series() -> str:
    """The first two numbers of the installed Triton, as gates and reports name it."""
    return ".".join(triton_version().split(".")[:2])
