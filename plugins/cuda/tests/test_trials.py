"""Every tuned kernel can be measured: its trial runs interpreted and agrees with its default."""

from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.kernels.triton.kernel_set import tuned_of
from trivet.kernels.triton.tuning import trials
from trivet_cuda.kernel_set import kernel_set
from trivet_cuda.target import INTERPRETED

TUNED = kernel_set().tuned()
SMALL = {"hidden": 256, "width": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "half": 32}
"""Sizes in place of a model's: a program takes milliseconds."""


@pytest.mark.parametrize("name", sorted(TUNED))
def test_a_trial_asks_for_its_key_and_configs_agree(name):
    one = TUNED[name]
    key = {n: SMALL.get(n, v) for n, v in one.trials.keys[0].items()}
    usual, *others = trials.choices(one.tuned, INTERPRETED, key, 2)
    for config in (usual, *others[:1]):
        trial = (one.module, name, one.trials.trial, key, config, [2], "cpu", INTERPRETED)
        assert trials.attempt(*trial) == {2: trials.Verdict(trials.OK)}
    made = trials.prepared(one, key, 2, usual, torch.device("cpu"))
    assert made.moved > 0


def test_no_tuned_kernel_of_the_package_is_left_out():
    from importlib import import_module

    every = {n for module in kernel_set().modules for n in tuned_of(import_module(module))}
    assert every == TUNED.keys()
