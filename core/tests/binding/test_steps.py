from __future__ import annotations

import itertools

import pytest
import torch

from stand_ins import OPS, attend_one, linear_halves, make_device, norm_big, norm_small, norm_vec
from trivet.contracts import between, divisible, equal, implements, one_of
from trivet.errors import DeclarationError, DomainError, NoImplementation, UnknownName

NORM = OPS["rms_norm"].reference


def same(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return NORM(x, weight, eps, weight_offset, weight_in_float32, variance_size)


def make(name, *domain):
    function = type(same)(same.__code__, same.__globals__, same.__name__, same.__defaults__)
    return implements("rms_norm@1", name=name, domain=domain)(function)


@pytest.mark.parametrize("tokens", [None, *range(20), 63, 64, 65, 66, 10**9])
def test_every_outcome_has_its_table(tokens):
    plan = make_device(norm_small, norm_big).plan({"norm": ("rms_norm", {})})
    step = plan.at() if tokens is None else plan.at(tokens=tokens)
    if tokens is None:
        assert step.norm is plan.norm
        assert step.norm.__trivet_source__.startswith("def rms_norm(")
        assert step.providers() == {"norm": "acme/small|acme/big|reference"}
    else:
        wanted = norm_small if 1 <= tokens <= 16 else norm_big if tokens >= 65 else NORM
        assert step.norm is wanted
        assert plan.at(tokens=tokens) is step, "at looks up, it makes nothing"


def test_tables_agree_with_the_terms_for_every_size():
    arms = [
        make("a", divisible("tokens", 6), between("tokens", 4, 40)),
        make("b", divisible("tokens", 4)),
        make("c", one_of("tokens", 3, 9, 50)),
        make("d", equal("tokens", 7)),
        make("e", between("tokens", None, 2)),
    ]
    dev = make_device(*arms)
    plan = dev.plan({"norm": ("rms_norm", {})})
    for tokens in range(120):
        rules = (
            tokens % 6 == 0 and 4 <= tokens <= 40,
            tokens % 4 == 0,
            tokens in {3, 9, 50},
            tokens == 7,
            tokens <= 2,
        )
        wanted = [*itertools.compress(arms, rules), NORM][0]
        assert plan.at(tokens=tokens).norm is wanted, tokens


def test_a_step_variable_is_renamed_by_sites():
    plan = make_device(norm_small, norm_big).plan(
        {"body": ("rms_norm", {}), "last": ("rms_norm", {"tokens": "rows"})}
    )
    step = plan.at(tokens=100, rows=2)
    assert (step.body, step.last) == (norm_big, norm_small)
    step = plan.at(rows=100)
    assert step.last is norm_big
    assert step.body is plan.body, "what is missing stays guarded"
    assert plan.at(tokens=2, hidden=64).body is norm_small, "other dims may be given too"


def test_a_scalar_that_is_a_step_variable_is_not_promised_to_stay_at_its_default():
    dev = make_device(windowless)
    static = dev.plan({"attn": ("paged_attention", {})})
    assert static.explain("attn")[0].verdict == "yes"
    plan = dev.plan({"attn": ("paged_attention", {"window": "span"})})
    assert plan.explain("attn")[0].verdict == "guarded"
    assert plan.at(span=0).attn is windowless
    assert plan.at(span=7).attn is OPS["paged_attention"].reference


@implements("paged_attention@1", name="windowless", domain=[one_of("window", 0)])
def windowless(
    q,
    k_cache,
    v_cache,
    block_table,
    query_start,
    seq_lens,
    max_query_len,
    max_seq_len,
    scale,
    schedule,
    window=0,
    soft_cap=0.0,
    layout="NHD",
): ...


def test_integer_arguments_are_step_variables():
    facts = {"contiguous": True, "heads": 4, "head_dim": 8, "max_query_len": "max_queries"}
    plan = make_device(attend_one).plan({"attn": ("paged_attention", facts)})
    assert plan.at(max_queries=1).attn is attend_one
    assert plan.at(max_queries=2).attn is OPS["paged_attention"].reference


@pytest.mark.parametrize("wrong", [{"token": 1}, {"rows": 1}, {"eps": 1.0}, {"norm": 1}])
def test_unknown_step_variables_are_refused(wrong):
    plan = make_device(norm_small).plan({"norm": ("rms_norm", {})})
    with pytest.raises(UnknownName) as caught:
        plan.at(**wrong)
    assert "no step variable" in caught.value.what
    assert "tokens" in caught.value.fix


@pytest.mark.parametrize(
    "wrong", ["my rows", "my-rows", "class", "_tables", "1a", "a=print('x')", ""]
)
def test_a_step_variable_is_a_word(wrong):
    dev = make_device(norm_small)
    with pytest.raises(UnknownName, match="cannot be the step variable"):
        dev.plan({"norm": ("rms_norm", {"tokens": wrong})})


def test_what_is_no_size_has_no_table():
    dev = make_device(make("low", between("tokens", None, 9)), make("odd", one_of("tokens", 99)))
    plan = dev.plan({"norm": ("rms_norm", {"tokens": "rows"})})
    twice = dev.plan({"a": ("rms_norm", {}), "b": ("rms_norm", {"tokens": "rows"})})
    for wrong in (float("nan"), 9.5):
        step = plan.at(rows=wrong)
        assert step.norm is NORM
    for broken in (lambda: plan.at(rows=LikeNothing()), lambda: twice.at(tokens=LikeNothing())):
        with pytest.raises(DomainError, match="a step variable is no size"):
            broken()


class LikeNothing:
    def __le__(self, other):
        return "perhaps"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def test_too_many_kinds_of_step_are_refused():
    many = [make(f"k{i}", between("tokens", 2 * i + 1, 2 * i + 1)) for i in range(80)]
    wide = [make(f"w{i}", between("hidden", 2 * i + 1, 2 * i + 1)) for i in range(80)]
    with pytest.raises(DeclarationError, match="distinguish 6724 kinds of step"):
        make_device(*many, *wide).plan({"norm": ("rms_norm", {})})
    prime = make_device(make("p", divisible("tokens", 4099)), make("q", divisible("tokens", 8)))
    with pytest.raises(DeclarationError, match="cannot tell steps apart by divisible"):
        prime.plan({"norm": ("rms_norm", {})})


def test_facts_settle_what_a_step_need_not():
    dev = make_device(norm_vec, norm_small, norm_big)
    plan = dev.plan({"norm": ("rms_norm", {"tokens": range(1, 10)})})
    assert plan.norm is norm_small
    with pytest.raises(UnknownName):
        plan.at(bogus=3)
    assert plan.at(tokens=200).norm is norm_small, "the fact was a promise"


def test_a_strict_step_outside_every_domain_says_so_when_it_is_called():
    plan = make_device(norm_small, strict=True).plan({"norm": ("rms_norm", {})})
    assert plan.at(tokens=3).norm is norm_small
    outside = plan.at(tokens=20)
    with pytest.raises(NoImplementation, match="no implementation of rms_norm"):
        outside.norm(torch.zeros(20, 8), torch.zeros(8))
    assert outside.providers() == {"norm": ""}


def test_two_operators_share_a_variable():
    plan = make_device(norm_small, linear_halves).plan(
        {"norm": ("rms_norm", {}), "up": ("linear_packed", {"in_features": 8})}
    )
    small, middle, big = (plan.at(tokens=t).providers() for t in (8, 16, 17))
    assert small == {"norm": "acme/small", "up": "acme/halves"}
    assert middle == {"norm": "acme/small", "up": "reference"}
    assert big == {"norm": "reference", "up": "reference"}
