"""What is right at a point: two formulas that agree, a budget from many draws, and choices."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from toy import scaled

from trivet.catalogue import operators
from trivet.judging.statistics import Errors
from trivet_conformance.calls.points import make
from trivet_conformance.judging import judge as judging
from trivet_conformance.judging import truth as module
from trivet_conformance.judging.judge import judge, settle, wrong_results
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Status

DTYPES = {"T": torch.float32, "B": torch.float32}
POINT = make({"tokens": 40, "width": 64}, {}, DTYPES)


def with_oracle(oracle):
    return dataclasses.replace(scaled, oracle=oracle)


def test_a_wrong_oracle_is_an_error_and_not_a_verdict():
    op = with_oracle(lambda x, scale=2.0, bias=None, kind="plain": x * scale * (1 + 1e-9) + bias)
    with pytest.raises(Disagreement, match="disagree in float64"):
        Bench(0).truth(op, POINT)


def test_an_oracle_that_raises_is_an_error():
    with pytest.raises(Disagreement, match="the oracle raised ZeroDivisionError"):
        Bench(0).truth(with_oracle(lambda *_: 1 / 0), POINT)


def test_the_budget_comes_from_at_least_eight_fresh_draws(monkeypatch):
    seen = []
    original = module.arguments

    def counting(op, point, seed, draw):
        seen.append(draw)
        return original(op, point, seed, draw)

    monkeypatch.setattr(module, "arguments", counting)
    Bench(0).truth(scaled, POINT)
    assert len(set(seen) - {0}) >= 8


def test_the_reference_itself_is_accepted_and_uses_half_of_its_budget_at_most():
    truth = Bench(0).truth(scaled, POINT)
    verdict = judge(scaled, truth, truth.native)
    assert verdict.problems == ()
    assert verdict.margin <= 0.5


def test_every_wrong_result_is_refused():
    truth = Bench(0).truth(scaled, POINT)
    names = []
    for name, results in wrong_results(scaled, truth):
        names.append(name)
        assert judge(scaled, truth, results).problems, name
    assert {n.partition(" in ")[0] for n in names} == {
        *("a NaN", "one wrong element", "a gain", "zeros", "rolled rows"),
    }


def test_a_judge_that_is_spoilt_is_seen_at_a_truth_that_it_knew(monkeypatch):
    truth = Bench(0).truth(scaled, POINT)
    verdict = judge(scaled, truth, truth.native)
    first = settle(scaled, truth, verdict)
    assert first.status is Status.PASS
    assert first.power == len(list(wrong_results(scaled, truth)))
    again = [settle(scaled, truth, verdict) for _ in range(first.power)]
    assert {(f.status, f.power) for f in again} == {(Status.PASS, first.power)}
    monkeypatch.setattr(judging, "errors", lambda *_: Errors())
    spoilt = [settle(scaled, truth, verdict) for _ in range(first.power)]
    told = {f.reason for f in spoilt if f.status is Status.ERROR}
    assert any("it accepts a gain" in reason for reason in told), told


def test_another_dtype_or_count_of_results_is_a_problem():
    truth = Bench(0).truth(scaled, POINT)
    assert judge(scaled, truth, [truth.native[0].double()]).problems
    assert judge(scaled, truth, []).problems
    assert judge(scaled, truth, [truth.native[0][:3]]).problems
    assert judge(scaled, truth, [None]).problems


def test_ties_may_be_decided_differently_and_are_counted():
    op = operators()["sample_token"]
    greedy = ("temperature",)
    point = make({"seqs": 2, "vocab": 6}, {}, {"T": torch.float32}, "all-equal@logits", greedy)
    truth = Bench(0).truth(op, point)
    notes = judge(op, truth, [torch.tensor([5, 0])]).notes
    assert notes == ("1 close choices were decided differently",)
    assert judge(op, truth, [torch.tensor([6, 0])]).problems


def test_a_choice_of_a_lower_score_is_wrong():
    op = operators()["sample_token"]
    truth = Bench(0).truth(op, make({"seqs": 2, "vocab": 6}, {}, {"T": torch.float32}))
    wrong = truth.scores.upper.argmin(-1)
    assert judge(op, truth, [wrong]).problems


def test_exact_results_are_compared_bit_by_bit():
    op = operators()["embedding"]
    dims = {"tokens": 3, "vocab": 5, "hidden": 4}
    truth = Bench(0).truth(op, make(dims, {}, {"T": torch.float32}))
    nearly = torch.nextafter(truth.native[0], torch.tensor(torch.inf))
    assert judge(op, truth, truth.native).problems == ()
    assert judge(op, truth, [nearly]).problems


def test_rows_in_which_the_reference_overflowed_do_not_widen_the_budget():
    op = operators()["rms_norm"]
    dtypes = {"T": torch.float32, "W": torch.float32}
    point = make({"tokens": 5, "hidden": 128}, {}, dtypes, "largest@x")
    truth = Bench(0).truth(op, point)
    assert not bool(truth.judged[0].all())
    assert truth.allowances[0].maximum < 1e-5


def test_sizes_that_do_not_fit_each_other_are_no_calls():
    op = operators()["rotary_embedding"]
    dims = {"tokens": 2, "heads": 1, "head_dim": 8, "rotary_half": 16}
    bench = Bench(0)
    assert not bench.is_call(op, make(dims, {}, {"T": torch.float32}))
    assert bench.is_call(op, make(dims | {"rotary_half": 4}, {}, {"T": torch.float32}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_where_all_numbers_are_one_two_roundings_are_legal_and_four_units_are_not(seed, dtype):
    op, bench = operators()["silu_and_mul"], Bench(seed)
    point = make({"tokens": 5, "inter": 64}, {}, {"T": dtype}, "all-equal@x")
    truth = bench.truth(op, point)
    gate, value = bench.arguments(op, point)["x"].chunk(2, -1)
    rounded = torch.nn.functional.silu(gate) * value  # the gate is rounded, then the product
    assert judge(op, truth, [rounded]).problems == ()
    assert judge(op, truth, [truth.native[0] * (1 + 4 * torch.finfo(dtype).eps)]).problems
