"""What a group's ``p2p`` is made of: the vendor's claim, less what a kept probe found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagined_machines import Said, mock
from trivet import topology
from trivet.collectives import assembly
from trivet.contracts.collectives import Member

MEMBERS = (
    Member(0, "one", 1, "meta:0"), Member(1, "one", 2, "meta:1"), Member(2, "two", 3, "meta:1"),
)  # fmt: skip


def row(said):
    return assembly._row(said, MEMBERS, 0)


@pytest.fixture
def keep(tmp_path, monkeypatch):
    topology.kept.cache_clear()

    def keep(**how):
        named = mock(2).to_json()
        text = {"reader": "meta:0", "owner": "meta:1", "claimed": True} | how
        named["nodes"] += [{"name": n, "kind": "device"} for n in ("meta:0", "meta:1")]
        path = tmp_path / "kept.json"
        topology.dump(replace(topology.from_json(named | {"access": [text]})), path)
        monkeypatch.setenv("TRIVET_TOPOLOGY", str(path))

    yield keep
    topology.kept.cache_clear()


def test_a_member_reaches_itself_and_what_the_vendor_claims_on_its_host():
    assert row(Said(2)) == [True, True, False]
    assert row(Said(2, refused=[(0, 1)])) == [True, False, False]


def test_a_kept_probe_takes_a_claim_away(keep):
    keep(probed=False)
    assert row(Said(2)) == [True, False, False]


def test_a_kept_file_adds_no_claim(keep):
    keep(probed=True)
    assert row(Said(2)) == [True, True, False]
    assert row(Said(2, refused=[(0, 1)])) == [True, False, False]
