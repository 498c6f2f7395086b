"""Faults put in on purpose, each caught without hardware: by a gate or by the interpreter."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import required

required.triton()

from trivet.kernels.triton import Kernel, ahead, gates
from trivet_rocm.kernel_set import GATES, kernel_set
from trivet_triton.kernels import attention_prefill, quantise

FNUZ = torch.float8_e4m3fnuz
GUARD = 4096
"""Bytes behind the end: a program that ignores it stays inside of them."""
RULES = gates.load(GATES)


@pytest.fixture
def mutant(tmp_path):
    """A copy of the quantising kernel's module with one text replaced, imported."""
    names = []

    def made(*pairs):
        text = Path(quantise.__file__).read_text()
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        name = f"mutant_{len(names)}_{tmp_path.name}".replace("-", "_")
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield made
    for name in names:
        del sys.modules[name]


def launched(module, count, lanes=64):
    """What a module writes for numbers up to 600, and what lies behind it."""
    x = torch.linspace(-600, 600, count, dtype=torch.bfloat16)
    y = torch.full((count + GUARD,), 1.0).to(FNUZ)
    made = module.variant(torch.bfloat16, FNUZ, lanes, aligned=False)
    block = dict(made.constants)["BLOCK"]
    launch = made.on(torch.device("cpu"))
    launch(-(-count // block), 1, 1, x, torch.ones(1), y, count)
    return x, y[:count], y[count:]


def sound(module, count=1000):
    """Whether every byte is right and none behind the end is touched."""
    x, y, behind = launched(module, count)
    wanted = x.float().clamp(-240, 240).to(FNUZ)
    same = torch.equal(y.view(torch.uint8), wanted.view(torch.uint8))
    return same and bool((behind.float() == 1).all())


@pytest.fixture(scope="module")
def facts():
    """Of the code of ``mutant_variants``; compiled elsewhere, since here the interpreter runs."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        kernels = replace(kernel_set(), modules=("mutant_variants",))
        found = list(ahead.compiled(kernels, ["gfx942"], processes=1))
    finally:
        sys.path.pop(0)
        sys.modules.pop("mutant_variants", None)
    return {built.variant: built.facts for built in found}


def breaches(facts, name):
    """What the gates of a variant hold against a code."""
    limits = RULES.limits(ahead.triton_series(), "gfx942", name)
    assert limits is not None
    return list(gates.breaches(facts, limits))


QUANTISE = "quantise/bfloat16/float8_e4m3fnuz"


def test_what_was_not_changed_is_sound(mutant, facts):
    assert sound(mutant())
    assert breaches(facts["sound"], QUANTISE) == []


def test_a_wrong_largest_value_of_fnuz_is_caught_by_the_interpreter(mutant):
    assert not sound(mutant(('"LARGEST": torch.finfo(eight).max', '"LARGEST": 448.0')))


def test_a_missing_mask_is_caught_by_the_interpreter(mutant):
    stored = "cut.to(y.dtype.element_ty)"
    assert not sound(mutant((f"{stored}, mask=inside", stored)))


def test_a_wavefront_of_32_on_cdna_is_caught_by_the_gate_of_widths(facts):
    found = breaches(facts["wavefront_of_32"], QUANTISE)
    assert found == ["widest load 8 bytes, at least 16"]


def test_the_wrong_format_is_caught_by_the_gate_of_instructions(facts):
    assert "no fp8_convert in its code" in breaches(facts["wrong_format"], QUANTISE)


def test_shared_memory_over_the_limit_is_caught_by_its_gate(facts):
    found = breaches(facts["too_much_shared"], "prefill/bfloat16/128/4/128")
    assert any(text.startswith("shared ") and "at most 65536" in text for text in found)


def narrow(kernel):
    """Arguments that multiply a row's number, or count elements, in 32 bits."""
    return [n for n, t in kernel.types.items() if n.endswith(("stride", "_batch")) and t != "i64"]


def test_an_offset_of_32_bits_is_caught_by_the_types_of_arguments():
    every = {
        kernel
        for module in kernel_set().modules
        for kernel in vars(sys.modules.get(module) or importlib.import_module(module)).values()
        if isinstance(kernel, Kernel)
    }
    assert len(every) > 15
    assert {k.name: narrow(k) for k in every if narrow(k)} == {}
    tiles = attention_prefill.TILES
    mutant = Kernel(tiles.function, settle=tiles.settle, **{**tiles.types, "q_stride": "i32"})
    assert narrow(mutant) == ["q_stride"]
