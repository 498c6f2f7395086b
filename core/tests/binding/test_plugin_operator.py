from __future__ import annotations

import importlib
import sys
import textwrap
from types import MappingProxyType

import pytest
import torch

from stand_ins import OPS, make_device
from trivet.binding.checks import Watch
from trivet.binding.example_calls import arguments
from trivet.errors import ContractBroken, UnknownName
from trivet.plugins.verification import reference

SOURCE = '''
    """A plugin with an operator of its own."""

    import torch
    from torch import Tensor

    from trivet.contracts import Cases, between, divisible, implements, operator


    def _oracle(x: Tensor, shift: Tensor | None = None, groups: int = 2, by: float = 2.0) -> Tensor:
        result = torch.stack([x[..., i] * by for i in range(x.shape[-1])], -1)
        return result if shift is None else result + shift


    @operator(
        name="acme.stretch",
        shapes={"x": "*tokens groups*wide", "shift": "groups*wide"},
        returns=[("*tokens groups*wide", "x")],
        inplace={"x": 0},
        cases=Cases(sizes=({"tokens": 3, "wide": 4, "groups": 2}, {"tokens": 0, "wide": 1,
                           "groups": 3}), scalars=({}, {"by": 0.5})),
        oracle=_oracle,
    )
    def stretch(
        x: Tensor, shift: Tensor | None = None, groups: int = 2, by: float = 2.0
    ) -> Tensor:
        """Multiplies each row and moves it."""
        result = x * by
        return result if shift is None else result + shift


    @implements("acme.stretch_@1", name="over", domain=[divisible("wide", 4)])
    def over(x, shift=None, groups=2, by=2.0):
        x.mul_(by)
        if shift is not None:
            x.add_(shift)


    @implements("acme.stretch@1", name="lazy", domain=[between("tokens", 50, None)])
    def lazy(x, shift=None, groups=2, by=2.0):
        return x
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "acme_stretch.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "acme_stretch", raising=False)
    return importlib.import_module("acme_stretch")


@pytest.fixture
def dev(plugin):
    known = MappingProxyType({**OPS, "acme.stretch": plugin.stretch})
    return make_device(plugin.over, plugin.lazy, known=known)


def test_it_is_called_under_its_own_name(dev, plugin):
    x, shift = torch.randn(2, 3, 8), torch.randn(8)
    expected = plugin._oracle(x, shift)
    torch.testing.assert_close(dev.ops.acme.stretch(x, shift), expected)
    torch.testing.assert_close(dev.ops.acme.stretch(x=x, shift=shift, by=2.0), expected)
    out = torch.empty_like(x)
    dev.ops.acme.stretch_out(x, shift, out=out)
    torch.testing.assert_close(out, expected)
    dev.ops.acme.stretch_(x, shift)
    torch.testing.assert_close(x, expected)
    assert "acme" in dir(dev.ops)
    assert dir(dev.ops.acme) == ["stretch"]
    assert dev.ops.acme.stretch.__name__ == "stretch"
    with pytest.raises(UnknownName, match=r"no operator 'acme\.strech'"):
        dev.ops.acme.strech  # noqa: B018  # the look-up is the test


def test_it_is_explained_bound_and_planned(dev, plugin):
    assert [str(r) for r in dev.explain("acme.stretch", {"wide": 8})] == [
        "acme/over yes: ".removesuffix(": ") + " (derived from the inplace form, 1 copies a call)",
        "acme/lazy shadowed: acme/over accepts all that it would",
        "reference shadowed: acme/over accepts all that it would",
    ]
    assert dev.explain("acme.stretch", {"wide": 6})[0].reason == "wide = 6 is not a multiple of 4"
    assert dev.bind("acme.stretch_", {"wide": 4}) is plugin.over
    plan = dev.plan({"s": ("acme.stretch", {"wide": 6, "shift": None}), "n": ("rms_norm", {})})
    assert plan.at(tokens=60).s is plugin.lazy
    assert plan.at(tokens=6).s is plugin.stretch.reference
    assert plan.lock["sites"]["s"]["op"] == "acme.stretch@1"
    guard = dev.bind("acme.stretch", {"dtype": "float32"})
    assert "_x_shape[-1] // groups % 4" in guard.__trivet_source__


@pytest.mark.parametrize("case", range(2))
@pytest.mark.parametrize("scalars", [{}, {"by": 0.5}])
def test_examples_come_from_the_declaration(plugin, case, scalars):
    op = plugin.stretch
    rng = torch.Generator().manual_seed(0)
    given = arguments(op, op.cases.sizes[case], torch.float64, rng, scalars=scalars)
    assert op.dims(given) == {n: v for n, v in op.cases.sizes[case].items() if n != "groups"}
    torch.testing.assert_close(op.reference(**given), op.oracle(**given))
    assert op.result_meta(given) == [(tuple(given["x"].shape), torch.float64)]
    watch = Watch(op, reference(op).form, "reference", given, sample=False)
    assert list(watch.judge(op.reference(**given))) == []
    assert op.bytes_moved(given) == 8 * (2 * given["x"].numel() + given["x"].shape[-1])


def test_it_is_checked(dev, monkeypatch):
    monkeypatch.setenv("TRIVET_CHECK", "1")
    with pytest.raises(ContractBroken, match=r"acme\.stretch \(acme/lazy\): result 0 shares"):
        dev.bind("acme.stretch", {"wide": 3})(torch.randn(60, 6))
    dev.bind("acme.stretch")(torch.randn(2, 8))


def test_its_schema_is_inferred(plugin):
    assert plugin.stretch.schema == (
        "(Tensor x, Tensor? shift=None, SymInt groups=2, float by=2.0) -> Tensor"
    )
