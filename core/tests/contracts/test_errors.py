from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch

from trivet import errors
from trivet.errors import (
    ContractBroken,
    LockMismatch,
    NoImplementation,
    OutOfMemory,
    PartialReclaim,
    TrivetError,
    all_errors,
)
from trivet.selection.choose import Row

EVERY = list(all_errors())
SPECIAL = {
    NoImplementation: {"trace": [Row("a/b", "no", "too small")]},
    ContractBroken: {"kind": "mutation"},
    LockMismatch: {"fields": ["torch: was 1, is 2"]},
    OutOfMemory: {"requested_bytes": 5, "free_bytes": 3, "tag": "kv", "retryable": True},
    PartialReclaim: {"done": ["weights"], "failed": {"kv_cache": "no room"}},
}


def make(cls):
    return cls("what is wrong", fix="do this", **SPECIAL.get(cls, {}))


def test_the_walk_finds_every_class_of_the_module_once():
    defined = {
        v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, TrivetError)
    }
    assert set(EVERY) == defined
    assert len(EVERY) == len(set(EVERY))
    for position, cls in enumerate(EVERY[1:], 1):
        assert any(base in EVERY[:position] for base in cls.__bases__), "parents first"


def test_codes_are_unique_and_stable():
    codes = [cls.code for cls in EVERY]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_each_says_what_it_means_its_cause_and_what_to_run(cls):
    assert cls.__doc__ is not None
    assert cls.__doc__.splitlines()[0].endswith((".", ";"))
    assert "code" in vars(cls), "a code of its own"
    assert cls.cause.endswith(".")
    assert cls.command.startswith(("trivet ", "trivet-"))


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_its_text_has_what_fix_code_and_command(cls):
    text = str(make(cls))
    lines = text.splitlines()
    assert lines[0] == "what is wrong"
    assert "  fix: do this" in lines
    assert lines[-1] == f"  [{cls.code}; more: {cls.command}]"
    without = cls("what is wrong", **SPECIAL.get(cls, {}))
    assert "fix:" not in str(without)


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
@pytest.mark.parametrize("how", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])  # noqa: S301  # our own bytes
def test_it_crosses_process_boundaries_whole(cls, how):
    error = make(cls)
    error.add_note("while testing")
    other = how(error)
    assert type(other) is cls
    assert str(other) == str(error)
    assert other.args == error.args
    assert vars(other) == vars(error)
    assert other.__notes__ == ["while testing"]


def test_builtin_families_still_catch_them():
    assert issubclass(OutOfMemory, torch.OutOfMemoryError)
    assert issubclass(errors.DomainError, ValueError)


def test_the_command_names_the_operator_where_it_is_known():
    for cls in (errors.DomainError, NoImplementation):
        text = str(cls("what is wrong", operator="rms_norm"))
        assert text.endswith(f"[{cls.code}; more: trivet explain rms_norm]")
        assert "more: trivet explain OPERATOR]" in str(cls("what is wrong"))
        again = pickle.loads(pickle.dumps(cls("what is wrong", operator="silu")))  # noqa: S301
        assert again.more() == "trivet explain silu"


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({}, "no room"),
        ({"free_bytes": 0}, "no room\n    free: 0 bytes"),
        ({"limit_bytes": 8}, "no room\n    limit: 8 bytes"),
        ({"free_bytes": 3, "limit_bytes": 8}, "no room\n    free: 3 bytes\n    limit: 8 bytes"),
    ],
)
def test_out_of_memory_says_what_is_known(facts, what):
    error = OutOfMemory("no room", requested_bytes=5, **facts)
    assert error.what == what
    assert str(error).startswith(what)
    assert pickle.loads(pickle.dumps(error)).what == what  # noqa: S301 - our own
