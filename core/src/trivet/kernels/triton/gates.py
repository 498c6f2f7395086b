"""What compiled code must keep to: rules in a TOML file of the vendor, by Triton's series and arch.

::

    schema = 1
    [shared]                     # bytes that one program may share, by architecture
    one = 65536
    [[gate]]
    triton = ["3.9"]             # series of Triton that the numbers are from
    arch = ["one"]
    variants = ["rms_norm*"]     # names, or patterns of the shell
    registers = 64               # at most
    stack = 0                    # bytes, at most
    load = 16                    # the widest load of global memory has at least these bytes
    instructions = ["mma"]       # each stands in the code
    absent = ["trap"]            # none of these does
    counts = { spills = 0 }      # at most, of what the vendor's reader counts besides
    occupancy = 0.25             # at least this share of the threads fits

Every gate that names a variant counts; where two say the same, the later one does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from trivet.errors import ConfigError
from trivet.kernels.triton.code_facts import CodeFacts

SCHEMA: Final = 1
_WHERE: Final = {"triton": list, "arch": list, "variants": list}
_LIMITS: Final = {
    "registers": int,
    "stack": int,
    "load": int,
    "instructions": list,
    "absent": list,
    "counts": dict,
    "occupancy": float,
}


@dataclass(frozen=True)
class Gates:
    """The rules of one file.

    Args:
        shared: architecture -> bytes that one program may share.
        rules: tables of the file, in order.
    """

    shared: Mapping[str, int]
    rules: tuple[Mapping[str, Any], ...]

    def limits(self, series: str, arch: str, variant: str) -> Mapping[str, Any] | None:
        """What holds for a variant; None where no rule knows it on that series and arch."""
        found: dict[str, Any] = {}
        known = False
        for rule in self.rules:
            if series not in rule["triton"] or arch not in rule["arch"]:
                continue
            if any(fits(variant, pattern) for pattern in rule["variants"]):
                known = True
                found |= {name: rule[name] for name in _LIMITS if name in rule}
        if known and arch in self.shared:
            found["shared"] = self.shared[arch]
        return found if known else None


def fits(variant: str, pattern: str) -> bool:
    """Whether a pattern means a variant."""
    return fnmatchcase(variant, pattern)


def load(path: Path) -> Gates:
    """Reads a file of gates.

    Raises:
        ConfigError: it cannot be read, or has keys or values that mean nothing.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"gates {path} cannot be read: {error}"
        raise ConfigError(msg, fix="install the package again") from error
    problem = next(_problems(document), "")
    if problem:
        raise ConfigError(f"gates {path}: {problem}", fix="the form stands in its module's page")
    return Gates(document["shared"], tuple(document.get("gate", ())))


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("schema") != SCHEMA:
        yield f"schema is {document.get('schema')!r}, this version reads {SCHEMA}"
    if odd := document.keys() - {"schema", "shared", "gate"}:
        yield f"unknown {', '.join(sorted(odd))}"
    shared = document.get("shared")
    if not isinstance(shared, dict) or not all(type(v) is int for v in shared.values()):
        yield "[shared] is no table of bytes"
    rules = document.get("gate", [])
    for at, rule in enumerate(rules if isinstance(rules, list) else [{}], 1):
        for name, kind in (_WHERE | _LIMITS).items():
            if name in rule and type(rule[name]) is not kind:
                yield f"gate {at}: {name} is {rule[name]!r}, no {kind.__name__}"
            elif name in _WHERE and name not in rule:
                yield f"gate {at} has no {name}"
        if odd := rule.keys() - _WHERE.keys() - _LIMITS.keys():
            yield f"gate {at}: unknown {', '.join(sorted(odd))}"


def breaches(facts: CodeFacts, limits: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each limit that the facts are beyond; an unknown fact is beyond none."""
    for name, unit in (("registers", ""), ("stack", " bytes"), ("shared", " bytes")):
        most, found = limits.get(name), getattr(facts, name)
        if most is not None and found is not None and found > most:
            yield f"{name} {found}{unit}, at most {most}"
    least, widest = limits.get("load"), max(facts.loads, default=0)
    if least is not None and widest < least:
        yield f"widest load {widest} bytes, at least {least}"
    for name in limits.get("instructions", ()):
        if not facts.instructions.get(name):
            yield f"no {name} in its code"
    for name in limits.get("absent", ()):
        if number := facts.instructions.get(name):
            yield f"{number} {name} in its code, none is right"
    for name, most in limits.get("counts", {}).items():
        if facts.counts.get(name, 0) > most:
            yield f"{name} {facts.counts[name]}, at most {most}"
    share = limits.get("occupancy")
    if share is not None and facts.occupancy is not None and facts.occupancy < share:
        yield f"occupancy {facts.occupancy:.2f}, at least {share:.2f}"
