from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from trivet.kernels.triton.tuning.trials import forget
from trivet_cuda.triton_kernels import kv_cache, rotary, rotary_kv_cache, rotary_trials

CPU = torch.device("cpu")
TRIALS = {
    "rotary": (rotary_trials.rotary, rotary_trials.ROTARY_KEYS, rotary, 2),
    "fused": (rotary_trials.rotary_kv_cache, rotary_trials.FUSED_KEYS, rotary_kv_cache, 3),
    "kv": (rotary_trials.kv_cache, rotary_trials.KV_CACHE_KEYS, kv_cache, 2),
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_asks_its_table_for_its_own_key(monkeypatch, name):
    """So that what is measured is what a call finds."""
    trial, keys, module, results = TRIALS[name]
    asked = []
    real = module._TUNED.buckets
    monkeypatch.setattr(module._TUNED, "buckets", lambda a, k: asked.append(k) or real(a, k))
    forget("trivet_cuda.triton_kernels")
    for key in keys[:2]:
        call, moved = trial(key, 2, {}, CPU)
        assert moved > 0
        assert len(call()) == results
    assert [dict(k) for k in asked] == [dict(k) for k in keys[:2]]


@pytest.mark.parametrize("name", TRIALS)
def test_every_key_has_configs_to_measure(name):
    _, keys, module, _ = TRIALS[name]
    space = getattr(module, "space", rotary.space)
    for key in keys:
        found = list(space(key, 64))
        assert len(found) > 4
        assert all(set(c) == set(found[0]) for c in found)
        assert all(set(c) == set(found[0]) for _, c in module._TUNED.default(key))
