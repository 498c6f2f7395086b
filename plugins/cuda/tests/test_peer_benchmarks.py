"""The benchmarks' view of the peers: who is there on which device, and norms beside vLLM's."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trivet.contracts import DeviceInfo
from trivet.errors import PluginBroken
from trivet_cuda.peers.installed import Installed

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_peers_are_asked_about_the_device_that_is_there(script, monkeypatch):
    monkeypatch.setattr(Installed, "unmet", lambda *_: "")
    peers = script("gpu_peers")
    older, missing = peers.found(DeviceInfo("cuda", torch_type="cuda"))
    assert missing == {}  # a peer with one function less is there
    assert "rms_norm" in older["vllm"]
    assert "paged_attention" not in older["vllm"]
    newer, _ = peers.found(DeviceInfo("cuda", torch_type="cuda", features=("wgmma",)))
    assert "paged_attention" in newer["vllm"]
    assert set(peers.found(DeviceInfo("cuda"), ("liger",))[0]) == {"liger"}


def test_a_peer_that_is_not_installed_is_missing_with_its_reason(script, monkeypatch):
    monkeypatch.setattr(Installed, "unmet", lambda self, _: f"no {self.name}")
    here, missing = script("gpu_peers").found(DeviceInfo("cuda"))
    assert set(here) == {"torch"}
    assert missing["liger"] == "no liger_kernel"


@pytest.fixture
def host(script, monkeypatch):
    module = script("cuda_host")
    monkeypatch.setattr(module, "CALLS", 2)
    monkeypatch.setattr(module, "norm", SimpleNamespace(rms_norm=lambda x, _: x))
    monkeypatch.setattr(module, "at_bind", lambda cell: cell.function)
    kept = module.vllm_ops
    kept.cache_clear()
    yield module
    kept.cache_clear()


def test_small_norms_are_set_beside_those_of_vllm(host, monkeypatch, capsys):
    seen = []
    ops = SimpleNamespace(rms_norm=lambda y, x, *_: seen.append((y is x, y.shape)))
    monkeypatch.setattr(host, "vllm_ops", lambda: ops)
    took = {"empty_like": 1.0, "plain": 3.0, "bound": 2.0, "vllm": 4.0, "vllm into": 3.0}

    def measured(calls, rounds):
        assert rounds == 7
        for call, given in calls.values():
            call(*given)
        return {key: took[key[1]] for key in calls}

    monkeypatch.setattr(host, "measured", measured)
    rows = host.small_norms(7)
    assert [(r["tokens"], r["hidden"]) for r in rows] == [(1, 4096), (8, 4096)]
    assert all(r["bound/vllm"] == 0.5 and r["plain/vllm"] == 0.75 for r in rows)
    assert {w: rows[0][w] for w in took} == took
    assert seen == [(False, torch.Size([n, 4096])) for n in (1, 1, 8, 8)]
    host.tell_norms(rows)
    told = capsys.readouterr().out
    assert "rms_norm 8 x 4096: empty_like 1.0, plain 3.0" in told
    assert told.endswith("at most 0.8: kept\n")
    host.tell_norms([{"tokens": 1, "hidden": 4096, "bound/vllm": 0.81}])
    assert capsys.readouterr().out.endswith("missed\n")


def test_small_norms_without_vllm_say_that_no_ratio_was_taken(host, capsys):
    rows = host.small_norms(1)
    assert set(rows[0]) == {"tokens", "hidden", "empty_like", "plain", "bound"}
    host.tell_norms(rows)
    assert capsys.readouterr().out.endswith("not measured\n")


def test_a_vllm_that_does_not_load_is_said_and_left_out(host, monkeypatch, capsys):
    def broken():
        raise PluginBroken("peer vllm: no library", fix="install it")

    monkeypatch.setattr(host, "GPU", True)
    monkeypatch.setattr(host.peer_vllm, "ops", broken)
    assert host.vllm_ops() is None
    assert host.vllm_ops() is None
    assert capsys.readouterr().err.count("no library") == 1
