"""Every kernel waits for the one before it; the target decides whether there is something to do."""

from __future__ import annotations

import ast
import inspect

import pytest

from trivet.kernels.triton import Kernel
from trivet_cuda.plugin import modules
from trivet_cuda.target import TARGETS
from trivet_triton import kernels as triton_kernels
from trivet_triton.kernels.overlap import overlap

KERNELS = {
    f"{module.__name__.rpartition('.')[2]}.{one.name}": one
    for module in modules(triton_kernels)
    for one in vars(module).values()
    if isinstance(one, Kernel)
}
EARLY = {"attention_decode._join"}
"""They read lengths first, which the kernel before them waited for."""


def statements(kernel):
    tree = ast.parse(inspect.getsource(kernel.function.fn))
    return [ast.unparse(s) for s in tree.body[0].body if not isinstance(s, ast.Expr)
            or not isinstance(s.value, ast.Constant)]  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_it_waits_before_it_reads_or_leaves(name):
    assert KERNELS[name].settle is overlap
    lines = statements(KERNELS[name])
    at = lines.index("after_previous(OVERLAP)")
    if name not in EARLY:
        assert at == 0
    assert not any(word in line for line in lines[:at] for word in ("return", "store", "scratch +"))


def test_all_kernels_are_seen():
    assert len(KERNELS) >= 16


@pytest.mark.parametrize("arch", TARGETS)
def test_targets_before_sm90_compile_without(arch):
    made = overlap(TARGETS[arch])
    able = TARGETS[arch].arch >= 90
    assert made.constants == {"OVERLAP": able}
    assert made.options == ({"launch_pdl": True} if able else {})
    assert overlap(None).constants == {"OVERLAP": False}
