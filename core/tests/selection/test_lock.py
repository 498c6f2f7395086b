from __future__ import annotations

import json

import pytest
import torch

from stand_ins import linear_turned, make_device, norm_big, norm_small, norm_vec
from trivet.contracts import implements, one_of
from trivet.errors import ConfigError, LockMismatch
from trivet.selection import lock as locks

SITES = {
    "norm": ("rms_norm", {"hidden": 64, "dtype": "bfloat16", "tokens": "rows"}),
    "head": ("linear_packed", {"contiguous": True, "out_features": 8, "tokens": range(1, 9)}),
}


@pytest.fixture
def dev():
    return make_device(norm_vec, norm_small, norm_big, linear_turned)


def sealed(document):
    return document | {"digest": locks.digest(document)}


def test_a_saved_lock_is_sorted_and_verifies(dev, tmp_path):
    plan = dev.plan(SITES)
    path = tmp_path / "trivet.lock.json"
    plan.save_lock(path)
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    assert text == json.dumps(document, indent=1, sort_keys=True) + "\n"
    assert document["digest"] == plan.digest
    assert list(tmp_path.glob("*.part")) == []
    norm = document["sites"]["norm"]
    assert norm["op"] == "rms_norm@1"
    assert norm["facts"]["tokens"] == "rows"
    assert norm["choices"][0]["when"] == [["between", "tokens", 1, 16]]
    assert document["sites"]["head"]["facts"]["tokens"] == [1, 8]
    for given in (path, str(path), document):
        assert dev.plan(SITES, lock=given) is plan


def test_a_lock_of_the_environment_is_used(dev, tmp_path, monkeypatch):
    path = tmp_path / "trivet.lock.json"
    dev.plan(SITES, prefer={"rms_norm": "acme/big"}).save_lock(path)
    monkeypatch.setenv("TRIVET_LOCK", str(path))
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=acme/small")
    first = dev.plan(SITES).explain("norm")[0]
    assert (first.provider, first.note) == ("acme/big", "preferred by lock")


def test_a_mismatch_lists_every_field_with_both_values(dev):
    document = json.loads(json.dumps(dev.plan(SITES).lock))
    document["torch"] = "1.0"
    document["numerics"]["onednn_enabled"] = "perhaps"
    document["sites"]["norm"]["facts"]["hidden"] = 65
    document["sites"]["gone"] = document["sites"]["head"]
    with pytest.raises(LockMismatch) as caught:
        dev.plan(SITES, lock=sealed(document))
    fields = {f.partition(":")[0]: f for f in caught.value.fields}
    assert set(fields) == {
        "torch",
        "numerics.onednn_enabled",
        "sites.norm.facts.hidden",
        "sites.gone",
    }
    assert fields["sites.norm.facts.hidden"].endswith("locked 65, now 64")
    gone = "sites.gone: locked linear_packed@1 on acme/turned, now no such site"
    assert fields["sites.gone"] == gone
    assert fields["torch"] == f"torch: locked 1.0, now {torch.__version__}"
    assert "4 field(s)" in caught.value.what
    assert "torch: locked" in str(caught.value)


def test_another_kernel_of_the_same_name_is_a_mismatch(dev):
    document = dev.plan(SITES).lock
    with pytest.raises(LockMismatch) as caught:
        make_device(norm_vec, other_small, norm_big, linear_turned).plan(SITES, lock=document)
    (field,) = caught.value.fields
    locked, _, now = field.removeprefix("sites.norm.choices: locked ").partition(", now ")
    small = "acme/small of digest "
    assert small in locked
    assert small in now
    assert locked != now


def test_a_mismatch_is_plain_text(dev, monkeypatch):
    document = json.loads(json.dumps(dev.plan(SITES).lock))
    document["plugins"]["gone"] = "gone-dist 1.0"
    document["sites"]["norm"]["choices"][0]["when"] = [["divisible", "hidden", 16]]
    document["sites"]["norm"]["facts"]["bias"] = None
    with pytest.raises(LockMismatch) as caught:
        dev.plan(SITES, lock=sealed(document))
    fields = {f.partition(":")[0]: f.partition(": ")[2] for f in caught.value.fields}
    assert fields["plugins.gone"] == "locked gone-dist 1.0, now no site uses it"
    assert "when divisible(hidden, 16)" in fields["sites.norm.choices"]
    assert fields["sites.norm.facts.bias"] == "locked none, now nothing"
    assert not any(mark in str(caught.value) for mark in '"{}')


def test_what_a_lock_overrides_is_said(dev, monkeypatch, caplog):
    document = dev.plan(SITES).lock
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=acme/big")
    with caplog.at_level("INFO", "trivet.bind"):
        plan = dev.plan(SITES, lock=document)
    source = "TRIVET_PROVIDERS rms_norm"
    assert plan.sites["norm"].choice.overruled == source
    assert plan.sites["head"].choice.overruled == ""
    assert f"rms_norm: the lock overrides {source}" in caplog.messages
    monkeypatch.setenv("TRIVET_PROVIDERS", f"rms_norm={plan.explain('norm')[0].provider}")
    assert dev.plan(SITES, lock=document).sites["norm"].choice.overruled == ""


@implements("rms_norm@1", name="small", domain=norm_small.__trivet__[0].domain)
def other_small(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.replace("acme/small", "acme/vec"), "its digest does not fit its content"),
        (lambda t: t[: len(t) // 2], "cannot be read"),
        (lambda t: t.replace('"schema": 1', '"schema": 2'), "is no trivet lock of schema 1"),
        (lambda t: "[]", "is no trivet lock of schema 1"),
        (lambda t: "", "cannot be read"),
        (lambda t: "\udcff", "cannot be read"),
    ],
)
def test_an_edited_or_broken_file_is_refused(dev, tmp_path, change, problem):
    path = tmp_path / "lock.json"
    dev.plan(SITES).save_lock(path)
    path.write_bytes(change(path.read_text()).encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        dev.plan(SITES, lock=path)
    assert problem in caught.value.what
    assert str(path) in caught.value.what


def test_a_file_that_is_not_there_is_refused(dev, tmp_path):
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            dev.plan(SITES, lock=path)


@pytest.mark.parametrize(
    "sites",
    [[], None, {"norm": {}}, {"norm": {"op": 1, "choices": []}}, {"norm": {"op": "a@1"}},
     {"norm": {"op": "a@1", "choices": [{}]}}, {"norm": 5}],
)  # fmt: skip
def test_a_document_that_trivet_did_not_write_is_refused(dev, sites):
    with pytest.raises(ConfigError, match="the lock given: its sites are not what trivet writes"):
        dev.plan(SITES, lock=sealed({"schema": 1, "sites": sites}))
    with pytest.raises(ConfigError):
        dev.plan(SITES, lock={"sites": sites})


def test_a_choice_that_no_longer_exists_is_a_mismatch_not_a_name_error(dev):
    document = dev.plan(SITES, prefer={"rms_norm": "acme/big"}).lock
    with pytest.raises(LockMismatch):
        make_device(norm_vec, norm_small, linear_turned).plan(SITES, lock=document)


@implements("rms_norm@1", name="typed", domain=[one_of("x.dtype", torch.float32)])
def norm_typed(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    raise NotImplementedError


def test_dtypes_in_terms_are_written_by_name():
    document = make_device(norm_typed).plan({"norm": ("rms_norm", {})}).lock
    assert document["sites"]["norm"]["choices"][0]["when"] == [["one_of", "x.dtype", "float32"]]
