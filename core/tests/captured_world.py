"""A device, a plan and a step that captures are made of."""

from __future__ import annotations

import torch

from stand_ins import make_device
from trivet.capture import Input

ACT = {"dtype": torch.float32, "weight.dtype": torch.float32, "hidden": 8, "contiguous": True}
INPUTS = {"x": Input(torch.float32, (8,)), "slots": Input(torch.int64, padding=-1)}


class World:
    """A device, a plan, and a step that normalises rows and writes them into a cache."""

    def __init__(self, *functions, mode="captured", sites=None):
        self.device = make_device(*functions)
        sites = sites or {"norm": ("rms_norm", ACT), "write": ("kv_cache_write", {})}
        self.plan = self.device.plan(sites, mode=mode)
        self.weight = torch.full((8,), 2.0)
        self.cache = torch.zeros(3, 2, 1, 8)
        self.values = torch.zeros(3, 2, 1, 8)
        self.rows = []

    def step(self, op, x, slots):
        self.rows.append(len(x))
        y = op.norm(x, self.weight)
        op.write(y.view(-1, 1, 8), x.view(-1, 1, 8), self.cache, self.values, slots)
        return {"y": y, "total": y.sum()}

    def buckets(self, **given):
        given = {"inputs": INPUTS, "sizes": (1, 2, 4), **given}
        return self.device.capture.buckets(self.plan, self.step, **given)


def rows(n, seed=0):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return {"x": x, "slots": torch.arange(n)}


def normed(x):
    return torch.nn.functional.rms_norm(x, (8,), torch.full((8,), 2.0), 1e-6)
