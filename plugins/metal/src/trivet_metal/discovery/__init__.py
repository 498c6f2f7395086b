"""Whether this machine has a GPU that this package can use, or why not.

Two steps, so that every machine can be tried on every other: ``record.gather`` writes down what
the system and torch answer, as plain values; ``machine.judge`` makes a device or a reason of such
a record and asks nothing.
"""

from __future__ import annotations

from trivet_metal.discovery.machine import Finding, Obstacle, judge, this_machine

__all__ = ["Finding", "Obstacle", "judge", "this_machine"]
