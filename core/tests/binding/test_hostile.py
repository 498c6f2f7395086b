from __future__ import annotations

import contextlib

import pytest
import torch

from stand_ins import ALL, linear_turned, make_device
from trivet import errors, implements, prefer, require
from trivet.contracts.implementation import claims_of
from trivet.errors import TrivetError
from trivet.plugins.verification import verify
from trivet.selection import lock as locks

TEXTS = ["", "x", "a b", "*", "@1", "rms_norm@", "rms_norm__", "_", "_out", "x.dtype"]
VALUES = [None, 5, -1, 1.5, float("nan"), b"x", object(), torch.zeros(2), torch.float32, True, len]
FACTS = [
    {None: 1},
    {"": 1},
    {".": 1},
    {"x.": 1},
    {"x.dtype.rank": 1},
    {"x.dtype": []},
    {"dtype": {}},
    {"hidden": torch.zeros(2)},
    {"hidden": [1]},
    {"eps": torch.tensor(1.0)},
    {"contiguous": [None]},
    {"tokens": float("inf")},
]
CONTAINERS = [[], [None], (), set(), range(3), *FACTS]


@pytest.fixture(scope="module")
def dev():
    return make_device(*ALL)


@pytest.fixture(scope="module")
def plan():
    return make_device(linear_turned).plan(
        {"norm": ("rms_norm", {}), "up": ("linear_packed", {"contiguous": True})}
    )


def entered(manager):
    with manager:
        pass


PLACES = {
    "operator": (lambda dev, plan, junk: dev.bind(junk), [*TEXTS, *VALUES]),
    "facts": (lambda dev, plan, junk: dev.bind("rms_norm", junk), [*TEXTS, *VALUES, *FACTS]),
    "order lists": (
        lambda dev, plan, junk: dev.bind("rms_norm", {}, prefer=junk),
        [*TEXTS, *VALUES, [None], {"x": "a/b"}, {"rms_norm": {}}, {"rms_norm": "x"}],
    ),
    "order list": (
        lambda dev, plan, junk: dev.bind("rms_norm", {}, prefer={"rms_norm": junk}),
        [*TEXTS, *VALUES, [None], {}],
    ),
    "explained arguments": (
        lambda dev, plan, junk: dev.explain("rms_norm", arguments=junk),
        [*TEXTS, *VALUES[1:], *FACTS, {}, []],
    ),
    "sites": (lambda dev, plan, junk: dev.plan(junk), [*TEXTS, *VALUES, *FACTS, [], [None]]),
    "site": (lambda dev, plan, junk: dev.plan({"a": junk}), [*TEXTS, *VALUES, *CONTAINERS]),
    "site's operator": (
        lambda dev, plan, junk: dev.plan({"a": (junk, {})}),
        [*TEXTS, *VALUES],
    ),
    "site's facts": (
        lambda dev, plan, junk: dev.plan({"a": ("rms_norm", junk)}),
        [*TEXTS, *VALUES, *FACTS],
    ),
    "packs": (lambda dev, plan, junk: dev.plan({}, packs=junk), [-1, 2, 1.5, None, "1"]),
    "step variable": (lambda dev, plan, junk: plan.at(**{junk: 1}), TEXTS),
    "explained site": (lambda dev, plan, junk: plan.explain(junk), [*TEXTS, None, 5]),
    "prepared site": (
        lambda dev, plan, junk: plan.prepare(junk, torch.zeros(2, 2)),
        [*TEXTS, None, 5, "norm"],
    ),
    "weight": (
        lambda dev, plan, junk: plan.prepare("up", junk),
        [*TEXTS, *[v for v in VALUES if not isinstance(v, torch.Tensor)], [], {}],
    ),
    "bias": (
        lambda dev, plan, junk: plan.prepare("up", torch.zeros(2, 2), junk),
        [*TEXTS, 5, True, [], {}],
    ),
    "scheduled site": (lambda dev, plan, junk: plan.at().schedule(junk), [*TEXTS, None, 5]),
    "preference": (
        lambda dev, plan, junk: entered(prefer(rms_norm=junk)),
        [*VALUES, [None], [5], {}],
    ),
    "property": (lambda dev, plan, junk: entered(require(junk)), [*TEXTS, None, 5]),
    "lock": (
        lambda dev, plan, junk: dev.plan({}, lock=junk),
        ["x", "a b", {}, {"sites": 1}, {"schema": 1}, {"schema": 1, "digest": None}],
    ),
    "lock document": (
        lambda dev, plan, junk: locks.checked(junk, "it"),
        [*TEXTS, *VALUES, *CONTAINERS],
    ),
    "target": (
        lambda dev, plan, junk: claimed(junk),
        [*TEXTS, *VALUES, *CONTAINERS],
    ),
    "provider": (
        lambda dev, plan, junk: claimed("rms_norm@1", name=junk),
        ["", "a b", "*", "@1", "rms_norm@", "_", "a/b", *VALUES],
    ),
    "domain": (lambda dev, plan, junk: claimed("rms_norm@1", domain=junk), [*TEXTS, *VALUES]),
}  # fmt: skip


def claimed(target, name="k", **kwargs):
    function = implements(target, name=name, **kwargs)(stranger)
    (claim,) = claims_of(function)[-1:]
    verify(claim, "acme", make_device()._binder.operators)


def stranger(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...


@pytest.mark.parametrize("place", PLACES)
def test_nonsense_is_refused_with_an_error_of_ours(dev, plan, place):
    attempt, everything = PLACES[place]
    for junk in everything:
        with pytest.raises(TrivetError) as caught:
            attempt(dev, plan, junk)
        assert str(caught.value).count(caught.value.code) == 1


def test_explain_never_raises_for_the_values_of_a_call(dev):
    good = {"x": torch.zeros(2, 8), "weight": torch.zeros(8)}
    for junk in [*TEXTS, *VALUES, *CONTAINERS]:
        for name in ("x", "weight", "eps", "weight_in_float32"):
            rows = dev.explain("rms_norm", arguments=good | {name: junk})
            assert rows[-1].provider == "reference"


def test_use_leaves_alone_what_it_does_not_know(plan):
    step = plan.at()
    for junk in [*TEXTS, *VALUES]:
        with contextlib.suppress(errors.OrderError):
            assert step.use(junk) is junk
