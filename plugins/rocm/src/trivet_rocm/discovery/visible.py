"""Which GPUs torch sees, and in which order: index ``i`` of the result is torch's ``cuda:i``.

``ROCR_VISIBLE_DEVICES`` acts first, on the order of the kernel driver; the other two count what it
left, and HIP's own name wins over CUDA's, as torch reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trivet_rocm.discovery.answers import Record, number
from trivet_rocm.discovery.obstacle import Absence, Obstacle

_NUMBER: Final = re.compile(r"\s*\+?([0-9]{1,6})")


def visible(environment: Record, nodes: Sequence[Record]) -> list[Record] | Absence:
    """The nodes of ``cuda:0``, ``cuda:1`` and so on, or why there is none."""
    left = list(nodes)
    first = "HIP_VISIBLE_DEVICES" if _said(environment, "HIP_VISIBLE_DEVICES") is not None else ""
    for name in ("ROCR_VISIBLE_DEVICES", first or "CUDA_VISIBLE_DEVICES"):
        wanted = _said(environment, name)
        if wanted is None:
            continue
        chosen = _chosen(wanted, left)
        if not chosen:
            shown = wanted if len(wanted) <= 40 else f"{wanted[:40]}..."
            return Absence(
                Obstacle.HIDDEN,
                f"{name}={shown!r} leaves none of the {len(left)} GPUs: unset it, or name each "
                "once, by a number below that or by its UUID",
            )
        left = chosen
    return left


def _said(environment: Record, name: str) -> str | None:
    found = environment.get(name)
    return found if isinstance(found, str) else None


def _chosen(wanted: str, nodes: Sequence[Record]) -> list[Record]:
    """Nodes by number or UUID; the first that is none ends the list, one named twice empties it."""
    found: list[int] = []
    for part in wanted.split(","):
        at = _place(part.strip(), nodes)
        if at is None:
            break
        if at in found:
            return []
        found.append(at)
    return [nodes[at] for at in found]


def _place(part: str, nodes: Sequence[Record]) -> int | None:
    if part.upper().startswith("GPU-"):
        uuid = part[4:].lower()
        at = [n for n, node in enumerate(nodes) if f"{number(node, 'unique_id'):016x}" == uuid]
        return at[0] if len(at) == 1 else None
    match = _NUMBER.match(part)
    return int(match[1]) if match and int(match[1]) < len(nodes) else None
