from __future__ import annotations

import inspect
import linecache
import textwrap
import traceback

import pytest
import torch
from hypothesis import given, settings

from random_calls import candidates, several_arms
from stand_ins import OPS, make_device, norm_small
from trivet.binding.build import build
from trivet.binding.guard import guard_text, make_guard
from trivet.contracts import (
    Cases,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    offset_aligned,
    one_of,
    operator,
    rank,
    rows,
)
from trivet.selection.authority import Policy
from trivet.selection.choose import choose
from trivet.selection.facts import Call, decide, normalise
from trivet.selection.on_call import on_call
from trivet.settings import Settings

NORM, ROTARY = OPS["rms_norm"], OPS["rotary_embedding"]
COMMON = (dtype("x", "bfloat16", "float32"), rank("x", 2), contiguous("x"), divisible("hidden", 8))
BUCKETS = (between("tokens", 1, 16), between("tokens", 17, 256), between("tokens", 257, None))


def text_of(op, facts, *arms, form="functional", grad=False):
    return guard_text(op, form, normalise(op, facts), [*arms, ()], grad=grad)


def test_dtypes_rank_layout_and_buckets_read_each_attribute_once():
    assert text_of(NORM, {}, *((*COMMON, bucket) for bucket in BUCKETS)) == textwrap.dedent("""\
        def rms_norm(x, weight, eps=1e-06, weight_offset=0.0, weight_in_float32=False, \
variance_size=0):
            _x_dtype = x.dtype
            if (_x_dtype is _bfloat16 or _x_dtype is _float32) and len((_x_shape := x.shape)) == 2 \
and x.is_contiguous() and not _x_shape[-1] % 8:
                _tokens = _x_shape[0]
                if 1 <= _tokens <= 16:
                    return _f0(x, weight, eps, weight_offset, weight_in_float32, variance_size)
                if 17 <= _tokens <= 256:
                    return _f1(x, weight, eps, weight_offset, weight_in_float32, variance_size)
                if 257 <= _tokens:
                    return _f2(x, weight, eps, weight_offset, weight_in_float32, variance_size)
            return _f3(x, weight, eps, weight_offset, weight_in_float32, variance_size)
        """)


def test_what_facts_prove_is_not_tested_and_tokens_come_from_one_number():
    arms = [(bucket,) for bucket in BUCKETS[:2]]
    assert text_of(NORM, {"hidden": 64, "dtype": "float32"}, *arms) == textwrap.dedent("""\
        def rms_norm(x, weight, eps=1e-06, weight_offset=0.0, weight_in_float32=False, \
variance_size=0):
            _tokens = x.numel() // 64
            if 1 <= _tokens <= 16:
                return _f0(x, weight, eps, weight_offset, weight_in_float32, variance_size)
            if 17 <= _tokens <= 256:
                return _f1(x, weight, eps, weight_offset, weight_in_float32, variance_size)
            return _f2(x, weight, eps, weight_offset, weight_in_float32, variance_size)
        """)
    assert "_tokens = 1\n" in text_of(NORM, {"x.rank": 1}, *arms)
    assert "_tokens = _x_shape[0] * _x_shape[1]\n" in text_of(NORM, {"x.rank": 3}, *arms)


def test_gradients_are_turned_away_before_anything_else():
    op = OPS["linear_packed"]
    assert text_of(op, {}, grad=True) == textwrap.dedent("""\
        def linear_packed(x, packed, out_features, bias=None):
            if (x.requires_grad or any([_t.requires_grad for _t in packed]) \
or (bias is not None and bias.requires_grad)) and _grad_enabled():
                return _grad(x, packed, out_features, bias)
            return _f0(x, packed, out_features, bias)
        """)


def test_the_out_form_keeps_out_keyword_only():
    text = text_of(NORM, {}, (rows("out", 8),), form="out")
    assert "weight_in_float32=False, variance_size=0, *, out):" in text
    assert "_has_rows((_out_shape := out.shape), " in text or "_out_shape = out.shape" in text
    assert text.count("out=out)") == 2


def test_an_operator_with_one_form_keeps_its_plain_name():
    text = text_of(OPS["kv_cache_write"], {}, (rows("k"),), form="inplace")
    assert text.startswith("def kv_cache_write(k, v, k_cache, v_cache, slots, layout='NHD'):")


@pytest.mark.parametrize(
    ("facts", "terms"),
    [
        ({"x.rank": 1}, (dtype("x", "float32"), between("tokens", 1, 8), rows("x", 8))),
        ({"x.rank": 3}, (contiguous("x"), between("tokens", 1, 8), rows("x", 8))),
        ({}, (rank("x", 2), equal("tokens", "hidden"), between("tokens", 0, 9), rows("x"))),
    ],
)
def test_a_local_is_set_wherever_it_is_read(facts, terms):
    guard = make_guard(NORM, "functional", normalise(NORM, facts), [(taken, terms), (fallback, ())])
    assert guard(torch.zeros([8] * facts.get("x.rank", 2)), torch.zeros(8)) in {"taken", "fallback"}


def taken(*args, **kwargs):
    return "taken"


def fallback(*args, **kwargs):
    return "fallback"


def test_what_is_read_for_an_optional_tensor_is_read_again_for_the_next():
    terms = (rank("q", 3), equal("k.dtype", "q.dtype"), offset_aligned("q", 16))
    guard = make_guard(
        ROTARY, "functional", normalise(ROTARY, {}), [(taken, terms), (fallback, ())]
    )
    q, angle = torch.zeros(2, 2, 4), torch.zeros(2, 2)
    assert guard(q, None, angle, angle) == "taken"
    assert guard(q, q.clone(), angle, angle) == "taken"
    assert guard(q, q.double(), angle, angle) == "fallback"


def test_names_defaults_and_keywords_are_the_operators():
    guard = make_device(norm_small).ops.rms_norm
    wanted = [(p.name, p.default) for p in NORM.signature.parameters]
    assert [(p.name, p.default) for p in inspect.signature(guard).parameters.values()] == wanted
    assert guard.__name__ == "rms_norm"
    x, weight = torch.randn(3, 8), torch.randn(8)
    expected = NORM.reference(x, weight, weight_offset=1.0)
    assert torch.equal(guard(weight_offset=1.0, weight=weight, x=x), expected)
    assert torch.equal(guard(x, weight, 1e-6, 1.0), expected)


def broken(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    raise RuntimeError("the kernel said no")


def test_the_text_is_shown_in_tracebacks_and_by_inspect():
    guard = make_guard(NORM, "functional", normalise(NORM, {}), [(broken, COMMON), (fallback, ())])
    with pytest.raises(RuntimeError) as caught:
        guard(torch.zeros(2, 8), torch.zeros(8))
    shown = "".join(traceback.format_tb(caught.tb))
    assert 'File "<trivet guard rms_norm functional ' in shown
    assert "return _f0(x, weight, eps, weight_offset, weight_in_float32, variance_size)" in shown
    assert guard.__trivet_source__.startswith("def rms_norm(x, weight, eps=1e-06")
    assert textwrap.dedent(inspect.getsource(guard)) == guard.__trivet_source__
    linecache.checkcache()
    assert textwrap.dedent(inspect.getsource(guard)) == guard.__trivet_source__


def soft(
    x: torch.Tensor, cap: float = float("inf"), to: torch.dtype = torch.float32
) -> torch.Tensor:
    """Has defaults whose text is no literal."""
    return x


def test_defaults_and_constants_without_literals_are_understood():
    op = operator(
        shapes={"x": "*n wide"}, returns=[("*n wide", "x")], cases=Cases(({},)), oracle=soft
    )(soft)
    terms = (one_of("cap", float("inf")), one_of("to", torch.float32, torch.bfloat16))
    guard = make_guard(op, "functional", normalise(op, {}), [(taken, terms), (fallback, ())])
    assert guard(torch.zeros(2)) == "taken"
    assert guard(torch.zeros(2), 1.0) == "fallback"
    assert guard(torch.zeros(2), to=torch.float64) == "fallback"


def test_the_text_does_not_depend_on_the_order_of_terms():
    terms = [divisible("hidden", 8), divisible("hidden", 16), rows("x", 4), rows("x", 8)]
    assert text_of(NORM, {}, tuple(terms)) == text_of(NORM, {}, tuple(reversed(terms)))


@settings(deadline=None, max_examples=150)
@given(several_arms())
def test_arms_are_tried_in_order_however_prefixes_are_factored(case):
    op, arguments, domains, known = case
    call = Call(op, arguments)
    naive = [all(decide(op, t, call) is True for t in domain) for domain in domains]
    first = naive.index(True) if True in naive else None
    facts = normalise(op, known)
    conservative = any(
        isinstance(decide(op, t, facts), str) and decide(op, t, call) is True
        for domain in domains
        for t in domain
    )
    choice = choose(op, "functional", facts, list(candidates(op, domains)), Policy(Settings()))
    (runs,) = [r.provider for r in on_call(choice, arguments) if r.verdict == "runs"] or ["none"]
    bound = build(choice)
    if runs == "reference":
        assert first is None or conservative
    else:
        assert bound(**arguments) == int(runs.removeprefix("acme/k"))
        assert conservative or bound(*arguments.values()) == first


@pytest.mark.parametrize("target", ["rms_norm", "rms_norm_", "rms_norm_out"])
def test_a_missing_argument_is_told_under_the_operators_name(target):
    bound = make_device(norm_small).bind(target)
    assert bound.__qualname__ == target
    with pytest.raises(TypeError, match=rf"^{target}\(\) missing"):
        bound()
