"""Making the must-pass lists: what the references show that the suite can ask.

A cell is in a list when a quick run of core's references passes a check of it: what the suite
cannot check on a correct implementation cannot be asked of a vendor. For families that ask
something only of asynchronous devices the references on the CPU say nothing; every cell of theirs
is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.calls.profiles import PROFILES, Profile
from trivet_conformance.families import FAMILIES, Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.subject import Target, references
from trivet_conformance.suite.claims import GOOD, MODEL
from trivet_conformance.suite.levels import ASYNCHRONOUS, LEVELS, OF_A_CLAIM, families_for
from trivet_conformance.suite.version import RELEASED, SUITE

FOLDER: Final = Path(__file__).parent / "mustpass"
SUMS: Final = "SHA256SUMS"


def lists() -> dict[str, str]:
    """File name -> text of every list of the current suite."""
    names = sorted({op for p in PROFILES.values() for op in p.mandatory})
    dtypes = {d for p in PROFILES.values() for d in p.dtypes}
    bench, askable = Bench(0, quick=True), dict[tuple[str, str], list[str]]()
    for target in references().only(names).targets:
        for family in [f for f in FAMILIES if f not in OF_A_CLAIM]:
            lines = list(_askable(target, family, bench, dtypes))
            askable.setdefault((family, target.op.name), []).extend(lines)
        bench.forget()
    found = {}
    for profile in PROFILES.values():
        for level in LEVELS[1:]:
            lines = [
                line
                for family in families_for(level)
                if family not in OF_A_CLAIM
                for op in profile.mandatory
                for line in askable[family, op]
                if _wanted(line, profile)
            ]
            found[f"{profile.name}.{level}.txt"] = "".join(f"{line}\n" for line in lines)
    return found


def _askable(target: Target, family: str, bench: Bench, dtypes: set[str]) -> Iterator[str]:
    """The lines of one family for one operator that a right implementation can satisfy."""
    start, found = f"{family}/{target.op.name}", dict[str, bool]()
    if family == MODEL:
        for one in PROFILES.values():
            for call in one.calls:
                if call.operator == target.op.name:
                    sizes = ",".join(f"{n}={v}" for n, v in call.dims)
                    names = [f"{start}/{call.id}:{d}:{sizes}" for d in one.dtypes]
                    found |= dict.fromkeys(names, True)
        yield from found
        return
    if family in ASYNCHRONOUS:
        yield from (f"{start}/{dtype}" for dtype in sorted(dtypes))
        return
    for case in _cases(target, family, bench):
        line = f"{start}/{case.dtype or '-'}"
        if (case.dtype in dtypes or not case.dtype) and not found.get(line):
            found[line] = _passes(case)
    yield from (line for line, good in found.items() if good)


def _cases(target: Target, family: str, bench: Bench) -> Iterator[Case]:
    with one_thread():
        yield from FAMILIES[family](target, bench)


def _passes(case: Case) -> bool:
    with one_thread():  # what raises here would be a list that is silently too short
        return case.run().status in GOOD


def _wanted(line: str, profile: Profile) -> bool:
    family, _, rest = line.split("/", 2)
    if family != MODEL:
        return rest == "-" or rest in profile.dtypes
    call, dtype, _ = rest.split(":", 2)
    return dtype in profile.dtypes and call in {c.id for c in profile.calls}


def sums(texts: dict[str, str]) -> str:
    """The hashes of lists, as ``sha256sum`` writes them."""
    return "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n"
        for name, text in sorted(texts.items())
    )


def write() -> Path:
    """Writes the lists of the current suite and their hashes.

    Raises:
        ValueError: that version is released; what changes is a new version.
    """
    if SUITE in RELEASED:
        msg = f"suite {SUITE} is released: give what changed a new version"
        raise ValueError(msg)
    folder = FOLDER / SUITE
    folder.mkdir(parents=True, exist_ok=True)
    texts = lists()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / SUMS).write_text(sums(texts), encoding="utf-8")
    return folder
