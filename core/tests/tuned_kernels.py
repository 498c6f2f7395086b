"""What the tests compile and tune: stand-ins for kernels, and a clock that is told the time.

Processes of the tools import this module, so that nothing here may depend on a fixture.
"""

from __future__ import annotations

import os
import signal
import time
from math import inf
from pathlib import Path
from types import SimpleNamespace

import torch

from trivet.errors import PluginBroken
from trivet.kernels.triton import CodeFacts, KernelSet, Tuned
from trivet.kernels.triton.children import Spoilt

GATES = """
schema = 1
[shared]
one = 100
[[gate]]
triton = ["3.9"]
arch = ["one"]
variants = ["small*", "broken"]
registers = 64
stack = 0
load = 16
[[gate]]
triton = ["3.9"]
arch = ["one"]
variants = ["small_mma"]
registers = 128
instructions = ["mma"]
"""


class Variant:
    def __init__(self, **facts):
        self.facts = facts

    def compile(self, target):
        if "refuses" in self.facts:
            raise PluginBroken("kernel broken does not compile", fix="mend it")
        if "dies" in self.facts:
            os.kill(os.getpid(), signal.SIGKILL)
        return SimpleNamespace(**self.facts, target=target)


def variants(arch):
    good = {"threads": 32, "shared": 64, "registers": 60, "stack": 0, "loads": {16: 2, 4: 1}}
    yield "small", Variant(**good)
    yield "small_spills", Variant(**good | {"stack": 8, "shared": 101, "loads": {8: 1}})
    yield "small_mma", Variant(**good | {"registers": 100})
    yield "other", Variant(**good)
    if arch == "one":
        yield "broken", Variant(refuses=True)
        yield "dead", Variant(dies=True)


def read(compiled, target):
    facts = {n: v for n, v in vars(compiled).items() if n != "target"}
    return CodeFacts(**facts, code=target)


class Call:
    """Computes, and knows what the clock shall say of it."""

    def __init__(self, compute, us, cold_us):
        self.compute, self.us, self.cold_us = compute, us, cold_us

    def __call__(self):
        return self.compute()


def trial(key, rows, config, device):
    x = torch.randn(rows, key["width"], device=device)
    kind, us = config.get("kind", ""), abs(config["BLOCK"] - 2 * rows) + 10

    def compute():
        if kind == "raises":
            raise RuntimeError("out of resources")
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "nothing":
            return None
        return (x * 2 + (1 if kind == "wrong" else 0), x.argmax(-1))

    return Call(compute, us, config.get("cold", 30)), 8 * x.numel()


def space(key, rows):
    yield from ({"BLOCK": b} for b in (2, 4, 8))
    yield from ({"BLOCK": 2 * rows, "kind": k} for k in key.get("kinds", "").split())
    yield from ({"BLOCK": 2 * rows, "cold": c} for c in (20, 40))


TUNED = Tuned(
    "double",
    Path("nowhere"),
    space=space,
    default=lambda key: ((1, {"BLOCK": 4}), (inf, {"BLOCK": 8})),
    trial=trial,
    keys=[{"width": 8}],
)


class Clock:
    """A stopwatch that asks the call, once it ran."""

    def __init__(self, device):
        self.device = device

    def warm(self, call):
        call()
        return [call.us, call.us + 1, call.us]

    def cold(self, call):
        call()
        return [call.cold_us]

    def about(self):
        return {"device": "Stand-in", "driver": "1.0"}


def kernel_set(gates):
    gates.write_text(GATES)
    return KernelSet(
        modules=("tuned_kernels",),
        targets={"one": 11, "two": 22},
        read=read,
        gates=gates,
        arch_of=lambda device: "one",
        stopwatch=Clock,
    )


def job(what):
    """One job of a child process."""
    if what == "raises":
        raise ValueError("no such thing")
    if what == "spoils":
        raise Spoilt("the device is gone")
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, b"a compiler's words")
    if what == "hangs":
        time.sleep(600)
    return os.getpid()


class Here:
    """In place of processes where they are not what is tested."""

    def __init__(self, count, home=""):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def done(self, function, jobs):
        yield from ((job, function(*job)) for job in jobs)
