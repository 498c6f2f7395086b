from __future__ import annotations

import functools
from pathlib import Path

import pytest

from stand_ins import OPS
from trivet.contracts import (
    absent,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    one_of,
    present,
    rank,
    rows,
)
from trivet.contracts.implementation import claims_of
from trivet.contracts.names import split_target
from trivet.contracts.terms import offset_aligned
from trivet.errors import DeclarationError, SignatureDrift
from trivet.plugins.verification import verify


def good(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...
def renamed(y, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...
def swapped(weight, x, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...
def other_default(
    x, weight, eps=1e-5, weight_offset=0.0, weight_in_float32=False, variance_size=0
): ...
def no_default(x, weight, eps, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...
def integer_default(
    x, weight, eps=1e-6, weight_offset=0, weight_in_float32=False, variance_size=0
): ...
def boolean_default(
    x, weight, eps=1e-6, weight_offset=False, weight_in_float32=False, variance_size=0
): ...
def zero_default(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=0): ...
def missing(x, weight, eps=1e-6, weight_offset=0.0): ...
def extra(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, more=1
): ...
def keyword(
    x, weight, *, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
): ...
def positional(
    x, weight, /, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
): ...
def variadic(*x, **weight): ...
def into(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, *, out
): ...
def into_anywhere(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, out=None
): ...
def into_nothing(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, *, result
): ...


def claim(function, target="rms_norm@1", **kwargs):
    return implements(target, **({"name": "k"} | kwargs))(_copy(function)).__trivet__[0]


def _copy(function):
    made = type(function)(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


@pytest.mark.parametrize(
    ("function", "target", "problem"),
    [
        (renamed, "rms_norm@1", "parameter 1 is 'y', the operator has 'x'"),
        (swapped, "rms_norm@1", "parameter 1 is 'weight', the operator has 'x'"),
        (other_default, "rms_norm@1", "default of 'eps' is 1e-05, the operator has 1e-06"),
        (no_default, "rms_norm@1", "default of 'eps' is none, the operator has 1e-06"),
        (integer_default, "rms_norm@1", "default of 'weight_offset' is 0, the operator has 0.0"),
        (boolean_default, "rms_norm@1", "default of 'weight_offset' is False"),
        (zero_default, "rms_norm@1", "default of 'weight_in_float32' is 0, the operator has False"),
        (missing, "rms_norm@1", "parameter 'weight_in_float32' is missing"),
        (extra, "rms_norm@1", "parameter 'more' is not in the operator"),
        (keyword, "rms_norm@1", "parameter 'eps' is keyword-only, must be ordinary"),
        (positional, "rms_norm@1", "parameter 'x' is positional-only, must be ordinary"),
        (variadic, "rms_norm@1", "parameter 'x' is variadic positional, must be ordinary"),
        (good, "rms_norm_out@1", "parameter 'out' is missing"),
        (into, "rms_norm@1", "parameter 'out' is not in the operator"),
        (into_anywhere, "rms_norm_out@1", "default of 'out' is None, the operator has none"),
        (into_nothing, "rms_norm_out@1", "parameter 7 is 'result', the operator has 'out'"),
        (good, "rms_norm", "version missing, operator has @1"),
        (good, "rms_norm@2", "version 2, operator has @1"),
        (good, "rms_norm@x", "version x, operator has @1"),
    ],
)
def test_a_signature_that_drifted_is_refused(function, target, problem):
    with pytest.raises(SignatureDrift) as caught:
        verify(claim(function, target), "acme", OPS)
    assert problem in caught.value.what
    assert caught.value.what.startswith("acme/k for 'rms_norm")
    assert f"({__file__}:{function.__code__.co_firstlineno})" in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize(
    ("function", "target", "form"),
    [
        (good, "rms_norm@1", "functional"),
        (good, "rms_norm_@1", "inplace"),
        (into, "rms_norm_out@1", "out"),
    ],
)
def test_forms_are_told_by_the_name(function, target, form):
    found = verify(claim(function, target), "acme", OPS)
    assert (found.operator.name, found.form, found.provider) == ("rms_norm", form, "acme/k")
    assert found.function.__name__ == function.__name__


class Holder:
    @staticmethod
    def method(
        x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
    ): ...


def inner():
    def local(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...

    return local


NOT_DEFS = {
    "local": inner(),
    "method": Holder.method,
    "lambda": lambda x, weight, *scalars: x,
    "partial": functools.partial(good),
}


@pytest.mark.parametrize("kind", NOT_DEFS)
def test_only_module_level_defs_are_implementations(kind):
    mark = implements("rms_norm@1", name="k")
    (made,) = claims_of(mark(NOT_DEFS[kind]))
    with pytest.raises(DeclarationError, match=r"\(.*test_claims.py:\d+\).* module-level def"):
        verify(made, "acme", OPS)


@pytest.mark.parametrize(
    ("target", "kwargs", "problem"),
    [
        ("rms_morm@1", {}, "no operator 'rms_morm' in this trivet"),
        ("linear_@1", {}, "linear has no in-place form"),
        ("kv_cache_write_out@1", {}, "kv_cache_write has no out form, it writes its arguments"),
        ("rms_norm@1", {"name": ""}, "'' is no name for an order list"),
        ("rms_norm@1", {"name": "a b"}, "'a b' is no name for an order list"),
        ("rms_norm@1", {"name": "a/b"}, "'a/b' is no name for an order list"),
        ("rms_norm@1", {"sources": ["nowhere.cpp"]}, "nowhere.cpp does not exist"),
        ("rms_norm@1", {"domain": [divisible("heads", 8)]}, "'heads' is no dim, argument"),
        ("rms_norm@1", {"domain": [dtype("z", "float32")]}, "'z.dtype' is no dim, argument"),
        ("rms_norm@1", {"domain": [rank("eps", 2)]}, "'eps.rank' is no dim, argument"),
        ("rms_norm@1", {"domain": [contiguous("out")]}, "'out' is no dim, argument"),
        ("rms_norm@1", {"domain": [contiguous("hidden")]}, "'hidden' is not a tensor"),
        ("rms_norm@1", {"domain": [rows("eps", 8)]}, "'eps' is not a tensor"),
        ("rms_norm@1", {"domain": [offset_aligned("tokens", 8)]}, "'tokens' is not a tensor"),
        ("rms_norm@1", {"domain": [between("x", 1, 2)]}, "'x' is not a dim or a scalar"),
        ("rms_norm@1", {"domain": [divisible("eps", 2)]}, "'eps' is not a dim or a scalar"),
        ("rms_norm@1", {"domain": [one_of("x.contiguous", True)]}, "is not a dim or a scalar"),
        ("rms_norm@1", {"domain": [equal("x", "weight")]}, "is not a dim or a scalar"),
        ("rms_norm@1", {"domain": [absent("x")]}, "'x' is not an optional tensor or a list"),
        ("rms_norm@1", {"domain": [present("eps")]}, "'eps' is not an optional tensor or a list"),
        ("rms_norm@1", {"domain": [equal("weight.dtype", "y.dtype")]}, "'y.dtype' is no dim"),
    ],
)
def test_a_wrong_claim_is_refused_by_name(target, kwargs, problem):
    with pytest.raises(DeclarationError) as caught:
        verify(claim(good, target, **kwargs), "acme", OPS)
    assert problem in caught.value.what
    assert caught.value.what.startswith("acme/")
    assert f"({__file__}:{good.__code__.co_firstlineno})" in caught.value.what


@pytest.mark.parametrize(
    ("target", "fix"),
    [
        ("rms_morm@1", "did you mean 'rms_norm@1'"),
        ("rms_morm_@1", "did you mean 'rms_norm_@1'"),
        ("rms_morm_out@1", "did you mean 'rms_norm_out@1'"),
        ("zzz@1", "correct the name"),
    ],
)
def test_an_unknown_operator_has_near_misses(target, fix):
    with pytest.raises(DeclarationError) as caught:
        verify(claim(good, target), "acme", OPS)
    assert caught.value.fix.startswith(fix)


def fused_into(
    x,
    residual,
    weight,
    eps=1e-6,
    weight_offset=0.0,
    weight_in_float32=False,
    variance_size=0,
    *,
    out,
): ...


def test_a_list_of_results_has_no_layout_of_its_own():
    with pytest.raises(DeclarationError, match="'out' is no dim, argument or attribute"):
        verify(claim(fused_into, "fused_add_rms_norm_out@1", domain=[rows("out")]), "acme", OPS)
    assert verify(claim(into, "rms_norm_out@1", domain=[rows("out", 8)]), "acme", OPS)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: dtype("x"), "torch has no dtype"),
        (lambda: dtype("x", "bf16"), "torch has no dtype 'bf16'"),
        (lambda: dtype("x", "nn"), "torch has no dtype 'nn'"),
        (lambda: dtype("x", 5), "torch has no dtype 5"),
        (lambda: rank("x"), "are no ranks"),
        (lambda: rank("x", -1), "are no ranks"),
        (lambda: rank("x", "2"), "are no ranks"),
        (lambda: divisible("hidden", 0), "0 is no positive integer"),
        (lambda: divisible("hidden", 8.0), "8.0 is no positive integer"),
        (lambda: rows("x", 0), "0 is no positive integer"),
        (lambda: rows("x", True), "True is no positive integer"),
        (lambda: offset_aligned("x", -16), "-16 is no positive integer"),
        (lambda: between("tokens", None, None), "is no range of integers"),
        (lambda: between("tokens", 5, 2), "is no range of integers"),
        (lambda: between("tokens", 1.5, 2), "is no range of integers"),
        (lambda: one_of("eps"), "are no plain values"),
        (lambda: one_of("eps", [1, 2]), "are no plain values"),
    ],
)
def test_a_term_that_cannot_be_is_refused_where_it_is_written(make, problem):
    with pytest.raises(DeclarationError) as caught:
        make()
    assert problem in caught.value.what


@pytest.mark.parametrize("word", ["domain", "sources"])
def test_a_single_value_is_not_a_list(word):
    value = dtype("x", "float32") if word == "domain" else "a.cpp"
    with pytest.raises(DeclarationError, match=f"{word} is .*, not a list"):
        implements("rms_norm@1", name="k", **{word: value})


def test_the_decorator_returns_the_function_and_stacks():
    def plain(x): ...

    one = implements("silu_and_mul@1", name="a")(plain)
    two = implements("silu_and_mul_out@1", name="b")(one)
    assert one is plain is two
    assert [c.name for c in claims_of(plain)] == ["a", "b"]
    assert claims_of(object()) == ()


def test_a_digest_covers_terms_and_files():
    plain = verify(claim(good), "acme", OPS)
    narrow = verify(claim(good, domain=[divisible("hidden", 8)]), "acme", OPS)
    source = verify(claim(good, sources=[Path(__file__).name]), "acme", OPS)
    digests = {plain.digest, narrow.digest, source.digest}
    assert len(digests) == 3
    assert plain.digest == verify(claim(good), "other", OPS).digest
    assert all(len(d) == 16 for d in digests)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("rms_norm", ("rms_norm", "functional", None)),
        ("rms_norm_", ("rms_norm", "inplace", None)),
        ("rms_norm_out@3", ("rms_norm", "out", 3)),
        ("kv_cache_write@1", ("kv_cache_write", "inplace", 1)),
        ("nothing@1", ("nothing", "", 1)),
        ("rms_norm@", ("rms_norm", "functional", -1)),
        ("rms_norm@²", ("rms_norm", "functional", -1)),
        ("rms_norm@\u0661", ("rms_norm", "functional", -1)),
        ("rms_norm@" + "1" * 5000, ("rms_norm", "functional", -1)),
        ("", ("", "", None)),
    ],
)
def test_targets_are_split(target, parts):
    assert split_target(target, OPS) == parts
