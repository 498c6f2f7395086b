"""Whose operators come first: vLLM's libraries and FlagGems in one process, in every order.

A library stands in as a function that defines its operators, or ends the test where C++ would end
the process; FlagGems as a module that defines what it does not find, as the real one does.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest
import torch

from trivet.errors import PluginBroken
from trivet_cuda.peers import flaggems, vllm, vllm_attention, vllm_libraries
from trivet_cuda.peers.vllm_libraries import Library, before_others, defined, loaded

SCHEMA = "(Tensor input) -> Tensor"
NUMBERS = count()


class World:
    """A folder of vLLM with one library, and a FlagGems beside it."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.kept, self.loads = folder, [], []
        self.name = f"trivet_test_{next(NUMBERS)}"
        self.library = Library(("_C.*so", "_C_stable*.so"), (self.name,), "rms_norm")
        (folder / "_C_stable.abi3.so").write_text("no library")
        (folder / "gems").mkdir()
        (folder / "gems" / f"{self.name}.py").write_text(
            f"import torch\nif not hasattr(torch.ops.{self.name}, 'silu_and_mul'):\n"
            f"    torch.library.define('{self.name}::silu_and_mul', '{SCHEMA}')\n"
        )
        monkeypatch.syspath_prepend(folder / "gems")
        for other in ("KERNELS", "ATTENTION", "EXPERTS"):
            monkeypatch.setattr(vllm_libraries, other, self.library)
        monkeypatch.setattr(vllm_libraries, "folders", lambda _: [folder])
        monkeypatch.setattr(torch.ops, "load_library", self.load)
        monkeypatch.setattr(flaggems, "load", lambda *_: self.gems())

    def load(self, path):
        """Registers as the static objects of a library do."""
        self.loads.append(Path(path).name)
        mine = torch.library.Library(self.name, "FRAGMENT")
        self.kept.append(mine)
        for name in ("silu_and_mul", "rms_norm"):
            if defined((self.name,)).count(f"{self.name}::{name}"):
                pytest.fail("the process ends")
            mine.define(name + SCHEMA)

    def gems(self):
        """Imports the stand-in of FlagGems."""
        return __import__(self.name)


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    yield made
    sys.modules.pop(made.name, None)
    for library in made.kept:
        library._destroy()


def test_a_site_of_flaggems_first_and_one_of_vllm_after_it(world):
    flaggems._gems.__wrapped__()
    assert world.loads == ["_C_stable.abi3.so"]
    assert hasattr(loaded(world.library), "rms_norm")
    assert hasattr(loaded(world.library), "silu_and_mul")
    assert world.loads == ["_C_stable.abi3.so"]


def test_a_site_of_vllm_first_and_one_of_flaggems_after_it(world):
    assert hasattr(loaded(world.library), "rms_norm")
    flaggems._gems.__wrapped__()
    assert world.loads == ["_C_stable.abi3.so"]


def test_flaggems_imported_by_somebody_else_keeps_vllm_out_and_nothing_is_loaded(world):
    world.gems()
    for _ in range(2):
        with pytest.raises(PluginBroken, match="silu_and_mul are defined already") as caught:
            loaded(world.library)
        assert "would end the process" in str(caught.value)
        assert "before flag_gems is imported" in caught.value.fix
    before_others()
    flaggems._gems.__wrapped__()
    assert world.loads == []


def test_without_vllm_flaggems_is_alone(world, monkeypatch):
    monkeypatch.setattr(vllm_libraries, "folders", lambda _: [])
    flaggems._gems.__wrapped__()
    assert defined((world.name,)) == [f"{world.name}::silu_and_mul"]
    with pytest.raises(PluginBroken, match=r"no _C\.\*so or _C_stable"):
        loaded(world.library)


def test_a_library_that_does_not_load_is_refused_with_its_words_and_not_tried_again(
    world, monkeypatch
):
    tries = []

    def fails(path):
        tries.append(path)
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(torch.ops, "load_library", fails)
    flaggems._gems.__wrapped__()
    for _ in range(2):
        with pytest.raises(PluginBroken, match=r"abi3\.so does not load with torch .*libcudart"):
            loaded(world.library)
    assert len(tries) == 1


def test_a_library_of_another_version_is_said_to_lack_what_is_called(world, monkeypatch):
    monkeypatch.setattr(torch.ops, "load_library", lambda _: None)
    with pytest.raises(PluginBroken, match="defines no rms_norm: another version"):
        loaded(world.library)


def test_operators_that_are_there_are_taken_whoever_loaded_them(world):
    world.load("somewhere else")
    assert hasattr(loaded(world.library), "rms_norm")
    assert world.loads == ["somewhere else"]


def test_a_kernel_without_a_schema_is_no_operator(world):
    mine = torch.library.Library(world.name, "IMPL")
    world.kept.append(mine)
    mine.impl("alone", lambda x: x, "CPU")
    assert defined((world.name,)) == []


def test_each_adapter_asks_for_its_own_library(monkeypatch):
    asked = []
    for module in (vllm, vllm_attention):
        monkeypatch.setattr(module, "loaded", lambda one: asked.append(one) or torch.nn)
    monkeypatch.setattr(torch.nn, "fwd", "fwd", raising=False)
    assert vllm.ops.__wrapped__() is torch.nn
    assert vllm_attention.attend.__wrapped__() == "fwd"
    assert [one.sign for one in asked] == ["rms_norm", "fwd"]
