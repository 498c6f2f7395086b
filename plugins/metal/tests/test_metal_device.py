"""The emulated device as an engine gets it: asked for by name, never by ``auto``."""

from __future__ import annotations

import pytest
import torch

import trivet
from llm import gguf
from llm.model import Llama
from llm.sampling import GREEDY
from llm.schedule import Scheduler, generate
from llm.tests.conftest import HandMade, tiny
from trivet.contracts import Execution
from trivet.errors import PluginBroken
from trivet.plugins import reset
from trivet_metal.backend.emulated import VARIABLE
from trivet_metal.discovery import this_machine
from trivet_metal.status import STATUS

__all__ = ["tiny"]  # a fixture of the engine's own tests

pytestmark = pytest.mark.skipif(
    this_machine().device is not None, reason="not_run: no emulation beside a GPU"
)


@pytest.fixture
def asked(emulator, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    reset()
    yield
    monkeypatch.undo()
    reset()


def test_without_the_variable_there_is_no_device_and_the_reason_is_said(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    reset()
    with pytest.raises(PluginBroken, match=r"Metal is a part of macOS"):
        trivet.device("metal")


def test_the_device_says_what_it_is_and_auto_passes_over_it(asked):
    dev = trivet.device("metal")
    assert dev.info.execution is Execution.EMULATED
    assert dev.info.torch.type == "cpu"
    assert any(STATUS in note for note in dev.info.notes)
    assert trivet.device("auto").info.kind != "metal"


def test_a_bind_takes_the_kernel(asked):
    dev = trivet.device("metal", strict=True)
    x, weight = torch.randn(3, 40), torch.randn(40)
    norm = dev.bind("rms_norm", {"x.dtype": torch.float32, "weight.dtype": torch.float32,
                                 "hidden": 40, "contiguous": True})  # fmt: skip
    wanted = trivet.device("reference").ops.rms_norm(x, weight)
    torch.testing.assert_close(norm(x, weight), wanted)


def tokens(device, file):
    llama = Llama(device, file, dtype=torch.float32, num_blocks=8, block_size=16, observe=True)
    plan = Scheduler(
        llama.pool, max_batch=2, budget=16, context=llama.config.context, eos=frozenset()
    )
    requests = [plan.submit(p, 8, GREEDY) for p in ([5, 77, 200], [9])]
    for _ in generate(llama, plan):
        pass
    return [request.output for request in requests], llama.plan.counts()


def test_the_example_engine_says_the_same_as_on_the_cpu(asked, tiny: HandMade, tmp_path):
    file = gguf.read(tiny.write(tmp_path / "tiny.gguf"))
    wanted, _ = tokens(trivet.device("cpu"), file)
    found, calls = tokens(trivet.device("metal", strict=True), file)
    assert found == wanted
    assert [len(t) for t in found] == [8, 8]
    assert {provider.partition("/")[0] for (_, provider), n in calls.items() if n} == {"metal"}
