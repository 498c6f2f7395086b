"""Names that fit nothing installed: in the filters, and of devices to be added to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trivet.plugins.metadata import Candidate, normalised
from trivet.settings import Settings, meant


def notes(found: Sequence[Candidate], settings: Settings) -> Iterator[str]:
    """A sentence for each name that fits nothing; it is no problem, and never silent."""
    known = {normalised(c.name): c.name for c in found}
    known |= {normalised(c.dist): c.dist for c in found}
    for which, names in (("allow", settings.allow), ("deny", settings.deny)):
        for name in names:
            if normalised(name) not in known:
                hint = meant(normalised(name), known, ", ")
                yield f"{settings.source(which)} names {name!r}, which is not installed{hint}"
    kinds = [c.name for c in found if not c.extends]
    for candidate in found:
        kind = candidate.extends
        if kind and kind not in kinds:
            where = f"which no installed distribution brings{meant(kind, kinds, ', ')}"
            yield f"{candidate.name} adds to {kind!r}, {where}"
