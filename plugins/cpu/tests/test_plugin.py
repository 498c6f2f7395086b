from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import trivet
from trivet_cpu import compiled, on_torch, plugin
from trivet_cpu.compiled import norm
from trivet_cpu.kernel_library import Library, library
from trivet_cpu.machine import _architectures, this_machine
from trivet_cpu.memory import pages
from trivet_cpu.on_torch import linear

PROPERTIES = {"graph_safe", "deterministic", "batch_invariant"}
ORDER = {
    "attention@1": ["torch", "torch-masked", "vec"],
    "linear_packed@1": ["grid", "onednn", "onednn-bf16", "onednn-widened", "torch"],
    "sample_token@1": ["vec", "torch"],
}
"""Where there are several: every name that some machine offers, as they are preferred."""


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
    assert info.notes == (library().note, pages.note())


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
    found = plugin.trivet_implementations(this_machine())
    assert {f.__module__.rpartition(".")[0] for f in found} == {on_torch.__name__}
    targets = {claim.target.partition("@")[0] for f in found for claim in f.__trivet__}
    assert targets >= {"attention", "embedding", "linear", "linear_packed", "sample_token"}


def test_the_order_of_several_providers_is_the_one_written_down():
    found: dict[str, list[str]] = {}
    for function in plugin.trivet_implementations(this_machine()):
        for claim in function.__trivet__:
            found.setdefault(claim.target, []).append(claim.name)
    several = {target: names for target, names in found.items() if len(names) > 1}
    here = {t: [name for name in names if name in found[t]] for t, names in ORDER.items()}
    assert several == here, "one more provider of an operator, or another order, stands in ORDER"


@pytest.mark.parametrize("folder", [compiled, on_torch])
def test_a_new_module_is_found_by_itself(folder, tmp_path, monkeypatch):
    (tmp_path / "zzz_new.py").write_text(
        "from trivet.contracts import implements\n"
        '@implements("silu@1", name="new")\n'
        "def silu(x): return x\n"
    )
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    found = plugin.trivet_implementations(this_machine())
    monkeypatch.delitem(sys.modules, f"{folder.__name__}.zzz_new")
    assert [c.name for f in found for c in f.__trivet__ if c.target == "silu@1"][-1] == "new"


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


def test_properties_are_declared_where_a_module_promises_them():
    for function in plugin.trivet_implementations(this_machine()):
        module = sys.modules[function.__module__]
        folder = sys.modules[module.__name__.rpartition(".")[0]]
        promised = getattr(module, "PROMISES", folder.PROMISES)
        for claim in function.__trivet__:
            declared = claim.properties & PROPERTIES
            assert declared == promised, (
                f"{claim.target} by {claim.name} declares {sorted(declared)}, its module or folder "
                f"promises {sorted(promised)}: declare them, or write PROMISES in {module.__name__}"
            )


def test_importing_the_hooks_is_cheap_and_loads_no_kernel():
    code = (
        "import sys, torch, trivet_cpu.plugin\n"
        "assert 'trivet_cpu.compiled.norm' not in sys.modules\n"
        "from trivet_cpu.kernel_library import library\n"
        "assert library.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
