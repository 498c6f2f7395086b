"""``trivet kernels``: a plugin's Triton kernels, compiled without a device; their code judged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from trivet.cli.kernel_sets import kernel_set
from trivet.cli.program import FOUND_PROBLEM
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.contracts import Execution

if TYPE_CHECKING:
    from trivet.kernels.triton.ahead import Built

KEYS: Final = {
    "triton": "series of the installed Triton",
    "execution": "compile_only: code was generated and read, none ran",
    "kernels": "[{module, variant, arch, facts, verdict, breaches}]",
    "breaches": "how many variants are beyond a gate or do not compile",
}
"""Keys of the document; facts are null where a variant did not compile."""


@click.command("kernels", epilog=key_page(KEYS))
@click.option(
    "--plugin", default="", metavar="NAME", help="Whose kernels; by default the only one."
)
@click.option("--arch", "archs", multiple=True, metavar="NAME", help="Architecture; all of them.")
@click.option("--kernel", "wanted", multiple=True, metavar="TEXT", help="Variants with this in it.")
@click.option("--processes", default=2, show_default=True, help="How many compile at once.")
@json_option
def command(
    *, plugin: str, archs: tuple[str, ...], wanted: tuple[str, ...], processes: int, as_json: bool
) -> None:
    """Compiles typical variants for each architecture, without a device, and judges their code.

    Gates hold for a series of Triton and an architecture; without any a variant is unmeasured.
    Exit status 1 says that one is beyond its gates, or does not compile.
    """
    from trivet.kernels.triton.ahead import compiled, triton_series

    kernels = kernel_set(plugin)
    if unknown := set(archs) - kernels.targets.keys():
        known = ", ".join(kernels.targets)
        raise click.BadParameter(f"{', '.join(sorted(unknown))} is none of {known}")
    chosen = archs or tuple(kernels.targets)
    found = sorted(
        compiled(kernels, chosen, wanted, processes=min(processes, os.cpu_count() or 1)),
        key=lambda b: (b.module, b.variant, chosen.index(b.arch)),
    )
    bad = [b for b in found if b.breaches]
    if as_json:
        emit({"triton": triton_series(), "execution": Execution.COMPILE_ONLY.value,
              "kernels": [b.to_json() for b in found], "breaches": len(bad)})  # fmt: skip
    else:
        _show(found, bad, triton_series())
    if bad:
        click.get_current_context().exit(FOUND_PROBLEM)


def _show(found: Sequence[Built], bad: Sequence[Built], series: str) -> None:
    screen = Screen()
    screen.heading(f"Kernels by Triton {series}: {Execution.COMPILE_ONLY.value}")
    if not found:
        screen.line("no variant has such a name", 2)
    for arch in dict.fromkeys(b.arch for b in found):
        screen.heading(arch)
        screen.table(
            ("variant", "regs", "shared", "occ", "ld/st", "uses", "gates"),
            [_row(b) for b in found if b.arch == arch],
            flexible=[0, 5],
        )
    if found:
        screen.heading("Legend")
        screen.line("regs: of a thread, +bytes of its stack; occ: share of threads that fit;", 2)
        screen.line("ld/st: bytes of the widest access of one thread", 2)
    if bad:
        screen.heading("Breaches")
        screen.pairs([(f"{b.variant} {b.arch}", "\n".join(b.breaches)) for b in bad])


def _row(built: Built) -> tuple[str, ...]:
    facts = built.facts
    if facts is None:
        return (built.variant, *[""] * 5, built.verdict)
    widest = f"{max(facts.loads, default=0)}/{max(facts.stores, default=0)}"
    return (
        built.variant,
        ("?" if facts.registers is None else str(facts.registers))
        + (f"+{facts.stack}" if facts.stack else ""),
        str(facts.shared),
        "" if facts.occupancy is None else f"{facts.occupancy:.0%}",
        widest,
        " ".join(sorted(facts.instructions)),
        built.verdict,
    )
