"""What kernels that stopped waiting leave behind, as the errors of the contract."""

from __future__ import annotations

from typing import Any

from trivet.contracts.collectives import Group
from trivet.errors import CommAborted, CommError, CommTimeout, PeerLost
from trivet_cuda.collectives.words import LOST, STOP, WHOM


def failure(group: Group, verdict: Any) -> CommError:
    """The error that ``verdict``, numbers by position, means."""
    if verdict[LOST]:
        lost = verdict[LOST] - 1
        return PeerLost(
            f"{group.name}: the process of rank {lost} has ended; what waited for it is NaN",
            ranks=[lost],
            fix="read the output of that rank; go on with shrink(), or start again",
        )
    rank = (group.rank + verdict[WHOM]) % group.size
    if verdict[STOP]:
        return CommAborted(f"{group.name}: the kernels that waited for other ranks were stopped")
    return CommTimeout(
        f"{group.name}: a kernel waited {group.timeout:g} s for rank {rank}; what it wrote is NaN",
        ranks=[rank],
        fix="see where that rank is (trivet comm dump), or open the group with timeout=",
    )
