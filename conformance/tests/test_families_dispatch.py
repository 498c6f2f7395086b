"""What dispatch, errors, fusion, staged and stream ask, beyond their mutants."""

from __future__ import annotations

import types

import pytest
import torch

from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.contracts import dtype, implements
from trivet.errors import DomainError
from trivet_conformance import Status, from_functions, references, run
from trivet_conformance.families import dispatch, stream
from trivet_conformance.result import BAD
from trivet_conformance.selftest.mutants.by_family.stream import DEVICE_VARIANTS

FAMILIES = ("dispatch", "errors", "fusion", "staged", "stream")
OPERATORS = ["fused_add_rms_norm", "linear_packed", "kv_cache_write"]


@implements("rms_norm@1", name="single", domain=[dtype("x", "float32")])
def single(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    if x.dtype != torch.float32:
        msg = "x is not float32"
        raise DomainError(msg)
    return rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)


def _keeps(facts, weight, bias):
    return [weight]


@implements("linear_packed@1", name="keeps", prepare=_keeps)
def keeps(x, packed, out_features, bias=None):
    return linear.reference(x, packed[0][:out_features], bias)


@pytest.fixture(scope="module")
def found():
    subject = references().only(OPERATORS)
    return list(run(subject, families=FAMILIES, quick=True))


def test_references_are_accepted(found):
    assert [(r.id, r.finding.reason) for r in found if r.status in BAD] == []
    for family in ("dispatch", "errors", "fusion", "staged"):
        assert sum(r.finding.power for r in found if r.family == family), family


def test_what_cannot_be_asked_is_said_once_with_a_reason(found):
    silent = [r for r in found if r.status is Status.NOT_SUPPORTED]
    assert all(r.finding.reason for r in silent)
    streams = [r for r in found if r.family == "stream"]
    assert len(streams) == len(OPERATORS)
    assert {r.status for r in streams} == {Status.NOT_SUPPORTED}
    fused = {r.op for r in found if r.family == "fusion" and r.status is Status.PASS}
    assert fused == {"fused_add_rms_norm"}


def test_what_is_not_installed_is_not_asked_for_in_another_process():
    results = run(from_functions([single], "toy"), families=["dispatch"], quick=True)
    (fresh,) = [r for r in results if ":process:" in r.id]
    assert fresh.status is Status.NOT_RUN
    assert "not installed" in fresh.finding.reason


def test_a_pack_that_is_the_weight_itself_is_legal():
    results = list(run(from_functions([keeps], "toy"), families=["staged"], quick=True))
    assert {r.status for r in results} == {Status.PASS}
    assert any(":square:" in r.id for r in results)


def test_every_wrong_argument_is_one_check():
    results = list(run(from_functions([single], "toy"), families=["errors"], quick=True))
    judged = [r for r in results if r.status is not Status.NOT_SUPPORTED]
    assert {r.status for r in judged} == {Status.REFUSED_OK}
    assert {r.finding.inputs["argument"] for r in judged} == set(rms_norm.parameters)


def plain(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)


def _site(facts):
    def made(*values):
        return plain(*values)

    return made


_KEPT = _site({})


def _kept(facts):
    return _KEPT


@pytest.mark.parametrize("resolve", [_site, _kept, lambda facts: None])
def test_a_function_that_a_claim_makes_for_a_site_is_its_own(resolve):
    function = types.FunctionType(plain.__code__, globals(), "plain", plain.__defaults__)
    mark = implements("rms_norm@1", name="made", resolve=resolve)
    results = run(from_functions([mark(function)], "toy"), families=["dispatch"], quick=True)
    binds = [r for r in results if ":bind:" in r.id]
    assert binds
    assert [(r.status, r.finding.power) for r in binds] == [(Status.PASS, 2)] * len(binds)


def test_only_the_claim_s_own_function_is_the_function_itself():
    wrapper = dispatch._wrapper(_KEPT)
    assert dispatch.another(wrapper, [_KEPT, _KEPT])
    assert dispatch.another(_site({}), [_KEPT, _KEPT])
    assert not dispatch.another(_site({}), [_site({}), _site({})])
    assert dispatch.another(wrapper, [_site({}), _site({})])


def test_devices_without_streams_say_so():
    assert "cpu" in stream.unsupported(torch.device("cpu"))
    assert "meta" in stream.unsupported(torch.device("meta"))
    assert len(DEVICE_VARIANTS) >= 3
    assert {v.killer for v in DEVICE_VARIANTS} == {stream.NAME}
