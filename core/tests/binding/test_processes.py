from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stand_ins import OPS, make_device, norm_big, norm_small, norm_vec, silu_into
from trivet.binding.guard import guard_text
from trivet.contracts import divisible
from trivet.selection.facts import normalise

TESTS = Path(__file__).resolve().parents[1]
SITES = {
    "norm": ("rms_norm", {"hidden": 64, "dtype": "bfloat16"}),
    "last": ("rms_norm", {"tokens": "rows", "x.rank": 2}),
    "gate": ("silu_and_mul", {"inter": 8}),
}


def python(code, **environ):
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(TESTS), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


IMPORTS = """
import json, sys, torch
before, known = set(sys.modules), set(torch._C._dispatch_get_all_op_names())
import trivet
new = sorted(set(sys.modules) - before)
ops = sorted(set(torch._C._dispatch_get_all_op_names()) - known)
print(json.dumps([new, ops]))
"""


def test_importing_trivet_loads_little_and_registers_nothing():
    new, ops = python(IMPORTS)
    assert ops == []
    own = [n for n in new if n.partition(".")[0] == "trivet"]
    allowed = ("trivet", "trivet.errors", "trivet.contracts", "trivet.settings")
    assert [
        n for n in own if not (n in allowed or n.startswith(tuple(f"{a}." for a in allowed[2:])))
    ] == []
    top = {n.partition(".")[0] for n in new} - set(sys.stdlib_module_names) - {"trivet"}
    assert {t for t in top if not t.startswith("_")} <= {"torch"}
    assert not any(n.startswith(("torch._dynamo", "torch._inductor")) for n in new)


BINDS = """
import json, sys, torch
before = set(sys.modules)
from stand_ins import *
dev = make_device(norm_vec, norm_small, norm_big, silu_into, linear_turned)
dev.bind("rms_norm", {"hidden": 64})
dev.ops.rms_norm(torch.zeros(2, 8), torch.zeros(8))
plan = dev.plan({"norm": ("rms_norm", {}), "up": ("linear_packed", {"contiguous": True})})
plan.at(tokens=3).norm(torch.zeros(3, 8), torch.zeros(8))
handle = plan.prepare("up", torch.zeros(2, 2))
plan.at(tokens=3).use([handle]), plan.digest, plan.semantic(), plan.stale()
dev.explain("rms_norm", arguments={"x": torch.zeros(2, 8), "weight": torch.zeros(8)})
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_binding_and_planning_load_no_compiler():
    new = python(BINDS)
    heavy = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
    assert [n for n in new if n.startswith(heavy)] == []
    assert [n for n in new if n.partition(".")[0] in {"click", "rich", "pytest"}] == []


PLAN = """
import json
from stand_ins import *
from trivet.selection.facts import normalise
from trivet.binding.guard import guard_text
TIES = tuple(divisible("hidden", n) for n in range(2, 12))
SITES = json.loads({sites!r})
dev = make_device(norm_vec, norm_small, norm_big, silu_into)
plan = dev.plan({{n: (op, facts) for n, (op, facts) in SITES.items()}})
op = OPS["rms_norm"]
ties = guard_text(op, "functional", normalise(op, {{}}), [TIES, ()], grad=False)
print(json.dumps([plan.digest, plan.norm.__trivet_source__, plan.lock, ties]))
"""
TIES = tuple(divisible("hidden", n) for n in range(2, 12))


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_digest_and_texts_are_the_same_in_another_process(seed):
    plan = make_device(norm_vec, norm_small, norm_big, silu_into).plan(SITES)
    code = PLAN.format(sites=json.dumps(dict(reversed(SITES.items()))))
    digest, source, lock, ties = python(code, PYTHONHASHSEED=seed)
    assert lock == json.loads(json.dumps(plan.lock))
    assert digest == plan.digest
    assert source == plan.norm.__trivet_source__
    op = OPS["rms_norm"]
    assert ties == guard_text(op, "functional", normalise(op, {}), [TIES, ()], grad=False)


FORK = """
import json, os, torch
from stand_ins import *
dev = make_device(norm_small, norm_big, strict=True)
plan = dev.plan({"norm": ("rms_norm", {})}, observe=True)
guard = dev.ops.rms_norm
x, weight = torch.ones(3, 8), torch.ones(8)
plan.norm(x, weight)
read, write = os.pipe()
child = os.fork()
if not child:
    plan.norm(x, weight)
    same = [
        dev.bind("rms_norm") is guard,
        dev.plan({"norm": ("rms_norm", {})}).at(tokens=3).norm is norm_small,
        dev.bind("rms_norm", {"hidden": 24}) is dev.bind("rms_norm", {"hidden": 24}),
        plan.counts() == {("norm", "acme/small"): 2},
        plan.stale() == [],
    ]
    os.write(write, json.dumps(same).encode())
    os._exit(0)
os.close(write)
said = os.read(read, 1000).decode()
os.waitpid(child, 0)
print(json.dumps([json.loads(said), plan.counts() == {("norm", "acme/small"): 1}]))
"""


def test_a_forked_child_keeps_the_choices():
    said, parent = python(FORK)
    assert said == [True] * 5
    assert parent
