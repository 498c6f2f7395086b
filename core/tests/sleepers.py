"""Stand-ins for allocators that reclaim in different ways, and steps that fail when told to."""

from __future__ import annotations

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.memory.migrate import Mover

CPU = torch.device("cpu")


class Faults:
    """Counts steps between ``arm`` and ``disarm`` and fails the chosen ones."""

    def __init__(self):
        self.failing, self.steps = None, 0

    def arm(self, first=0, every=0):
        """Fails step ``first``, and each ``every``-th after it; 0 is none."""
        self.failing, self.steps = (first, every), 0

    def disarm(self):
        self.failing = None

    def step(self, what):
        if self.failing is None:
            return
        self.steps += 1
        first, every = self.failing
        late = self.steps - first
        if first and (late == 0 or (every and late > 0 and late % every == 0)):
            raise RuntimeError(f"injected: {what}")


class Plain:
    """Reclaims nothing: core gives its buffers back and allocates others."""

    def __init__(self, faults=None):
        self.faults, self.out = faults or Faults(), {}

    def traits(self):
        return Traits(CPU, Tier.DEVICE)

    def allocate(self, nbytes, *, tag):
        self.faults.step("allocate")
        made = torch.full((nbytes,), 0xEE, dtype=torch.uint8)
        self.out[id(made)] = made
        return made

    def deallocate(self, buffer):
        self.faults.step("deallocate")
        self.out.pop(id(buffer)).fill_(0xDD)


class Address(Plain):
    """Keeps addresses over a suspension."""

    preserves = frozenset({"address", "graphs"})

    def __init__(self, faults=None):
        super().__init__(faults)
        self.suspended = set()

    def suspend(self, buffer):
        self.faults.step("suspend")
        assert id(buffer) not in self.suspended
        self.suspended.add(id(buffer))
        buffer.fill_(0xDD)

    def resume(self, buffer):
        self.faults.step("resume")
        self.suspended.remove(id(buffer))
        buffer.fill_(0xEE)

    def deallocate(self, buffer):
        super().deallocate(buffer)
        self.suspended.discard(id(buffer))


class Host(Plain):
    """The tier for copies; giving back never fails, as the contract has it."""

    def traits(self):
        return Traits(CPU, Tier.HOST)

    def deallocate(self, buffer):
        del self.out[id(buffer)]


class FaultyMover(Mover):
    """Fails before a copy starts, or after half of it."""

    def __init__(self, faults):
        super().__init__()
        self.faults = faults

    def copy(self, source, target, route):
        self.faults.step("post")
        done = super().copy(source, target, route)
        try:
            self.faults.step("wait")
        except RuntimeError:
            target[target.numel() // 2 :].fill_(0xCC)
            raise
        return done
