"""Compiles kernels for AMD's architectures without a GPU and judges their code: compile_only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import required

required.triton()

from trivet.errors import PluginBroken
from trivet.kernels.triton import ahead, gates
from trivet.kernels.triton.children import Children
from trivet_rocm.assembly import accesses, fields, occupancy, read
from trivet_rocm.discovery.architecture import COMPILED, KNOWN
from trivet_rocm.kernel_set import kernel_set
from trivet_rocm.target import TARGETS, arch_of

MOST = 5
"""Variants that one run of the tests compiles; `make soak` and `trivet kernels` do them all."""

ASSEMBLY = """
\tbuffer_load_dwordx4 v[0:3], v1, s[0:3], 0 offen
\tbuffer_load_ushort v4, v1, s[0:3], 0 offen
\tglobal_load_d16_hi_b16 v5, v[6:7], off
\tglobal_load_b64 v[5:6], v[6:7], off
\tglobal_store_byte v[5:6], v7, off
\tbuffer_load_dword v1, s[0:3], 0 offen lds
\tflat_load_dwordx2 v[1:2], v[3:4]
"""


def test_widths_of_accesses_are_read_from_the_names_of_instructions():
    assert list(accesses(ASSEMBLY)) == [
        ("load", 16), ("load", 2), ("load", 2), ("load", 8), ("store", 1), ("load", 4), ("load", 8),
    ]  # fmt: skip


def test_assembly_without_its_metadata_is_refused():
    with pytest.raises(PluginBroken, match="no vgpr_count"):
        fields("\ts_endpgm\n")


@pytest.mark.parametrize(
    ("arch", "warps", "waves", "shared", "share"),
    [
        ("gfx942", 4, 8, 0, 1.0),
        ("gfx942", 4, 2, 0, 0.25),
        ("gfx942", 4, 8, 65536, 0.125),
        ("gfx950", 4, 8, 65536, 0.25),
        ("gfx942", 16, 3, 0, 0.0 + 0),
        ("gfx1100", 4, 16, 65536, 0.125),
        ("gfx1100", 1, 16, 0, 1.0),
        ("gfx1036", 4, 8, 0, None),
        ("gfx942", 4, None, 0, None),
    ],
)
def test_occupancy_is_what_registers_and_shared_memory_leave(arch, warps, waves, shared, share):
    found = occupancy(arch, warps, waves, shared)
    if (arch, warps) == ("gfx942", 16):  # no program of 16 wavefronts fits into 12 places
        assert found == 0.0
    else:
        assert found == share


def test_targets_have_the_wavefront_of_their_family():
    assert {n: t.warp_size for n, t in TARGETS.items()} == {
        "gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32,
    }  # fmt: skip
    assert tuple(TARGETS) == COMPILED
    assert arch_of(torch.device("cpu")) in KNOWN


@pytest.fixture(scope="module")
def compiled():
    """The quantising kernel of bfloat16 by architecture; other processes compile it."""
    found = ahead.compiled(kernel_set(), list(TARGETS), ["quantise/bfloat16"], processes=1)
    return {built.arch: built.facts for built in found}


def test_the_static_quantise_kernel_converts_with_the_architectures_own_instruction(compiled):
    assert compiled.keys() == {"gfx942", "gfx950", "gfx1201"}
    assert compiled["gfx942"].instructions["fp8_convert"] == 4
    if ahead.triton_series() == "3.9":  # Triton 3.6 emulates it there
        assert compiled["gfx950"].instructions["fp8_convert"] == 4
    for facts in compiled.values():
        assert (max(facts.loads), max(facts.stores)) == (16, 8)
        assert facts.counts["vgpr_spills"] == facts.counts["sgpr_spills"] == facts.stack == 0
        assert 0 < facts.registers == facts.counts["vgpr"] <= 64
        assert facts.occupancy == 1.0


def test_code_for_another_wavefront_is_refused():
    text = """
    .private_segment_fixed_size: 0
    .sgpr_count:     22
    .vgpr_count:     44
    .vgpr_spill_count: 0
    .wavefront_size: 64
"""
    metadata = SimpleNamespace(num_warps=4, shared=1024)
    code = SimpleNamespace(asm={"amdgcn": text}, metadata=metadata)
    facts = read(code, TARGETS["gfx942"])
    assert (facts.threads, facts.registers, facts.shared, facts.occupancy) == (256, 44, 1024, None)
    with pytest.raises(PluginBroken, match="for wavefronts of 64, not 32"):
        read(code, TARGETS["gfx1100"])


def judged(jobs):
    """What became of variants, given as (arch, module, name)."""
    kernels = kernel_set()
    rules, series = gates.load(kernels.gates), ahead.triton_series()
    given = [(kernels.read, module, name, arch, TARGETS[arch]) for arch, module, name in jobs]
    with Children(2, home=kernels.home) as children:
        for (_, module, name, arch, _), answer in children.done(ahead.facts_of, given):
            yield ahead.judged(module, name, arch, answer, rules.limits(series, arch, name))


def test_gates_know_every_variant_on_both_series():
    kernels = kernel_set()
    rules = gates.load(kernels.gates)
    for arch in TARGETS:
        for _, name in kernels.variants(arch):
            for series in ("3.6", "3.9"):
                limits = rules.limits(series, arch, name)
                assert limits is not None, (arch, name)
                assert limits["shared"] == KNOWN[arch].lds_kib << 10
                if arch in {"gfx942", "gfx950"}:
                    assert limits["stack"] == 0
                    assert limits["counts"] == {"vgpr_spills": 0, "sgpr_spills": 0}
    assert rules.limits("9.9", "gfx942", "rms_norm-128-inf") is None


def test_a_share_of_the_variants_keeps_to_their_gates():
    every = [(a, *at) for a in TARGETS for at in kernel_set().variants(a)]
    step = -(-len(every) // MOST)
    found = list(judged(every[len(every) % step :: step]))
    assert len(found) <= MOST
    assert [b for b in found if b.breaches] == []


@pytest.mark.soak
def test_every_variant_keeps_to_its_gates_on_every_architecture():
    every = [(arch, *at) for arch in TARGETS for at in kernel_set().variants(arch)]
    assert [b for b in judged(every) if b.breaches] == []
