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
        (["rms_norm=acme/vek,reference"], "'acme/vek'"),
        (["rms_nrm=a,b"], "use one of rms_norm"),
        (["rms_norm_=acme/vec,reference"], "compares the plain form"),
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
