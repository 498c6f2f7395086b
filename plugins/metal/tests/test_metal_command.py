from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from trivet.contracts import DeviceInfo
from trivet_metal import benchmarks, command, verification
from trivet_metal.discovery import Finding, Obstacle
from trivet_metal.status import STATUS


def call(*words):
    return CliRunner().invoke(command.main, [str(w) for w in words])


@pytest.fixture
def nothing(monkeypatch):
    found = Finding(obstacle=Obstacle.NOT_MACOS, reason="this is Plan 9")
    monkeypatch.setattr(command, "this_machine", lambda: found)


@pytest.fixture
def mac(monkeypatch):
    """A Mac in name alone: tensors lie on the processor, the kit is left out."""
    info = DeviceInfo("metal", name="Apple M0", dtypes=frozenset({"float32", "float16"}))
    for module in (command, verification):
        monkeypatch.setattr(module, "this_machine", lambda: Finding(device=info))
    monkeypatch.setattr(
        verification, "kit", lambda words, *, quick: {
            "exit_status": int("hardware" not in words), "counts": {"pass": 3}, "bad": [],
            "said": "",
        },
    )  # fmt: skip


def test_without_a_gpu_nothing_is_verified_and_it_is_said(nothing, tmp_path):
    done = call("verify-on-hardware", "--json", tmp_path / "out.json")
    assert done.exit_code == 1
    assert "nothing can be verified here: this is Plan 9" in done.stderr
    assert STATUS in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_status_says_what_the_kernels_were_run_on(nothing):
    done = call("status")
    assert done.exit_code == 0
    assert STATUS in done.stdout
    assert "none: this is Plan 9" in done.stdout


def test_on_a_mac_everything_goes_into_one_file(emulator, mac, tmp_path):
    done = call("verify-on-hardware", "--quick", "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["status_before"] == STATUS
    assert made["device"]["name"] == "Apple M0"
    assert made["machine"]["system"]
    timed = {(row["operator"], row["dtype"]) for row in made["benchmarks"]}
    assert {t for _, t in timed} == {"torch.float32", "torch.float16"}
    assert {"rms_norm", "linear", "kv_cache_write"} <= {name for name, _ in timed}
    assert all(row["ours_us"] > 0 and row["torch_us"] > 0 for row in made["benchmarks"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_is_timed_computes_the_same(emulator, dtype):
    near = 1e-4 if dtype is torch.float32 else 3e-2
    for name, ours, other in benchmarks.pairs(torch.device("cpu"), benchmarks.TINY[0], dtype):
        mine, theirs = ours(), other()
        if mine is None:
            continue
        mine = list(mine) if isinstance(mine, list | tuple) else [mine]
        theirs = list(theirs) if isinstance(theirs, list) else [theirs]
        for a, b in zip(mine, theirs, strict=False):
            torch.testing.assert_close(a, b, rtol=near, atol=near, msg=name)
