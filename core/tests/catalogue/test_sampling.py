from __future__ import annotations

import pytest
import torch

from stand_ins import OPS
from trivet.catalogue.philox import philox
from trivet.errors import DomainError

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    got = philox(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert " ".join(f"{int(g):08x}" for g in got) == words


def draws(logits, count, **limits):
    """The choices at many positions under one seed."""
    limits = {n: torch.tensor([v]).expand(count) for n, v in limits.items()}
    if "top_k" in limits:
        limits["top_k"] = limits["top_k"].int()
    seed, position = torch.full((count,), 7), torch.arange(count)
    rows = logits.expand(count, -1)
    return OPS["sample_token"].reference(rows, **limits, seed=seed, position=position)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"temperature": 1.0}, 12),
        ({"temperature": 0.5}, 12),
        ({"temperature": 1.0, "top_k": 4}, 4),
        ({"temperature": 1.0, "top_k": 6, "top_p": 0.8}, 4),
        ({"temperature": 1.0, "min_p": 0.3}, 4),
    ],
    ids=str,
)
def test_choices_are_as_frequent_as_the_softmax_says(limits, kept):
    """Chi-square; 40 is beyond the 0.9999 quantile of 11 degrees of freedom, 33.1."""
    logits = torch.linspace(1.5, -2.4, 12)
    count = 20_000
    wanted = (logits[:kept] / limits["temperature"]).double().softmax(0) * count
    have = torch.bincount(draws(logits, count, **limits), minlength=12).double()
    assert not have[kept:].any()
    assert float(((have[:kept] - wanted) ** 2 / wanted).sum()) < 40
    wrong = (logits[:kept] / limits["temperature"] * 1.2).double().softmax(0) * count
    assert float(((have[:kept] - wrong) ** 2 / wrong).sum()) > 40


def test_a_choice_depends_on_its_own_seed_and_position_alone():
    op, logits = OPS["sample_token"], torch.zeros(6, 500)
    given = {
        "temperature": torch.ones(6),
        "seed": torch.tensor([1, 1, 2, 1, 2**40 + 1, 1]),
        "position": torch.tensor([5, 5, 5, 6, 5, 2**40 + 5]),
    }
    chosen = op.reference(logits, **given).tolist()
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 5
    alone = {n: v[2:3] for n, v in given.items()}
    assert op.reference(logits[2:3], **alone).tolist() == chosen[2:3]


def test_parts_of_a_vocabulary_choose_what_the_whole_chooses():
    logits = torch.randn(50, 203, generator=torch.Generator().manual_seed(1))
    given = {
        "temperature": torch.tensor([0.0, 0.7]).repeat(25),
        "seed": torch.arange(50),
        "position": torch.arange(50) * 3,
    }
    whole = OPS["sample_token"].reference(logits, **given)
    part = OPS["sample_token_part"].reference
    parts = [part(logits[:, a:b], a, **given) for a, b in ((0, 66), (66, 67), (67, 203))]
    best = torch.stack([s for s, _ in parts]).argmax(0, keepdim=True)
    assert torch.equal(torch.stack([i for _, i in parts]).gather(0, best)[0], whole)


def test_rows_that_are_not_finite_are_chosen_greedily():
    rows = torch.zeros(3, 9)
    rows[0, [4, 7]], rows[1, [3, 8]], rows[2] = torch.nan, torch.inf, -torch.inf
    given = {"temperature": torch.ones(3), "seed": torch.arange(3), "position": torch.arange(3)}
    for function in (OPS["sample_token"].reference, OPS["sample_token"].oracle):
        assert function(rows, **given).tolist() == [4, 3, 0]


def test_what_means_nothing_is_refused():
    reference, logits, one = OPS["sample_token"].reference, torch.zeros(1, 9), torch.ones(1)
    keys = {"seed": torch.ones(1).long(), "position": torch.ones(1).long()}
    with pytest.raises(DomainError, match="temperature is given, seed is not"):
        reference(logits, one, position=keys["position"])
    with pytest.raises(DomainError, match="temperature is given, position is not"):
        reference(logits, one, seed=keys["seed"])
    for wrong in ({"temperature": -one}, {"top_p": 0 * one}, {"top_p": 2 * one}, {"min_p": -one}):
        with pytest.raises(DomainError, match=rf"{next(iter(wrong))}\[0\] is"):
            reference(logits, **{"temperature": one} | wrong | keys)
    with pytest.raises(DomainError, match="first=-1"):
        OPS["sample_token_part"].reference(logits, -1)
