from __future__ import annotations

import pytest
import torch

from trivet.catalogue import operators
from trivet.cli import ab
from trivet.cli.comparison import difference

QUICK = ["--rounds", "1"]


def test_every_documented_key_and_the_parts_of_a_case(cli, acme):
    found = cli.json("ab", "rms_norm=acme/vec,reference", *QUICK)
    assert list(found) == list(ab.KEYS)
    assert found["providers"] == ["acme/vec", "reference"]
    assert found["clock"] == "cpu"
    op = operators()["rms_norm"]
    assert len(found["cases"]) == len(op.cases.sizes) * len(op.cases.scalars)
    case = found["cases"][0]
    assert case["skipped"] == ""
    assert case["bytes"] == (2 * 128 + 128) * 4
    first, second = case["sides"]
    assert case["ratio"] == pytest.approx(first["seconds"] / second["seconds"])
    assert first["gb_per_s"] == pytest.approx(case["bytes"] / first["seconds"] / 1e9)
    assert 0 < first["error"]["max"] < 1e-5
    assert case["difference"]["max"] < 1e-5
    assert case["difference"]["elements"] == 128


def test_cases_outside_a_domain_are_counted_not_compared(cli, acme):
    found = cli.json("ab", "rms_norm=acme/vec,reference", *QUICK)
    skipped = [c for c in found["cases"] if c["skipped"]]
    reasons = [
        f"acme/vec: outside its domain: {why}"
        for why in ("weight_offset is 1.0, not 0.0", "hidden = 514 is not a multiple of 8")
    ]
    assert set(reasons) < {c["skipped"] for c in skipped}
    assert all(c["ratio"] is None and c["difference"] is None for c in skipped)
    told = f"{len(skipped)} of {len(found['cases'])} cases, which one of the two does not run"
    assert told in found["not_measured"]


def test_cases_without_elements_are_not_timed(cli, acme):
    found = cli.json("ab", "silu_and_mul=acme/small,reference", "--size", "tokens=0", *QUICK)
    (case,) = found["cases"]
    assert (case["ratio"], case["sides"][0]["seconds"], found["ratio"]) == (None, None, None)
    assert "1 of 1 cases, which have no elements" in found["not_measured"]


def test_sizes_replace_the_declared_cases(cli, acme):
    found = cli.json("ab", "silu_and_mul=acme/small,reference", "--size", "tokens=3", *QUICK)
    (case,) = found["cases"]
    assert case["sizes"] == {
        "tokens": 3,
        "inter": operators()["silu_and_mul"].cases.sizes[0]["inter"],
    }
    found = cli.json(
        "ab", "silu_and_mul=acme/small,reference", "--size", "tokens=5", *QUICK, code=1
    )
    assert found["cases"][0]["skipped"].endswith("tokens is 5, outside 0..4")


def test_a_prepared_weight_is_packed_for_each(cli, acme):
    found = cli.json("ab", "linear_packed=acme/mm,reference", *QUICK)
    errors = [c["difference"]["max"] for c in found["cases"] if c["difference"]["elements"]]
    assert errors
    assert max(errors) < 1e-3
    assert "packing the weight" in found["not_measured"]


@pytest.mark.parametrize("name", [n for n in operators() if n != "rms_norm"])
def test_every_operator_can_be_compared_with_itself(cli, dists, name):
    found = cli.json("ab", f"{name}=reference,reference", *QUICK)
    for case in found["cases"]:
        assert case["difference"]["max"] in {0.0, None}
        assert case["difference"]["mismatches"] == 0
        assert case["sides"][0]["error"]["mismatches"] == 0


def test_a_provider_that_raises_is_named_with_exit_code_1(cli, acme):
    found = cli.json("ab", "sample_token=acme/raises,reference", *QUICK, code=1)
    assert found["cases"][0]["skipped"] == "acme/raises raises RuntimeError: no such instruction"


def test_what_a_provider_prints_or_refuses_does_not_spoil_the_document(cli, acme):
    path = acme.folder / "fake_acme_dist.py"
    text = path.read_text().replace(
        'raise RuntimeError("no such instruction")',
        'print("noise"); from trivet.errors import DomainError; raise DomainError("no rows")',
    )
    path.write_text(text)
    found = cli.json("ab", "sample_token=acme/raises,reference", *QUICK, code=1)
    assert found["cases"][0]["skipped"].startswith("acme/raises raises DomainError: no rows")
    result = cli("ab", "sample_token=acme/raises,reference", *QUICK, code=1)
    assert "printed by a provider: noise" in result.stderr
    assert "noise" not in result.stdout


def test_a_provider_that_this_device_lacks_is_not_compared(cli, acme):
    found = cli.json("ab", "silu_and_mul=acme/never,reference", *QUICK, code=1)
    assert "not for this device: feature 'tall' is not here" in found["cases"][0]["skipped"]


def test_options_are_said_and_threads_are_put_back(cli, acme):
    before = torch.get_num_threads()
    found = cli.json("ab", "silu_and_mul=acme/small,reference", "--size", "tokens=2", "--threads",
                     "2", "--no-oracle", "--dtype", "bfloat16", *QUICK)  # fmt: skip
    assert (found["threads"], found["clock"], found["dtype"]) == (2, "wall", "bfloat16")
    assert found["cases"][0]["sides"][0]["error"] is None
    assert "errors against the oracle" in found["not_measured"]
    assert torch.get_num_threads() == before


def test_the_text_fits_80_columns(cli, acme):
    text = cli("ab", "rms_norm=acme/vec,reference", *QUICK).stdout
    assert max(map(len, text.splitlines())) <= 80
    for part in ("max difference", "GB/s", "not measured:", "tokens=7 hidden=576"):
        assert part in text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["rms_norm"], "OPERATOR=FIRST,SECOND"),
        (["rms_norm=acme/vec"], "two providers"),
        (
            ["rms_norm=acme/vek,reference"],
            "ab: rms_norm has no provider 'acme/vek' fix: use one of",
        ),
        (["rms_norm=acme/vek,reference"], "acme/vec (all: trivet ops rms_norm)"),
        (["rms_nrm=a,b"], "use one of rms_norm"),
        (["silu_and_mul_=acme/small,reference"], "silu_and_mul has no in-place form"),
        (
            ["rms_norm=acme/vec,reference", "--size", "hiden=3"],
            "no size 'hiden'; use one of hidden",
        ),
        (["rms_norm=acme/vec,reference", "--size", "hidden=-3"], "no size"),
        (["rms_norm=acme/vec,reference", "--dtype", "flot32"], "did you mean float32"),
        (["rms_norm=acme/vec,reference", "--rounds", "0"], "0"),
    ],
)
def test_what_cannot_be_is_one_message(cli, acme, args, text):
    assert text in " ".join(cli("ab", *args, code=2).stderr.split())


def test_a_forbidden_provider_is_said_in_the_words_of_the_command(cli, acme, monkeypatch):
    monkeypatch.setenv("TRIVET_FORBID", "rms_norm=acme/vec")
    text = cli("ab", "rms_norm=acme/vec,reference", code=2).stderr
    assert "ab cannot run 'acme/vec': TRIVET_FORBID rms_norm forbids it for rms_norm" in text


# --- what is wrong ---

WRONG = """
import torch
from trivet.contracts import DeviceInfo, implements
def trivet_devices(): return [DeviceInfo("odd")]
def trivet_implementations(device):
    return [writes, percent, percent_linear, other, shape, last_bit, good_]
@implements("silu@1", name="writes")
def writes(x):
    y = torch.nn.functional.silu(x)
    x.mul_(0)
    return y
@implements("silu@1", name="percent")
def percent(x): return torch.nn.functional.silu(x) * 1.01
@implements("linear@1", name="percent")
def percent_linear(x, weight, bias=None): return torch.nn.functional.linear(x, weight, bias) * 1.01
@implements("embedding@1", name="bit")
def last_bit(ids, weight): return weight[ids] * (1 + torch.finfo(weight.dtype).eps)
@implements("sample_token@1", name="first")
def other(logits, temperature=None, top_k=None, top_p=None, min_p=None, seed=None, position=None):
    return logits.argmin(-1)
@implements("gelu@1", name="shape")
def shape(x, approximate="none"): return x.reshape(-1)
@implements("gelu_@1", name="writes")
def good_(x, approximate="none"): x.copy_(torch.nn.functional.gelu(x, approximate=approximate))
"""


@pytest.fixture
def odd(dists):
    dists.add("odd-dist", "odd", WRONG)


@pytest.mark.parametrize("pair", ["odd/writes,reference", "reference,odd/writes"])
def test_a_provider_that_writes_its_input_is_told_and_spoils_no_other(cli, odd, pair):
    found = cli.json("ab", f"silu={pair}", *QUICK, code=1)
    assert found["problems"] == ["silu (odd/writes): changed its input 'x'"]
    assert {c["skipped"] for c in found["cases"] if 0 not in c["sizes"].values()} == {
        "silu (odd/writes): changed its input 'x'"
    }
    text = cli("ab", f"silu={pair}", *QUICK, code=1).stdout
    assert "problem: silu (odd/writes): changed its input 'x'" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["silu", "linear"])
def test_a_percent_is_outside_the_budget(cli, odd, name, dtype):
    options = ["--dtype", dtype, *QUICK]
    found = cli.json("ab", f"{name}=odd/percent,reference", *options, code=1)
    case = next(c for c in found["cases"] if c["difference"]["elements"])
    first, second = case["sides"]
    assert first["budget"] > 1 > second["budget"]
    assert second["wrong"] == 0
    assert found["problems"]
    assert all(p.startswith("odd/percent is wrong: ") for p in found["problems"])


@pytest.mark.parametrize("pair", ["embedding=odd/bit", "sample_token=odd/first"])
def test_another_choice_and_other_bits_are_wrong(cli, odd, pair):
    found = cli.json("ab", f"{pair},reference", *QUICK, code=1)
    first, second = found["cases"][0]["sides"]
    assert first["budget"] is second["budget"] is None
    assert first["wrong"] > 0
    assert second["wrong"] == 0
    text = cli("ab", f"{pair},reference", *QUICK, code=1).stdout
    assert "equal" in text
    assert f"is wrong in {first['wrong']} elements" in text


def test_results_of_another_shape_are_told(cli, odd):
    found = cli.json("ab", "gelu=odd/shape,reference", *QUICK, code=1)
    assert "gelu (odd/shape): result 0 is float32[" in found["problems"][0]


@pytest.mark.parametrize(
    "name",
    [
        f"{n}{s}"
        for n in ("rms_norm", "fused_add_rms_norm", "rotary_embedding", "qk_rms_norm", "silu")
        for s in ("_", "_out")
    ],
)
def test_the_other_forms_are_compared(cli, dists, name):
    found = cli.json("ab", f"{name}=reference,reference", *QUICK)
    assert found["operator"] == name
    assert found["problems"] == []
    compared = [c for c in found["cases"] if c["difference"] and c["difference"]["elements"]]
    assert compared
    assert all(c["sides"][0]["budget"] <= 1 for c in compared)
    assert bool(compared[0]["sides"][0]["seconds"]) is name.endswith("_out")
    left_out = "time: a call changes what the next one reads"
    assert (left_out in found["not_measured"]) is name.endswith("_")


def test_a_form_that_a_vendor_supplies_is_compared(cli, odd):
    assert cli.json("ab", "gelu_=odd/writes,reference", *QUICK)["problems"] == []


def test_empty_cases_are_not_printed(cli, acme):
    text = cli("ab", "rms_norm=acme/vec,reference", *QUICK).stdout
    assert "tokens=0" not in text
    assert "which have no elements" in text


# --- statistics ------------------------------------------------------------------------------


def test_difference_counts_what_is_finite_on_one_side_only():
    inf, nan = float("inf"), float("nan")
    got = torch.tensor([1.0, nan, inf, nan, -inf])
    want = torch.tensor([1.5, nan, inf, 2.0, inf])
    found = difference([got], [want])
    assert (found["max"], found["mismatches"], found["elements"]) == (0.5, 2, 5)


def test_difference_of_integers_counts_those_that_differ():
    found = difference([torch.tensor([1, 2, 3])], [torch.tensor([1, 5, 3])])
    assert found == {
        "max": None,
        "mean": None,
        "relative_rms": None,
        "mismatches": 1,
        "elements": 3,
    }


def test_difference_is_relative_to_the_second():
    found = difference([torch.tensor([3.0, 4.5])], [torch.tensor([3.0, 4.0])])
    assert found["relative_rms"] == pytest.approx(0.1)
    assert found["mean"] == pytest.approx(0.25)
