from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet.contracts.dims import Dim, Shape
from trivet.errors import DeclarationError


@pytest.mark.parametrize(
    ("text", "name", "form", "n"),
    [
        ("hidden", "hidden", "plain", 0),
        ("*tokens", "tokens", "star", 0),
        ("2*inter", "inter", "times", 2),
        ("seqs+1", "seqs", "plus", 1),
        ("hidden/4", "hidden", "over", 4),
        ("ceil(hidden/128)", "hidden", "ceil", 128),
        ("group*hidden", "hidden", "times", "group"),
        ("ceil(hidden/group)", "hidden", "ceil", "group"),
    ],
)
def test_the_grammar_has_six_forms(text, name, form, n):
    dim = Dim.parse(text)
    assert (dim.text, dim.name, dim.form, dim.n) == (text, name, form, n)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a dim"),
        ("Hidden", "is not a dim"),
        ("-1", "is not a dim"),
        ("2*", "is not a dim"),
        ("a*b*c", "is not a dim"),
        ("a-1", "is not a dim"),
        ("floor(a/2)", "is not a dim"),
        ("__import__('os')", "is not a dim"),
        ("lambda", "'lambda' is a Python keyword"),
        ("*class", "'class' is a Python keyword"),
        ("0*inter", "neither multiplied nor divided by 0"),
        ("inter/0", "neither multiplied nor divided by 0"),
        ("ceil(inter/0)", "neither multiplied nor divided by 0"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused(text, problem):
    with pytest.raises(DeclarationError) as caught:
        Dim.parse(text)
    assert problem in caught.value.what


def test_a_star_is_only_first():
    with pytest.raises(DeclarationError, match="only the first dim may be a star"):
        Shape.parse("hidden *tokens")


def test_a_shape_knows_its_rank_and_where_its_entries_lie():
    starred, fixed = Shape.parse("*tokens heads head_dim"), Shape.parse("seqs max_blocks")
    assert (starred.rank, fixed.rank, Shape.parse("").rank) == (None, 2, 0)
    assert [starred.index(i) for i in range(3)] == [-3, -2, -1]
    assert [fixed.index(i) for i in range(2)] == [0, 1]
    assert starred.leading((2, 3, 4, 5)) == (2, 3)
    assert not starred.leading((4, 5))


@settings(deadline=None, max_examples=60)
@given(
    value=st.integers(0, 10**6),
    n=st.integers(1, 300),
    text=st.sampled_from(["a", "{n}*a", "a+{n}", "n*a", "a+n", "a/n", "ceil(a/n)"]),
)
def test_size_and_solve_are_inverse_and_agree_with_their_texts(value, n, text):
    dim = Dim.parse(text.format(n=n))
    if dim.form == "over":
        value *= n
    known = {"a": value, "n": n}
    size = dim.size(known)
    assert size == eval(dim.size_text("a"), {}, known)  # noqa: S307  # the text under test
    if dim.solvable:
        assert dim.solve(size, known) == value
        assert eval(dim.value_text("size"), {}, {"size": size, "n": n}) == value  # noqa: S307
    else:
        assert size == -(-value // n)


def test_an_argument_that_is_zero_divides_nothing():
    with pytest.raises(DeclarationError, match="n is 0"):
        Dim.parse("a/n").size({"a": 8, "n": 0})
