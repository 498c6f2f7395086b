from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stand_ins import (
    OPS,
    linear_halves,
    make_device,
    norm_big,
    norm_small,
    norm_vec,
    sample_top,
    scatter,
    silu_into,
)
from trivet import require
from trivet.contracts import implements, one_of
from trivet.contracts.terms import Term
from trivet.errors import ConfigError, NoImplementation, UnknownName
from trivet.selection.choose import Row

PROVED = {
    "dtype": "float32",
    "weight.dtype": "float32",
    "hidden": 64,
    "contiguous": True,
    "weight_offset": 0.0,
    "weight_in_float32": True,
}


def call(tokens=4, hidden=64, kind=torch.float32, **scalars):
    return {"x": torch.randn(tokens, hidden).to(kind), "weight": torch.ones(hidden), **scalars}


@implements("rms_norm@1", name="any")
def norm_any(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return OPS["rms_norm"].reference(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )


@implements("rms_norm@1", name="twice", domain=norm_small.__trivet__[0].domain)
def norm_twice(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return OPS["rms_norm"].reference(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )


def test_each_candidate_says_yes_guarded_or_no_and_why():
    dev = make_device(norm_vec, norm_small, norm_big)
    rows = [str(r) for r in dev.explain("rms_norm", PROVED | {"tokens": range(1, 9)})]
    assert rows == [
        "acme/vec yes",
        "acme/small shadowed: acme/vec accepts all that it would",
        "acme/big no: tokens is 1..8, outside 65..",
        "reference shadowed: acme/vec accepts all that it would",
    ]
    rows = [str(r) for r in dev.explain("rms_norm", {"hidden": 12})]
    assert rows[0] == "acme/vec no: hidden = 12 is not a multiple of 8"
    assert rows[1] == "acme/small guarded: between(tokens, 1, 16)"


def test_an_arm_that_asks_as_much_as_an_earlier_one_is_shadowed():
    dev = make_device(norm_small, norm_twice, norm_any, norm_big)
    rows = {r.provider: r for r in dev.explain("rms_norm")}
    assert str(rows["acme/twice"]) == "acme/twice shadowed: acme/small accepts all that it would"
    assert rows["acme/any"].verdict == "yes"
    assert rows["acme/big"].verdict == rows["reference"].verdict == "shadowed"


def test_explain_says_what_runs_for_a_call():
    dev = make_device(norm_vec, norm_small, norm_big)
    rows = [str(r) for r in dev.explain("rms_norm", arguments=call(weight_in_float32=True))]
    assert rows == ["acme/vec runs", "acme/small yes", "acme/big no: tokens is 4, outside 65..",
                    "reference yes"]  # fmt: skip
    rows = [str(r) for r in dev.explain("rms_norm", arguments=call(tokens=20))]
    assert rows[0] == "acme/vec no: weight_in_float32 is False, not True"
    assert rows[3] == "reference runs"


@pytest.mark.parametrize("tokens", [4, 20, 70])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_explain_says_the_same_of_fake_tensors(tokens, kind):
    dev = make_device(norm_vec, norm_small, norm_big)
    real = call(tokens, kind=kind, weight_in_float32=True)
    mode = FakeTensorMode()
    fake = {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in real.items()}
    assert dev.explain("rms_norm", arguments=fake) == dev.explain("rms_norm", arguments=real)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"y": 1, **call()}, "rms_norm has no argument 'y'"),
        ({"x": torch.zeros(2, 8)}, "a call of rms_norm needs 'weight'"),
        ({}, "a call of rms_norm needs 'weight', 'x'"),
        ({"out": 1, **call()}, "rms_norm has no argument 'out'"),
    ],
)
def test_explain_refuses_what_is_no_call(arguments, problem):
    with pytest.raises(UnknownName, match=problem):
        make_device(norm_vec).explain("rms_norm", arguments=arguments)


def test_what_another_device_could_run_is_told_per_operator():
    row = Row("acme/vec", "no", "arch 'acme-2' is not here", "not for this device", elsewhere=True)
    unmet = (("sample_token", row),)
    dev = make_device(norm_vec, unmet=unmet)
    assert [str(r) for r in dev.explain("sample_token")] == [
        "reference yes",
        "acme/vec no: arch 'acme-2' is not here (not for this device)",
    ]
    assert dev.providers()["sample_token"] == ["acme/vec"]


# --- strict and require ---


def test_strict_refuses_the_reference_only_where_a_provider_exists():
    dev = make_device(sample_top, norm_vec, strict=True)
    assert dev.bind("silu_and_mul") is OPS["silu_and_mul"].reference
    assert dev.bind("sample_token", {"seqs": 1}) is sample_top
    reason = "strict mode refuses the reference where a provider exists"
    assert str(dev.explain("rms_norm")[-1]) == f"reference no: {reason}"
    with pytest.raises(NoImplementation) as caught:
        dev.bind("rms_norm", {"hidden": 12})
    assert [str(r) for r in caught.value.trace] == [
        "acme/vec no: hidden = 12 is not a multiple of 8",
        f"reference no: {reason}",
    ]
    assert "hidden = 12 is not a multiple of 8" in str(caught.value)
    assert "strict mode" in caught.value.fix


def test_strict_allows_a_reference_that_was_asked_for():
    dev = make_device(norm_vec, strict=True)
    bound = dev.bind("rms_norm", {"hidden": 12}, prefer={"rms_norm": "reference"})
    assert bound is OPS["rms_norm"].reference


def test_strict_and_a_reference_that_the_environment_asks_for_are_a_conflict(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=reference")
    with pytest.raises(ConfigError) as caught:
        make_device(norm_vec, strict=True).bind("rms_norm")
    asked = "the reference for rms_norm is asked for by TRIVET_PROVIDERS rms_norm and refused by"
    assert caught.value.what == f"{asked} strict=True"
    monkeypatch.setenv("TRIVET_STRICT", "1")
    dev = make_device(norm_vec)
    with pytest.raises(ConfigError) as caught:
        dev.bind("rms_norm")
    assert caught.value.what == f"{asked} TRIVET_STRICT"
    monkeypatch.delenv("TRIVET_PROVIDERS")
    (tmp_path / "trivet.toml").write_text('[providers]\n"*" = ["reference"]\n')
    with pytest.raises(ConfigError, match=r"trivet\.toml \[providers\] \* and refused by"):
        dev.bind("rms_norm")
    assert dev.bind("silu_and_mul") is OPS["silu_and_mul"].reference, "no provider, no conflict"


def test_strict_comes_from_settings_too(monkeypatch):
    dev = make_device(norm_vec)
    assert dev.bind("rms_norm", {"hidden": 12}) is OPS["rms_norm"].reference
    monkeypatch.setenv("TRIVET_STRICT", "1")
    with pytest.raises(NoImplementation):
        dev.bind("rms_norm", {"hidden": 12})


def test_where_nothing_accepts_a_call_the_last_arm_says_why():
    guard = make_device(norm_vec, norm_big, strict=True).ops.rms_norm
    guard(**call(weight_in_float32=True))
    with pytest.raises(NoImplementation) as caught:
        guard(**call(tokens=20, hidden=12))
    assert caught.value.what.startswith("no implementation of rms_norm accepts this call")
    assert [str(r) for r in caught.value.trace] == [
        "acme/vec no: hidden = 12 is not a multiple of 8",
        "acme/big no: tokens is 20, outside 65..",
        "reference no: strict mode refuses the reference where a provider exists",
    ]


def test_the_refusal_knows_the_out_form_and_the_plain_writer():
    dev = make_device(silu_into, scatter, strict=True)
    with pytest.raises(NoImplementation, match="inter = 3 is not a multiple of 4"):
        dev.ops.silu_and_mul_out(torch.zeros(2, 6), out=torch.zeros(2, 3))
    cache = torch.zeros(2, 4, 1, 8)
    rows = torch.zeros(1, 1, 8)
    with pytest.raises(NoImplementation, match="layout is HND, not NHD"):
        dev.ops.kv_cache_write(rows, rows, cache, cache.clone(), torch.tensor([0]), layout="HND")


def test_a_plan_that_requires_names_every_operator_without():
    sites = {
        "norm": ("rms_norm", {}),
        "head": ("sample_token", {}),
        "gate": ("silu_and_mul", {}),
    }
    dev = make_device(norm_small, sample_top, required=frozenset({"batch_invariant"}))
    with pytest.raises(NoImplementation) as caught:
        dev.plan(sites)
    assert "declares batch_invariant for: silu_and_mul" in caught.value.what
    assert "rms_norm" not in caught.value.what
    del sites["gate"]
    with pytest.raises(NoImplementation, match="tokens is 20"):
        dev.plan(sites | {"norm": ("rms_norm", {"tokens": 20})})
    plan = dev.plan(sites | {"norm": ("rms_norm", {"tokens": 4})})
    assert plan.norm is norm_small


def test_the_reference_declares_what_it_is_asked_for():
    dev = make_device()
    with require("graph_safe", "stream_ordered", "deterministic"):
        plan = dev.plan({"norm": ("rms_norm", {})})
    assert plan.norm is OPS["rms_norm"].reference


def test_capture_needs_graph_safe():
    dev = make_device(norm_small, norm_vec)
    rows = {r.provider: str(r) for r in dev.explain("rms_norm", mode="captured")}
    assert rows["acme/small"] == ("acme/small no: does not declare graph_safe, which capture needs")
    assert rows["acme/vec"].startswith("acme/vec guarded")
    with pytest.raises(NoImplementation, match="graph_safe, which capture needs"):
        dev.plan({"a": ("paged_attention", {})}, mode="captured")


# --- terms of a vendor's own ---


@dataclass(frozen=True)
class Moody(Term):
    """Raises whatever it is asked."""

    kind = "moody"

    def decide(self, view):
        raise {"empty": ValueError(), "text": KeyError("not today")}[self.path]

    @property
    def paths(self):
        return ()


@pytest.mark.parametrize(
    ("path", "reason"),
    [("empty", "moody(empty) cannot be decided here: ValueError"),
     ("text", "moody(text) cannot be decided here: 'not today'")],
)  # fmt: skip
def test_a_term_that_raises_is_a_no_with_a_reason(path, reason):
    function = implements("linear_packed@1", name="moody", domain=[Moody(path)])(linear_moody)
    function.__trivet__ = function.__trivet__[-1:]
    dev = make_device(function)
    assert str(dev.explain("linear_packed")[0]) == f"acme/moody no: {reason}"
    x = torch.zeros(2, 4)
    assert torch.equal(dev.ops.linear_packed(x, [torch.zeros(3, 4)], 3), torch.zeros(2, 3))


def linear_moody(x, packed, out_features, bias=None):
    raise AssertionError("a moody kernel must not run")


def test_of_one_provider_the_nearest_form_is_taken():
    names = {r.provider for r in make_device(linear_halves).explain("linear_packed")}
    assert names == {"acme/halves", "reference"}
    dev = make_device(norm_same_out, norm_same)
    assert dev.bind("rms_norm", {"weight_offset": 0.0}) is norm_same
    assert dev.bind("rms_norm_out", {"weight_offset": 0.0}) is norm_same_out
    assert "derived from the out form" in str(dev.explain("rms_norm_")[0])


@implements("rms_norm_out@1", name="same", domain=[one_of("weight_offset", 0.0)])
def norm_same_out(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, *, out
):
    out.copy_(
        OPS["rms_norm"].reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    )


@implements("rms_norm@1", name="same")
def norm_same(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return OPS["rms_norm"].reference(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("rms_nrom", "no operator 'rms_nrom'"),
        ("rms_norm@2", "operator 'rms_norm' is at version 1, not 2"),
        ("rms_norm@new", "operator 'rms_norm' is at version 1, not new"),
        ("linear_", "linear has no in-place form"),
        ("kv_cache_write_out", "kv_cache_write has no out form, it writes its arguments"),
        ("", "no operator ''"),
        (None, "no operator None"),
        (5, "no operator 5"),
    ],
)
def test_unknown_operators_and_forms_are_refused(name, problem):
    with pytest.raises(UnknownName) as caught:
        make_device(norm_vec).bind(name)
    assert problem in caught.value.what
    assert caught.value.fix
