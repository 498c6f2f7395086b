from __future__ import annotations

import pytest

from trivet.cli import explain

BAD = """
from trivet.contracts import DeviceInfo, contiguous, feature, implements
def trivet_devices(): return [DeviceInfo("mini")]
def trivet_implementations(device): return [bad, bad_out, tall, view]
@implements("rms_norm@1", name="bad")
def bad(x, weight, eps=1e-6, offset=0.0, weight_in_float32=False, variance_size=0): return x
@implements("rms_norm_out@1", name="bad")
def bad_out(x, weight, *, out): out.copy_(x)
@implements("silu@1", name="tall", requires=[feature("tall")])
def tall(x): return x
@implements("gelu@1", name="view", domain=[contiguous("x")])
def view(x, approximate="none"): return x
"""
"""A plugin with a provider that is refused, twice, one that is unmet, and one of dense inputs."""

SETTLED = ["--fact", "dtype=float32", "--fact", "weight.dtype=float32", "--fact", "hidden=576",
           "--fact", "weight_offset=0.0"]  # fmt: skip


def verdicts(found) -> dict[str, str]:
    return {c["provider"]: c["verdict"] for c in found["candidates"]}


def test_without_facts_candidates_are_guarded(cli, acme):
    found = cli.json("explain", "rms_norm")
    assert list(found) == list(explain.KEYS)
    assert verdicts(found) == {"acme/vec": "guarded", "reference": "yes"}
    assert found["runs"] == ["acme/vec", "reference"]
    assert found["example"] is None
    assert "divisible(hidden, 8)" in found["candidates"][0]["reason"]


def test_facts_that_prove_the_domain_shadow_the_rest(cli, acme):
    found = cli.json("explain", "rms_norm", *SETTLED)
    assert verdicts(found) == {"acme/vec": "yes", "reference": "shadowed"}
    assert found["facts"]["x.dtype"] == "float32"


def test_a_fact_outside_the_domain_is_a_no_with_the_reason(cli, acme):
    found = cli.json("explain", "rms_norm", "--fact", "hidden=570")
    assert verdicts(found)["acme/vec"] == "no"
    assert found["candidates"][0]["reason"] == "hidden = 570 is not a multiple of 8"


def test_ranges_and_absent_arguments_are_facts(cli, acme):
    found = cli.json("explain", "silu_and_mul", "--fact", "tokens=1..4")
    assert verdicts(found)["acme/small"] == "yes"
    assert found["facts"]["tokens"] == [1, 4]
    assert "facts: tokens=1..4" in cli("explain", "silu_and_mul", "--fact", "tokens=1..4").stdout
    found = cli.json("explain", "linear", "--fact", "bias=none", "--fact", "contiguous=x,weight")
    assert found["facts"]["bias"] is None
    assert found["facts"]["weight.contiguous"] is True


def test_what_the_device_cannot_run_is_listed(cli, acme):
    found = cli.json("explain", "silu_and_mul")
    assert verdicts(found)["acme/never"] == "no"
    assert found["candidates"][-1]["reason"] == "feature 'tall' is not here"


def test_an_example_says_which_one_runs(cli, acme):
    assert cli.json("explain", "rms_norm", "--shape", "x=2x3x576")["runs"] == ["acme/vec"]
    found = cli.json("explain", "rms_norm", "--shape", "x=2x3x570")
    assert found["runs"] == ["reference"]
    assert found["example"]["x"] == "float32 [2, 3, 570]"
    assert found["example"]["weight"] == "float32 [570]"
    text = cli("explain", "rms_norm", "--shape", "x=2x3x570").stdout
    assert "runs: reference" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_example_takes_sizes_dtypes_and_scalars(cli, acme):
    found = cli.json("explain", "silu_and_mul", "--size", "tokens=5", "--size", "inter=4")
    assert found["runs"] == ["reference"]
    found = cli.json("explain", "rms_norm", "--shape", "x=4x16", "--dtype", "W=bfloat16")
    assert found["runs"] == ["reference"]
    assert found["example"]["weight"] == "bfloat16 [16]"
    found = cli.json("explain", "rms_norm", "--shape", "x=4x16", "--fact", "weight_offset=1.0")
    assert found["runs"] == ["reference"]
    found = cli.json("explain", "rms_norm", "--shape", "x=4x16", "--fact", "dtype=bfloat16")
    assert found["example"]["x"] == "bfloat16 [4, 16]"


def test_an_example_of_every_kind_of_argument(cli, acme):
    found = cli.json("explain", "linear_packed", "--shape", "x=2x8", "--size", "out_features=4",
                     "--fact", "bias=none")  # fmt: skip
    assert found["runs"] == ["acme/mm"]
    assert found["example"]["bias"] == "none"
    shapes = ["--shape", "q=5x4x32", "--shape", "k_cache=7x16x2x32", "--shape", "block_table=2x3"]
    found = cli.json("explain", "paged_attention", *shapes)
    assert found["example"]["query_start"] == "int32 [3]"
    assert found["runs"] == ["reference"]
    out = cli.json("explain", "rms_norm_out", "--shape", "x=2x8")
    assert (out["form"], out["example"]["out"]) == ("out", "float32 [2, 8]")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["rms_norm", "--fact", "hiden=5"], "fact 'hiden' is no dim"),
        (["rms_norm", "--fact", "hidden"], "'hidden' is not of the form PATH=VALUE"),
        (["rms_norm", "--fact", "hidden=4", "--fact", "hidden=5"], "given twice"),
        (["rms_norm", "--fact", "hidden=8..2"], "empty range"),
        (["rms_norm", "--fact", "dtype=flot32"], "fact 'dtype' of rms_norm cannot be 'flot32'"),
        (["rms_norm", "--shape", "x=3xx4"], "no shape such as 7x576"),
        (["rms_norm", "--shape", "y=3x4"], "no argument with a shape 'y'"),
        (["rms_norm", "--size", "hiden=4"], "no size 'hiden'; use one of hidden"),
        (["rms_norm", "--shape", "x=3x4", "--dtype", "flot32"], "did you mean float32"),
        (["rms_norm", "--shape", "x=3x4", "--dtype", "V=float32"], "no dtype variable 'V'"),
        (["rms_norm", "--dtype", "float32"], "give --shape too"),
        (["rms_norm", "--shape", "x=3x4", "--shape", "weight=5"], "hidden"),
        (
            ["rms_norm", "--shape", "x=3x4", "--fact", "hidden=8"],
            "contradicts the fact hidden=8: it has",
        ),
        (["rms_norm", "--shape", "x=3x4", "--fact", "hidden=8..9"], "contradicts the fact hidden"),
        (["linear", "--shape", "x=3x4"], "needs the size 'out_features'"),
        (["rms_norm", "--mode", "lazy"], "'lazy' is not one of"),
        (["rms_norm", "--fact", "contiguous=false"], "facts are positive"),
        (["rms_norm", "--fact", "x.contiguous=False"], "facts are positive"),
        (["rms_norm", "--strides", "x=8,1"], "give --shape or --size too"),
        (["rms_norm", "--shape", "x=3x4", "--strides", "x=8"], "x: 1 strides for a shape of 2"),
        (["rms_norm", "--shape", "x=3x4", "--strides", "x=8;1"], "no strides such as 128,2"),
        (["rms_norm", "--shape", "x=3x4", "--strides", "y=8,1"], "no argument with strides 'y'"),
        (
            ["rms_norm", "--shape", "x=3x4", "--strides", "x=8,2", "--fact", "contiguous=true"],
            "contradicts the fact x.contiguous",
        ),
        (
            ["norm"],
            "use one of rms_norm, layer_norm, fused_add_rms_norm, qk_rms_norm (all: trivet ops)",
        ),
    ],
)
def test_what_cannot_be_is_one_message(cli, acme, args, text):
    result = cli("explain", *args, code=2)
    assert text in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_source_is_the_guard_the_derived_function_or_the_own_one(cli, acme):
    guard = cli.json("explain", "rms_norm", "--source")["source"]
    assert guard.startswith("def rms_norm(x, weight")
    assert "_f1(" in guard
    derived = cli.json("explain", "rms_norm", *SETTLED, "--source")["source"]
    assert "_empty_like(x" in derived
    own = cli.json("explain", "rms_norm_out", *SETTLED, "--source")["source"]
    assert own.startswith("# no guard: the function norm of fake_acme_dist:")
    assert "def rms_norm(x, weight" in cli("explain", "rms_norm", "--source").stdout


def test_modes_change_what_is_admitted(cli, acme):
    found = cli.json("explain", "silu_and_mul", "--mode", "captured")
    assert "does not declare graph_safe" in found["candidates"][0]["reason"]


def test_nothing_that_may_run_is_exit_code_1_with_every_reason(cli, acme, monkeypatch):
    monkeypatch.setenv("TRIVET_FORBID", "rms_norm=acme/vec,reference")
    found = cli.json("explain", "rms_norm", "--source", code=1)
    assert found["runs"] == []
    assert verdicts(found) == {"acme/vec": "no", "reference": "no"}
    assert "forbidden by TRIVET_FORBID" in found["candidates"][0]["reason"]
    assert "nothing may run" in cli("explain", "rms_norm", code=1).stdout


# --- what order lists name and what cannot run ---


@pytest.fixture
def mini(dists):
    dists.add("mini-dist", "mini", BAD)


def test_a_refusal_is_one_row_of_the_asked_form_with_place_and_fix(cli, mini):
    found = cli.json("explain", "rms_norm")
    assert verdicts(found) == {"reference": "yes", "mini/bad": "no"}
    row = found["candidates"][-1]
    assert row["reason"].startswith("parameter 4 is 'offset', the operator has 'weight_offset'")
    assert row["reason"].endswith("fake_mini_dist.py:5)")
    assert row["note"] == "refused"
    assert row["fix"].startswith("def bad(x, weight, eps=1e-06, weight_offset=0.0")
    out = cli.json("explain", "rms_norm_out")["candidates"]
    assert [r["fix"].endswith("*, out)") for r in out] == [False, True]
    assert "fix: def bad(x, weight" in " ".join(cli("explain", "rms_norm").stdout.split())


def test_a_preferred_provider_that_was_refused_is_a_problem(cli, mini, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=mini/bad;silu=mini/tall")
    found = cli.json("explain", "rms_norm", code=1)
    first = found["candidates"][0]
    assert first["provider"] == "mini/bad"
    assert first["note"] == "preferred by TRIVET_PROVIDERS rms_norm, but refused"
    assert found["runs"] == ["reference"]
    text = cli("explain", "rms_norm", code=1).stdout
    assert "but refused" in " ".join(text.split())
    note = cli.json("explain", "silu", code=1)["candidates"][0]["note"]
    assert note == "preferred by TRIVET_PROVIDERS silu, but not for this device"
    monkeypatch.delenv("TRIVET_PROVIDERS")
    (tmp_path / "trivet.toml").write_text('[providers]\nrms_norm = ["mini/bad"]\n')
    assert (
        "[providers] rms_norm, but refused"
        in cli.json("explain", "rms_norm", code=1)["candidates"][0]["note"]
    )


def test_strict_mode_with_nothing_but_a_refused_provider_says_what_to_mend(cli, mini, monkeypatch):
    monkeypatch.setenv("TRIVET_STRICT", "1")
    text = " ".join(cli("explain", "rms_norm", code=1).stdout.split())
    assert "fix: mend mini/bad: def bad(x, weight, eps=1e-06" in text
    assert "leave strict mode" not in text


def test_the_reason_of_the_first_place_is_said(cli, acme, monkeypatch):
    assert cli.json("explain", "rms_norm")["order"].startswith("nothing was preferred; acme/vec")
    add = ACME_EXTENDS.replace("MARK", "rms_norm@1").replace("NAME", "more")
    acme.add("add-dist", "add", add, extends="acme")
    monkeypatch.setenv("TRIVET_ALLOW", "acme,add")
    order = cli.json("explain", "rms_norm")["order"]
    assert order.endswith("acme/vec is first: the device's own plugin comes first")
    assert "the device's own plugin comes first" in " ".join(
        cli("explain", "rms_norm").stdout.split()
    )
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=add/more")
    assert cli.json("explain", "rms_norm")["order"] == "an order list names add/more first"


ACME_EXTENDS = """
from trivet.contracts import implements
def trivet_implementations(device): return [norm]
@implements("MARK", name="NAME")
def norm(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return x
"""


def test_a_call_of_views_is_explained(cli, mini):
    assert cli.json("explain", "gelu", "--shape", "x=4x8")["runs"] == ["mini/view"]
    views = ["--shape", "x=4x8", "--strides", "x=16,2"]
    assert cli.json("explain", "gelu", *views)["runs"] == ["reference"]


def test_a_lock_is_not_applied_and_this_is_said(cli, acme, plan_file, monkeypatch):
    lock = str(plan_file.with_name("lock.json"))
    cli("plan", str(plan_file), "--save", lock)
    assert cli.json("explain", "rms_norm")["notes"] == []
    monkeypatch.setenv("TRIVET_LOCK", lock)
    (note,) = cli.json("explain", "rms_norm")["notes"]
    assert "is not applied here" in note
    assert "not applied here" in " ".join(cli("explain", "rms_norm").stdout.split())
