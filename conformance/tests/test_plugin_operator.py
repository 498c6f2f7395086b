from __future__ import annotations

import re
import types
from pathlib import Path

import torch
from torch import Tensor

from trivet.contracts import Cases, dtype, implements, operator
from trivet_conformance.result import BAD, Status
from trivet_conformance.running.run import run
from trivet_conformance.subject.subject import from_functions, installed

TUTORIAL = Path(__file__).resolve().parents[2] / "docs/tutorials/first-plugin.md"


def _oracle(x: Tensor, factor: float = 3.0) -> Tensor:
    return torch.stack([row * factor for row in x]) if len(x) else x.clone()


@operator(
    name="acme.scale",
    shapes={"x": "*tokens hidden"},
    returns=[("*tokens hidden", "x")],
    cases=Cases(
        sizes=({"tokens": 3, "hidden": 8}, {"tokens": 0, "hidden": 4}),
        scalars=({}, {"factor": 0.5}),
    ),
    oracle=_oracle,
)
def scale(x: Tensor, factor: float = 3.0) -> Tensor:
    """Multiplies by a factor."""
    return (x.to(torch.promote_types(x.dtype, torch.float32)) * factor).to(x.dtype)


@implements("acme.scale@1", name="right", domain=[dtype("x", "float32")], checks=False)
def scale_right(x, factor=3.0):
    return x.contiguous() * factor


@implements("acme.scale@1", name="wrong", domain=[dtype("x", "float32")], checks=False)
def scale_wrong(x, factor=3.0):
    return x.contiguous() * 3.0


def test_an_operator_of_a_plugin_is_tested_without_touching_another_file():
    results = list(run(from_functions((scale_right,), "acme", {scale.name: scale}), quick=True))
    assert {r.family for r in results if r.status is Status.PASS} >= {"value", "meta", "alias"}
    assert not [r for r in results if r.status in BAD]
    wrong = list(run(from_functions((scale_wrong,), "acme", {scale.name: scale}), quick=True))
    assert "value" in {r.family for r in wrong if r.status in BAD}


def test_the_plugin_of_the_tutorial_passes_the_kit():
    text = TUTORIAL.read_text(encoding="utf-8")
    source = next(
        b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "implements" in b
    )
    module = types.ModuleType("trivet_acme_plugin")
    exec(compile(source, str(TUTORIAL), "exec"), module.__dict__)  # noqa: S102 - our own page
    functions = module.trivet_implementations(module.trivet_devices()[0])
    results = list(run(from_functions(functions, "acme"), quick=True))
    bad = [f"{r.id}: {r.finding.reason}" for r in results if r.status in BAD]
    assert not bad, bad[:3]
    assert {r.family for r in results if r.status is Status.PASS} >= {"value", "layout", "special"}


def test_the_embedded_package_is_judged_in_every_family():
    subject = installed("cpu")
    providers = {(t.provider, t.op.name) for t in subject.targets}
    assert len(providers) >= 10
