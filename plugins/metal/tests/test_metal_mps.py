"""The backend of a Mac's GPU, over a stand-in for ``torch.mps``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from trivet.contracts import Execution
from trivet.errors import PluginBroken
from trivet_metal.backend import backend_of
from trivet_metal.backend.mps import MpsBackend


def test_a_source_is_compiled_and_launched_as_it_is(monkeypatch):
    seen = []
    library = SimpleNamespace(k=lambda *args, **launch: seen.append((args, launch)))
    monkeypatch.setattr(torch.mps, "compile_shader", lambda source: seen.append(source) or library)
    backend = MpsBackend()
    made = backend.compile("kernel void k() {}", "k.metal")
    launch = {"threads": (4,), "group_size": (2,), "arg_casts": {1: "int32"}}
    backend.launch(made, made.k, ("x", 3), launch, (16, False))
    assert seen == ["kernel void k() {}", (("x", 3), launch)]
    assert backend.execution is Execution.HARDWARE


@pytest.mark.parametrize("error", [SyntaxError, RuntimeError])
def test_what_apples_compiler_refuses_is_one_error(monkeypatch, error):
    def refuse(source):
        raise error("program_source:1:1: error: unknown type name 'kernl'")

    monkeypatch.setattr(torch.mps, "compile_shader", refuse)
    with pytest.raises(PluginBroken, match=r"k\.metal does not compile: program_source:1:1"):
        MpsBackend().compile("kernl", "k.metal")


def test_tensors_of_the_gpu_go_there_and_to_nothing_else():
    assert isinstance(backend_of("mps"), MpsBackend)
