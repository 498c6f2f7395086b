from __future__ import annotations

import os

import pytest

import trivet
from llm import bound

FACTS = {"dtype": "float32", "contiguous": True, "inter": 64}


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch):
    for name in [n for n in os.environ if n.startswith("TRIVET_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Plans one site under variables and a ``trivet.toml``."""
    monkeypatch.chdir(tmp_path)

    def plan(file="", **environ):
        for name, value in environ.items():
            monkeypatch.setenv(f"TRIVET_{name}", str(value))
        if file:
            (tmp_path / "trivet.toml").write_text(file, encoding="utf-8")
        return trivet.device("cpu").plan({"glu": ("silu_and_mul", FACTS)})

    return plan


def why(plan):
    (row,) = bound.rows(plan, None)
    assert (row["site"], row["operator"], row["form"]) == ("glu", "silu_and_mul", "functional")
    return row["implementation"], row["why"]


def test_the_first_of_a_package_says_so(planned):
    assert why(planned()) == ("cpu/vec", "first in the order of its package")


def test_who_preferred_it_is_named(planned):
    provider, reason = why(planned('[providers]\nsilu_and_mul = ["reference"]\n'))
    assert provider == "reference"
    assert reason.startswith("preferred by ")
    assert reason.endswith("trivet.toml [providers] silu_and_mul")


def test_what_was_refused_before_it_is_named(planned):
    provider, reason = why(planned(FORBID="silu_and_mul=cpu/vec"))
    assert (provider, reason) == (
        "reference",
        "cpu/vec not: forbidden by TRIVET_FORBID silu_and_mul",
    )


def test_a_guard_is_named(planned):
    plan = trivet.device("cpu").plan({"glu": ("silu_and_mul", {})})
    first, last = bound.rows(plan, None)
    assert first["why"].startswith("where dtype(x")
    assert (last["implementation"], last["why"]) == (
        "reference",
        "no package implements it for every call",
    )


def test_rows_have_what_was_counted_before_the_reason(planned):
    (row,) = bound.rows(planned(), {("glu", "cpu/vec"): {"calls": 3, "seconds": 0.5}})
    assert list(row) == [
        *("site", "operator", "form", "implementation"),
        *("calls", "seconds", "why"),
    ]


def test_sites_hold_their_implementations():
    plan = trivet.device("cpu").plan({"glu": ("silu_and_mul", {})})
    assert list(bound.by_site(bound.rows(plan, None))["glu"]["implementations"]) == [
        "cpu/vec",
        "reference",
    ]


def test_nothing_is_told_of_settings_that_nobody_changed(planned):
    assert bound.settings(planned()) == []


def test_changed_settings_come_with_their_origin(planned, tmp_path):
    lock = tmp_path / "lock.json"
    planned().save_lock(lock)
    file = '[providers]\nsilu_and_mul = ["cpu/vec"]\n[run]\nstrict = true\n'
    plan = planned(file, LOCK=lock, FORBID="silu=cpu/vec;*=cpu/torch")
    path = str(tmp_path / "trivet.toml")
    assert sorted(bound.settings(plan)) == [
        ("trivet.config", path, "found"),
        ("trivet.forbid", "silu=cpu/vec;*=cpu/torch", "TRIVET_FORBID"),
        ("trivet.lock", str(lock), "TRIVET_LOCK"),
        ("trivet.providers.silu_and_mul", "cpu/vec", path),
        ("trivet.strict", True, f"{path} run.strict"),
    ]
