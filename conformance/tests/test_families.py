"""How runs speak: what is not claimed, what cannot be checked, and what foreign code breaks."""

from __future__ import annotations

import torch

from trivet.catalogue.norm import rms_norm
from trivet.contracts import contiguous, divisible, dtype, feature, implements, one_of
from trivet.errors import DomainError
from trivet_conformance import Status, from_functions, references, run
from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD
from trivet_conformance.running.run import every_check


@implements("rms_norm@1", name="single", domain=[dtype("x", "float32"), dtype("weight", "float32")])
def single(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)


@implements("rms_norm@1", name="unreachable", domain=[one_of("hidden", 8), divisible("hidden", 3)])
def unreachable(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)


@implements("rms_norm@1", name="raises", requires=[feature("wings")])
def raises(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    msg = "no wings"
    raise OSError(msg)


def test_a_dtype_that_is_not_claimed_is_never_passed():
    found = list(run(from_functions([single], "toy"), families=["value"], quick=True))
    by_dtype = {}
    for result in found:
        by_dtype.setdefault(result.dtype, set()).add(result.status)
    assert by_dtype.pop("float32") == {Status.PASS}
    assert by_dtype
    assert all(statuses == {Status.NOT_SUPPORTED} for statuses in by_dtype.values())


def test_a_domain_that_no_call_reaches_is_an_error():
    found = list(run(from_functions([unreachable], "toy"), quick=True))
    found = [r for r in found if r.status is not Status.NOT_SUPPORTED]  # families that ask nothing
    assert found
    assert {r.status for r in found if r.family != "layout"} == {Status.ERROR}


def test_what_a_provider_raises_is_a_failure_with_its_words():
    found = list(run(from_functions([raises], "toy"), families=["value"], quick=True))
    assert {r.status for r in found} == {Status.FAIL}
    assert "raised OSError: no wings" in found[0].finding.reason


def test_a_term_that_excludes_no_call_is_said_to_be_unchecked():
    found = list(run(from_functions([single], "toy"), families=["layout"], quick=True))
    assert any(r.status is Status.FAIL for r in found)  # it does not refuse other dtypes itself
    assert not any(r.status is Status.ERROR for r in found)


def test_every_check_of_the_reference_passes_and_has_power():
    subject = references().only(["silu_and_mul", "kv_cache_write", "sample_token"])
    few = references().only(["fused_add_rms_norm", "linear_packed"])  # made of parts, and staged
    power = dict.fromkeys(FAMILIES, 0)
    own = run(few, families=["fusion", "staged"], quick=True)
    for result in [*run(subject, quick=True), *own]:
        assert result.status not in BAD, (result.id, result.finding.reason)
        power[result.family] += result.finding.power
    assert all(n for family, n in power.items() if family != "stream"), power  # it needs a device


def test_one_check_alone_gives_the_same_answer():
    subject = references().only(["rms_norm"])
    every = list(run(subject, families=["value"], quick=True, seed=5))
    chosen = every[len(every) // 2]
    (again,) = run(subject, quick=True, seed=5, case=chosen.id)
    assert again == chosen
    assert chosen.repro.startswith("trivet-conformance run --plugin reference --seed 5 --case ")


def test_ids_are_unique():
    subject = references().only(["rotary_embedding"])
    ids = [place.id for place, _ in every_check(subject, (), Bench(0, quick=True))]
    assert ids
    assert len(ids) == len(set(ids))


def test_the_number_of_threads_is_left_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = {torch.get_num_threads() for _ in run(references().only(["embedding"]), quick=True)}
    finally:
        torch.set_num_threads(before)
    assert seen == {2}


@implements("rms_norm_@1", name="returns")
def returns(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    x.copy_(rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size))
    return x


@implements("rms_norm@1", name="writes_x")
def writes_x(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    y = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return x.copy_(y).clone()


@implements("rms_norm@1", name="writes_behind")
def writes_behind(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    y = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    end = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    x.as_strided((1,), (1,), end + 1).fill_(1.0)
    return y


@implements("rms_norm_@1", name="plain", domain=[contiguous("x"), contiguous("weight")])
def in_place(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    if not (x.is_contiguous() and weight.is_contiguous()):
        msg = "x and weight are contiguous"
        raise DomainError(msg)
    x.copy_(rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size))


def reasons(function, family):
    found = list(run(from_functions([function], "toy"), families=[family], quick=True))
    return {r.finding.reason for r in found if r.status is Status.FAIL}


def test_a_form_that_returns_what_it_wrote_is_told_what_to_do():
    (reason,) = reasons(returns, "meta")
    assert reason.endswith("returns nothing: delete the return")


def test_only_memory_around_an_argument_is_around_it():
    changed = reasons(writes_x, "alias")
    assert any("changed its input 'x'" in r for r in changed)
    assert not any("memory around x changed" in r for r in changed)
    assert any("memory around x changed" in r for r in reasons(writes_behind, "alias"))


def test_an_in_place_form_is_called_with_views_outside_its_domain():
    found = list(run(from_functions([in_place], "toy"), families=["layout"], quick=True))
    terms = [r for r in found if ":term" in r.case]
    assert {r.case.partition("=")[2].partition(":")[0] for r in terms} == {
        "contiguous(x)", "contiguous(weight)",
    }  # fmt: skip
    assert {r.status for r in terms} == {Status.REFUSED_OK}
