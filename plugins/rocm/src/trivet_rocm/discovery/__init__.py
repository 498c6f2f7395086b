"""Which GPUs there are, or why none can be used; HIP is never started to find out.

Two steps, so that every machine can be tried on every other: ``record.gather`` writes down what
torch, the environment, the system and amdsmi answer, as plain values; ``machine.judge`` makes
devices or a reason of such a record and asks nothing. ``python -m trivet_rocm.discovery`` shows
what is found here, and with ``--record FILE`` keeps the answers.
"""

from __future__ import annotations

from trivet_rocm.discovery.machine import Finding, judge, this_machine
from trivet_rocm.discovery.obstacle import Obstacle

__all__ = ["Finding", "Obstacle", "judge", "this_machine"]
