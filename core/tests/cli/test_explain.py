from __future__ import annotations

import pytest

from trivet.cli import explain

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
