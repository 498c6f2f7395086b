from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from random_calls import POOLS, calls, facts_of, strided
from stand_ins import OPS
from trivet.binding.guard import make_guard
from trivet.contracts import contiguous, divisible, one_of, rows
from trivet.contracts.terms import has_rows
from trivet.selection.facts import Call, decide, normalise


def yes(*args, **kwargs):
    return True


def no(*args, **kwargs):
    return False


def by_guard(op, term, facts, arguments):
    return make_guard(op, "functional", facts, [(yes, (term,)), (no, ())])(**arguments)


@st.composite
def judged(draw):
    op, arguments = draw(calls())
    return op, arguments, draw(st.sampled_from(POOLS[op.name])), draw(facts_of(op, arguments))


@settings(deadline=None, max_examples=150)
@given(judged())
def test_a_call_and_a_guard_agree_on_every_term(case):
    op, arguments, term, known = case
    decision = decide(op, term, Call(op, arguments))
    assert decision is True or isinstance(decision, str), "a whole call leaves nothing open"
    assert by_guard(op, term, normalise(op, {}), arguments) is (decision is True)
    facts = normalise(op, known)
    if decide(op, term, facts) is None:
        assert by_guard(op, term, facts, arguments) is (decision is True)


@settings(deadline=None, max_examples=150)
@given(judged())
def test_facts_never_contradict_a_call_that_keeps_them(case):
    op, arguments, term, known = case
    facts, call = normalise(op, known), decide(op, term, Call(op, arguments))
    proved = decide(op, term, facts)
    if proved is True:
        assert call is True
    elif isinstance(proved, str) and term.kind == "rows":
        # a width that is no multiple rules out two rows and more, and fewer are not worth a guard
        assert call is not True or Call(op, arguments).value("tokens") <= 1 or 0 in sizes(arguments)
    elif isinstance(proved, str):
        assert call is not True


def sizes(arguments):
    return [s for t in arguments.values() if isinstance(t, torch.Tensor) for s in t.shape]


def faked(mode, arguments, **kwargs):
    def one(value):
        if isinstance(value, torch.Tensor):
            return mode.from_tensor(value, **kwargs.get("make", dict)())
        return [one(v) for v in value] if isinstance(value, list) else value

    return {n: one(v) for n, v in arguments.items()}


@settings(deadline=None, max_examples=60)
@given(judged())
def test_fake_tensors_give_the_same_answers(case):
    op, arguments, term, _ = case
    fake = faked(FakeTensorMode(), arguments)
    assert decide(op, term, Call(op, fake)) == decide(op, term, Call(op, arguments))
    guarded = by_guard(op, term, normalise(op, {}), fake)
    assert guarded is by_guard(op, term, normalise(op, {}), arguments)


@settings(deadline=None, max_examples=30)
@given(judged())
def test_symbolic_sizes_give_the_same_answers(case):
    op, arguments, term, _ = case
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = faked(mode, arguments)
    found, real = decide(op, term, Call(op, fake)), decide(op, term, Call(op, arguments))
    assert (found is True) is (real is True)
    assert by_guard(op, term, normalise(op, {}), fake) is (real is True)


def unbacked():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    with mode:
        rows_ = env.create_unbacked_symint()
        torch._check(rows_ >= 0)
        return mode, torch.empty(rows_, 64), torch.empty(64)


@pytest.mark.parametrize("term", [divisible("tokens", 8), one_of("tokens", 1, 2)])
def test_an_unbacked_size_is_a_no_with_that_reason(term):
    op = OPS["rms_norm"]
    mode, x, weight = unbacked()
    with mode:
        decision = decide(op, term, Call(op, {"x": x, "weight": weight}))
        assert isinstance(decision, str)
        assert f"{term} cannot be decided here" in decision
        assert "data-dependent" in decision
        assert decide(op, divisible("hidden", 8), Call(op, {"x": x, "weight": weight})) is True


def test_a_size_that_cannot_be_known_says_so_for_the_dim_that_matters():
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.zeros(6, 64), symbolic_context=context)
    op = OPS["rms_norm"]
    assert decide(op, divisible("tokens", 4), Call(op, {"x": x})).endswith("not a multiple of 4")


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_rows_are_what_a_view_to_one_leading_dim_allows(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    x = data.draw(strided(shape, torch.float32))
    inner = data.draw(st.integers(1, len(shape)))
    try:
        flat = x.view(-1, *x.shape[x.dim() - inner :])
    except RuntimeError:
        flat = None
    dense = flat is not None and (flat.numel() == 0 or flat[0].is_contiguous())
    assert has_rows(tuple(x.shape), x.stride(), inner, 1) is dense
    if dense and flat.shape[0] > 1:
        assert has_rows(tuple(x.shape), x.stride(), inner, 4) is (flat.stride(0) % 4 == 0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_contiguous_is_what_torch_calls_contiguous(data):
    op = OPS["rms_norm"]
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=4))
    x = data.draw(strided(shape, torch.float32))
    assert (decide(op, contiguous("x"), Call(op, {"x": x})) is True) is x.is_contiguous()


def test_expanded_dims_of_different_stride_do_not_collapse():
    x = torch.zeros(3, 1, 8).expand(3, 4, 8)
    assert not has_rows(tuple(x.shape), x.stride(), 1, 1)
    assert has_rows((4, 8), (0, 1), 1, 8), "one dim of stride 0 is one stride"
    assert has_rows((1, 5, 8), (999, 8, 1), 1, 8), "the stride of one row is nobody's business"
    assert has_rows((2, 0, 8), (1, 1, 1), 1, 8), "nothing lies badly"
    assert has_rows((6,), (2,), 0, 2)


def test_terms_on_an_absent_tensor_hold_vacuously():
    op = OPS["rotary_embedding"]
    absent = {"q": torch.zeros(2, 2, 4), "k": None, "cos": torch.zeros(2, 2), "pairing": "neox"}
    for term in POOLS["rotary_embedding"]:
        about_k = term.path in {"k", "kv_heads"} or term.path.startswith("k.")
        if about_k and term.kind not in {"absent", "present"}:
            assert decide(op, term, Call(op, absent)) is True
            assert decide(op, term, normalise(op, {"k": None})) is True
    assert decide(op, rows("k", 8), normalise(op, {})) is None
