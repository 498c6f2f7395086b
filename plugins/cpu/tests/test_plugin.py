from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import trivet
from trivet_cpu import linear, norm, plugin
from trivet_cpu._library import Library, library
from trivet_cpu.machine import _architectures, this_machine

PROPERTIES = {"deterministic", "batch_invariant"}


@pytest.fixture
def dev():
    return trivet.device("cpu")


def test_the_machine_is_described():
    info = this_machine()
    assert info.kind == "cpu"
    assert info.torch == torch.device("cpu")
    assert info.name
    assert info.cores >= 1
    assert info.memory_bytes > 1 << 28
    assert all(size > 0 for size in info.cache_bytes.values())
    assert info.subgroup_width in {4, 8, 16}
    assert info.notes == (library().note,)


def test_architectures_follow_from_flags(monkeypatch):
    v3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
    v4 = v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert _architectures(frozenset({"sse2"})) == ("x86-64",)
    assert _architectures(frozenset(v3)) == ("x86-64-v3", "x86-64")
    assert _architectures(frozenset(v4)) == ("x86-64-v4", "x86-64-v3", "x86-64")
    assert _architectures(frozenset(v4 - {"fma"})) == ("x86-64",)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert _architectures(frozenset({"asimd"})) == ("aarch64",)


def test_defaults_come_with_reasons():
    defaults = plugin.trivet_defaults(this_machine())
    assert {"block_size", "dtype", "layout"} == set(defaults)
    for value, reason in defaults.values():
        assert value
        assert len(reason) > 10


def test_every_implementation_is_accepted(dev):
    claims = sum(len(f.__trivet__) for f in plugin.trivet_implementations(this_machine()))
    missing = set() if "amx_bf16" in this_machine().features else {"cpu/onednn-bf16"}
    assert f"{claims - len(missing)} implementations" in str(dev.report)


def test_without_kernels_torch_and_the_references_remain(monkeypatch):
    monkeypatch.setattr(plugin, "library", lambda: Library({}, "not built"))
    names = {f.__module__ for f in plugin.trivet_implementations(this_machine())}
    always = ("dense_attention", "greedy_sampling", "linear", "embedding")
    assert names == {f"trivet_cpu.{n}" for n in always}


def test_an_engine_holds_the_kernel_itself(dev):
    facts = {"dtype": torch.bfloat16, "weight.dtype": torch.float32, "hidden": 576,
             "contiguous": True}  # fmt: skip
    assert dev.bind("rms_norm", facts) is norm.rms_norm
    facts["contiguous"] = ["x", "residual"]
    facts["residual.dtype"] = torch.bfloat16
    assert dev.bind("fused_add_rms_norm_", facts) is norm.fused_add_rms_norm_


def test_what_is_outside_of_the_domain_goes_to_the_reference(dev):
    x, weight = torch.ones(2, 8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    assert dev.ops.rms_norm(x, weight, 0.0).dtype == torch.float64
    column = torch.ones(8, 2).T
    assert torch.equal(dev.ops.rms_norm(column, torch.ones(8), 0.0), torch.ones(2, 8))


def test_the_packed_product_is_chosen_by_rows(dev):
    plan = dev.plan({"head": ("linear_packed", {
        "dtype": torch.float32, "in_features": 64, "out_features": 96, "tokens": "rows",
        "bias": None, "contiguous": True,
    })})  # fmt: skip
    weight = torch.randn(96, 64)
    handle = plan.prepare("head", weight)
    measured = (
        (linear.FACTS.grid, linear.linear_packed_grid),
        (linear.FACTS.float32, linear.linear_packed_float32),
        ((0, 10**6), linear.linear_packed),
    )
    edges = {1, 300} | {n for limits, _ in measured[:2] for n in limits or () if n}
    chosen = {
        n: next(f for limits, f in measured if limits and limits[0] <= n <= limits[1])
        for n in sorted(edges | {n + 1 for n in edges})
    }
    for rows, function in chosen.items():
        step = plan.at(rows=rows)
        assert step.head is function
        (pack,) = step.use([handle])
        x = torch.randn(rows, 64)
        torch.testing.assert_close(step.head(x, pack, 96), x @ weight.T, rtol=1e-4, atol=1e-4)


def test_properties_are_declared_where_they_are_tested():
    for function in plugin.trivet_implementations(this_machine()):
        for claim in function.__trivet__:
            kernels_or_copies = claim.name == "vec" or function.__module__.endswith(
                ("embedding", "greedy_sampling")
            )
            declared = claim.properties & PROPERTIES
            assert declared == (PROPERTIES if kernels_or_copies else set()), claim.target
            assert "graph_safe" not in claim.properties  # there is no graph to capture into


def test_importing_the_hooks_is_cheap_and_loads_no_kernel():
    code = (
        "import sys, torch, trivet_cpu.plugin\n"
        "assert 'trivet_cpu.norm' not in sys.modules\n"
        "from trivet_cpu._library import library\n"
        "assert library.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
