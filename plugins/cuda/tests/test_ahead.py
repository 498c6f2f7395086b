"""Compiles kernels without a GPU and judges their code: compile_only."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import required
from trivet.kernels import triton as layer

required.triton()

from trivet.kernels.triton import ahead, gates, kernel_set
from trivet.kernels.triton.children import Children
from trivet_cuda.assembly import accesses, occupancy
from trivet_cuda.kernel_set import kernel_set as of_cuda
from trivet_cuda.target import TARGETS, arch_of, shared_kib

MOST = 32
"""Variants that one run of the tests compiles; `make soak` and `trivet kernels` do them all."""


@pytest.fixture(scope="module")
def known():
    """The facts of ``ahead_kernels`` by (variant, arch)."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        kernels = replace(of_cuda(), modules=("ahead_kernels",))
        found = list(ahead.compiled(kernels, ["sm80", "sm90", "sm100"], processes=2))
    finally:
        sys.path.pop(0)
        sys.modules.pop("ahead_kernels", None)
    return {(b.variant, b.arch): b for b in found}


def test_widths_of_accesses_follow_what_was_promised(known):
    for arch in ("sm80", "sm90", "sm100"):
        wide, narrow = known["scale_wide", arch].facts, known["scale_narrow", arch].facts
        assert (max(wide.loads), max(wide.stores)) == (16, 16)
        assert (max(narrow.loads), max(narrow.stores)) == (2, 2)
        assert wide.to_json()["loads"] == {"16": 2}
        assert wide.threads == 128
        assert wide.shared == 0
        assert 0 < wide.registers <= 64
        assert wide.code > 100


@pytest.mark.parametrize(
    ("arch", "unit"), [("sm80", "mma"), ("sm90", "wgmma"), ("sm100", "tcgen05")]
)
def test_a_product_uses_the_units_of_its_architecture(known, arch, unit):
    facts = known["product", arch].facts
    assert facts.instructions["tensor_core"] == facts.instructions[unit] > 0
    assert facts.instructions["async_copy"] > 0
    assert max(facts.loads) == 16
    assert 2 * 128 * 64 * 2 <= facts.shared <= 227 << 10
    assert 0 < facts.occupancy <= 1


def test_what_does_not_fit_the_registers_is_on_the_stack_and_a_breach(known):
    built = known["crowded", "sm80"]
    assert built.facts.stack > 0
    assert built.facts.registers <= 64
    if ahead.triton_series() in layer.TESTED:
        assert built.verdict == "breach"
        assert any(text.startswith("stack ") for text in built.breaches)
        assert known["product", "sm90"].verdict == "ok"


def judged(jobs):
    """What became of variants, given as (arch, module, name)."""
    kernels = of_cuda()
    rules, series = gates.load(kernels.gates), ahead.triton_series()
    given = [(kernels.read, module, name, arch, TARGETS[arch]) for arch, module, name in jobs]
    with Children(2, home=kernels.home) as children:
        for (_, module, name, arch, _), answer in children.done(ahead.facts_of, given):
            yield ahead.judged(module, name, arch, answer, rules.limits(series, arch, name))


def test_a_share_of_the_variants_keeps_to_their_gates():
    every = [(a, *at) for a in ("sm80", "sm89", "sm90", "sm100") for at in of_cuda().variants(a)]
    step = max(1, -(-len(every) // MOST))
    found = list(judged(every[len(every) % step :: step]))
    assert len(found) <= MOST
    assert [b for b in found if b.breaches] == []


@pytest.mark.soak
def test_every_variant_keeps_to_its_gates_on_every_architecture():
    every = [(arch, *at) for arch in TARGETS for at in of_cuda().variants(arch)]
    assert [b for b in judged(every) if b.breaches] == []


def test_names_of_variants_are_the_same_for_every_architecture_that_has_them():
    kernels = of_cuda()
    every = {name for arch in TARGETS for _, name in kernels.variants(arch)}
    patterns = {p for rule in gates.load(kernels.gates).rules for p in rule["variants"]}
    families = {re.match(r"\w*", name)[0] for name in every}
    known = {p for p in patterns if re.match(r"\w*", p)[0] in families}
    idle = {p for p in known if not any(gates.fits(name, p) for name in every)}
    assert idle == set(), "gates of variants that do not exist"


def test_accesses_of_ptx_are_read_by_their_width():
    text = """
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b64 { %rd5, %rd6 }, [ %rd1 ], %rd9;
        ld.volatile.global.b16 { %rs1 }, [ %rd2 + 2 ];
        ld.global.L1::evict_last.v8.b32 { %r1, %r2 }, [ %rd1 + 0 ];
        st.global.L1::evict_first.v2.b16 [ %rd3 + 0 ], { %rs1, %rs2 };
        st.relaxed.gpu.global.u32 [ %rd3 ], %r1;
        ld.shared.v4.b32 { %r1, %r2, %r3, %r4 }, [ %r9 ];
        ld.param.b64 %rd1, [k_param_0];
        cp.async.ca.shared.global [ %r6 + 0 ], [ %rd11 + 0 ], 0x8, %r7;
        cp.async.cg.shared.global [ %r6 + 0 ], [ %rd11 + 0 ], 16;
    """
    assert Counter(accesses(text)) == {
        ("ld", 16): 3, ("ld", 2): 1, ("ld", 32): 1, ("ld", 8): 1, ("st", 4): 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "share"),
    [
        (90, 128, 32, 0, 1.0),
        (90, 128, 33, 0, 0.75),  # registers come in eights
        (90, 128, 255, 0, 0.125),
        (90, 32, 16, 0, 0.5),  # 32 programs
        (90, 256, 32, 100 << 10, 0.25),
        (80, 1024, 64, 0, 0.5),
        (86, 256, 40, 0, 1.0),
        (77, 128, 32, 0, None),
    ],
)
def test_occupancy_is_what_the_scarcest_thing_allows(arch, threads, registers, shared, share):
    assert occupancy(arch, threads, registers, shared) == share


def test_targets_are_named_as_tables_are():
    assert list(TARGETS) == ["sm80", "sm86", "sm89", "sm90", "sm100", "sm120"]
    assert {t.backend for t in TARGETS.values()} == {"cuda"}
    assert TARGETS["sm90"].arch == 90
    assert arch_of(torch.device("cpu")) == "sm90"
    shared = gates.load(of_cuda().gates).shared
    assert shared == {arch: shared_kib(arch) << 10 for arch in TARGETS}
    assert shared_kib("sm77") == 99


def test_the_set_is_what_the_hook_may_return():
    kernels = of_cuda()
    assert isinstance(kernels, layer.KernelSet)
    for name, one in kernels.tuned().items():
        assert kernel_set.tuned_of(sys.modules[one.module])[name] is one.tuned
