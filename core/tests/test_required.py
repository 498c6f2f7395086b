from __future__ import annotations

import pytest

import required
from trivet.kernels import triton as layer


def test_what_is_missing_is_not_run_unless_it_is_required(monkeypatch):
    monkeypatch.setattr(layer, "available", lambda: "no Triton")
    monkeypatch.setenv("TRIVET_REQUIRE", "compiler")
    with pytest.raises(pytest.skip.Exception, match="not_run: no Triton"):
        required.triton()
    with pytest.raises(pytest.skip.Exception, match="not_run: No module named 'no_such'"):
        required.module("no_such")
    monkeypatch.setenv("TRIVET_REQUIRE", "compiler,triton,no_such")
    with pytest.raises(pytest.fail.Exception, match="TRIVET_REQUIRE names triton, but no Triton"):
        required.triton()
    with pytest.raises(pytest.fail.Exception, match="names no_such"):
        required.module("no_such")
