from __future__ import annotations

import logging

import pytest

import trivet
from fake_dists import FakeDists, installed
from trivet.errors import NoImplementation
from trivet.plugins import reset

DRIFTED = """
    from trivet.contracts import DeviceInfo, implements

    def trivet_devices():
        return [DeviceInfo("acme")]

    def trivet_implementations(device):
        return [norm]

    @implements("rms_norm@1", name="plain")
    def norm(x, weight, eps=1e-6, offset=0.0, weight_in_float32=False, variance_size=0):
        return x
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    dists: FakeDists = installed(tmp_path, monkeypatch)
    dists.add("acme-dist", "acme", DRIFTED)
    reset()
    yield
    reset()


def test_a_refused_implementation_is_explained(acme):
    rows = {row.provider: row for row in trivet.device("acme").explain("rms_norm")}
    assert rows["acme/plain"].verdict == "no"
    assert rows["acme/plain"].note == "refused"
    assert "parameter 4 is 'offset', the operator has 'weight_offset'" in rows["acme/plain"].reason
    assert rows["reference"].verdict == "yes"


def test_strict_does_not_take_a_refused_provider_for_none(acme):
    with pytest.raises(NoImplementation, match="'offset'"):
        trivet.device("acme", strict=True).bind("rms_norm")


def test_a_refusal_is_said_once_when_the_device_starts(acme, caplog):
    with caplog.at_level(logging.WARNING, "trivet"):
        trivet.device("acme")
    assert "weight_offset" in caplog.text


@pytest.mark.parametrize("how", ["bind", "plan"])
def test_a_refused_provider_that_was_asked_for_is_a_warning(acme, caplog, how):
    dev = trivet.device("acme")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "trivet.bind"), trivet.prefer(rms_norm="acme/plain"):
        dev.bind("rms_norm") if how == "bind" else dev.plan({"norm": ("rms_norm", {})})
    (record,) = caplog.records
    assert "does not run as asked: acme/plain no: " in record.getMessage()
    assert "'weight_offset'" in record.getMessage()
