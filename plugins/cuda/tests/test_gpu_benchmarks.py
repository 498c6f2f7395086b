"""The GPU benchmarks on the CPU: every line but those that need the device runs here once."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ("--quick", "--peer", "torch", "--tokens", "1", "--tokens", "8", "--hidden", "512")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Imports a script; it runs in an empty folder and draws nothing."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.import_module("report"), "picture", lambda *_: None)
    return importlib.import_module


@pytest.fixture
def tiny(script, monkeypatch):
    attention = script("gpu_attention")
    monkeypatch.setattr(attention, "DECODE", {"batch": (2,), "context": (40,), "group": (4,)})
    monkeypatch.setattr(attention, "PREFILL", ((2, 24),))
    monkeypatch.setattr(attention, "SAMPLED", {"sequences": (2,), "vocab": (300,)})
    return script("gpu_kernels")


def run(module, *arguments):
    result = CliRunner().invoke(module.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("least", [1, 1 << 16])
def test_every_operator_has_a_row_a_mode_and_a_checked_peer(tiny, monkeypatch, least, tmp_path):
    monkeypatch.setattr(importlib.import_module("gpu_attention"), "REFERENCE_TOKENS", least)
    ops = () if least == 1 else ("--op", "paged_decode", "--op", "paged_prefill")
    run(tiny, "--json", "a.json", *KERNELS, *ops)
    document = json.loads((tmp_path / "a.json").read_text())
    found = {(row["op"], row["mode"]) for row in document["rows"]}
    whole = (*importlib.import_module("gpu_cells").OPERATORS, "sample_greedy", "sample_top_k_top_p")
    wanted = ("paged_decode", "paged_prefill", *(whole if least == 1 else ()))
    assert found == {(op, mode) for op in wanted for mode in ("cold", "graph")}
    for row in document["rows"]:
        assert row["us"] > 0
        assert row["fraction_of_copy"] > 0
        assert row["provider"].startswith("cpu/")
        if row["op"] not in ("rotary_embedding", "kv_cache_write"):
            assert row["best_peer"].startswith("torch")
            assert row["ratio_vs_best_peer"] > 0
    assert {"over_best_in_each_cell", "over_best_single_peer"} <= set(
        document["summary"]["paged_decode cold"]
    )
    assert {one["who"] for one in document["wrong"]} == {"vllm_fa3", "flashinfer"}


def test_a_run_goes_on_where_the_last_one_ended_and_parts_are_joined(tiny, tmp_path):
    only = ("--op", "rms_norm", "--op", "silu_and_mul")
    said = run(tiny, "--json", "a.json", "--seconds", "0", *KERNELS, *only)
    assert "time is over in rms_norm" in said
    first = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [(r["tokens"], r["mode"]) for r in first] == [(1, "cold"), (1, "graph")]
    run(tiny, "--json", "a.json", *KERNELS, *only)
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert len(rows) == 8
    assert rows[:2] == first
    run(tiny, "--json", "b.json", *KERNELS, "--op", "gelu_and_mul")
    run(tiny, "--json", "c.json", "--merge", "a.json", "--merge", "b.json")
    joined = json.loads((tmp_path / "c.json").read_text())
    assert {r["op"] for r in joined["rows"]} == {"rms_norm", "silu_and_mul", "gelu_and_mul"}
    assert len(joined["rows"]) == 12
    assert len(joined["copy_gb_s"]) == 3


def test_a_peer_that_fails_or_is_wrong_leaves_the_cell_with_its_reason(script):
    cells = script("gpu_cells")
    x = torch.ones(2, 4)

    def broken():
        raise RuntimeError("no kernel image")

    calls = {"trivet": lambda: x, "broken": broken, "wrong": lambda: 2 * x,
             "short": lambda: x[:1]}  # fmt: skip
    cell = cells.Cell("op", {"tokens": 2}, "float32", 1, calls, lambda: None,
                      lambda _, result: [result], lambda: [x])  # fmt: skip
    cells.checked(cell, torch.float32)
    assert list(cell.calls) == ["trivet"]
    assert cell.missing["broken"] == "RuntimeError: no kernel image"
    assert "differs by 0.5" in cell.missing["wrong"]
    assert "has shape [1, 4], not [2, 4]" in cell.missing["short"]
    assert cells.wrong([], [x], torch.float32) == "0 results, not 1"
    ids = torch.tensor([1, 2])
    assert cells.wrong([ids], [ids + 1], torch.float32) == "result 0: 2 of 2 choices differ"


def test_a_cell_that_fails_costs_no_other_unless_the_device_is_gone(tiny, monkeypatch, tmp_path):
    cells, clocks = (importlib.import_module(n) for n in ("gpu_cells", "gpu_clock"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    whole = cells.cell

    def some(op, sizes, *more):
        if sizes["tokens"] == 1:
            raise RuntimeError("does not compile")
        return whole(op, sizes, *more)

    monkeypatch.setattr(cells, "cell", some)
    run(tiny, "--json", "a.json", *KERNELS, "--op", "rms_norm")
    document = json.loads((tmp_path / "a.json").read_text())
    assert {r["tokens"] for r in document["rows"]} == {8}
    assert document["wrong"][0]["why"] == "RuntimeError: does not compile"
    assert importlib.import_module("gpu_compile").compile_some(
        [("rms_norm", 1, 256), ("rms_norm", 2, 256)], "cpu", ["torch"]) == 1  # fmt: skip
    monkeypatch.setattr(clocks.StandIn, "alive", lambda _: False)
    result = CliRunner().invoke(tiny.main, ["--json", "b.json", *KERNELS, "--op", "rms_norm"])
    assert result.exit_code == 1
    assert "the device failed in rms_norm" in result.output


class Graph:
    """Of a fake device: it counts what is replayed."""

    replays = 0

    def replay(self):
        Graph.replays += 1


def on_cpu(make):
    def made(*sizes, device, **more):
        assert device.type == "cuda"
        return make(*sizes, **more)

    return made


@pytest.fixture
def gpu(script, monkeypatch):
    """The clock of a GPU over a device that takes a millisecond for everything."""
    module = script("gpu_clock")
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda _: 1.0)
    stream = SimpleNamespace(wait_stream=lambda _: None)
    fakes = {
        "is_available": lambda: True, "current_device": lambda: 0, "empty_cache": lambda: None,
        "Event": lambda **_: event, "Stream": lambda: stream, "current_stream": lambda: stream,
        "stream": lambda _: contextlib.nullcontext(), "CUDAGraph": Graph, "_sleep": lambda _: None,
        "graph": lambda _: contextlib.nullcontext(), "synchronize": lambda: None,
        "get_device_properties": lambda _: SimpleNamespace(
            name="H", major=9, minor=0, total_memory=1, multi_processor_count=2),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "empty", on_cpu(torch.empty))
    monkeypatch.setattr(torch, "randn", on_cpu(torch.randn))
    monkeypatch.setattr(module, "FLUSH_BYTES", 8)
    made = module.clock()
    assert isinstance(made, module.Gpu)
    made._bytes = 1 << 10
    return made


def test_the_clock_of_a_gpu_over_a_fake_device(gpu, monkeypatch, capsys):
    assert str(gpu.device) == "cuda:0"
    assert gpu.copy_bandwidth() == pytest.approx(2048 / 1e-3)
    gpu.keep_ahead(100.0)
    assert gpu._lead == 220_000
    called = []

    def broken():
        called.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    assert gpu.cold({"a": lambda: called.append(0)}, 3) == {"a": 1e3}
    assert called == [0] * 4
    times = gpu.replayed({"a": lambda: called.append(2), "b": broken}, 3, 5)
    assert times == {"a": pytest.approx(200.0)}
    assert (called.count(2), called.count(1), Graph.replays) == (7, 1, 4)
    assert "b cannot be captured" in capsys.readouterr().out
    assert gpu.host(lambda: called.append(3), 10) > 0
    assert called.count(3) == 51
    assert gpu.description()["arch"] == "sm_90"
    gpu.release()
    assert gpu.alive()
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert not gpu.alive()


def test_tables_of_peers_are_made_outside_of_what_is_timed(script, monkeypatch):
    peers = script("gpu_peers")
    vllm, infer, gems = (importlib.import_module(f"trivet_cuda.peers.{n}")
                         for n in ("vllm", "flashinfer", "flaggems"))  # fmt: skip
    seen = []
    for module in (vllm, infer):
        monkeypatch.setattr(module, "rotate_", lambda *given: seen.append(given))
    monkeypatch.setattr(gems, "rotate", lambda *given: seen.append(given))
    q, k, cos, sin = torch.randn(3, 2, 8), torch.randn(3, 1, 8), torch.ones(3, 4), torch.zeros(3, 4)
    function = peers.Function(None, True)
    for name in ("vllm", "flashinfer", "flaggems"):
        call = peers.call_of(name, "rotary_embedding", function, [q, k, cos, sin])
        call()
    assert seen[0][3].tolist() == torch.cat((cos, sin), -1).tolist()
    assert seen[0][2].tolist() == [0, 1, 2]
    assert seen[0][3].shape == seen[1][3].shape
    assert seen[2][2] is cos


def test_rows_tell_bands_ratios_and_what_is_outside_of_both(script):
    report = script("gpu_report")
    cell = SimpleNamespace(op="rms_norm", sizes={"tokens": 1}, dtype="bfloat16", nbytes=1000,
                           flops=0, provider="cuda/triton")  # fmt: skip
    times = {"trivet": 2.0, "trivet again": 2.2, "liger": 1.8, "liger again": 1.9,
             "torch": 4.0, "torch again": 3.0}  # fmt: skip
    row = report.row(cell, "cold", times, 1e9, "trivet")
    assert (row["best_peer"], row["best_peer_us"]) == ("liger", 1.8)
    assert row["ratio_vs_best_peer"] == pytest.approx(0.9)
    assert row["peer_band"] == pytest.approx(1.9 / 1.8)
    assert row["fraction_of_copy"] == pytest.approx(0.5)
    assert report.outside(row)
    found = report.summary([row])
    assert found["rms_norm cold"]["over_best_single_peer"] == ["liger", pytest.approx(0.9)]
    assert found["below"] == ["rms_norm 1 bfloat16 cold: 0.900 of liger"]
    assert not report.outside(row | {"peer_band": 0.8})


def test_compiling_ahead_calls_every_provider_in_other_processes(script, monkeypatch):
    module = script("gpu_compile")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    assert module.compile_some([("rms_norm", 2, 256), ("silu_and_mul", 2, 256)], "cpu",
                               ["torch"]) == 2  # fmt: skip
    assert module.compile_all([], "cpu", ["torch"], 4, 1.0) == 0.0
    assert module.processes() >= 1

    class Late:
        def get(self, _):
            raise module.multiprocessing.TimeoutError

    class Pool:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def apply_async(self, *_):
            return Late()

        def terminate(self):
            return None

    context = SimpleNamespace(Pool=lambda _: Pool())
    monkeypatch.setattr(module.multiprocessing, "get_context", lambda _: context)
    assert module.compile_all([("rms_norm", 2, 256)], "cpu", ["torch"], 4, 0.0) >= 0.0


class Config:
    def __init__(self, **given):
        vars(self).update(given)


class Cache:
    def __init__(self, *, config, max_cache_len):
        self.seen, self.most = 0, max_cache_len


class Model(torch.nn.Module):
    """The names of the weights, and answers of the right shape."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        for name in importlib.import_module("gpu_engine").RandomModel(TINY, CPU).tensors:
            shape = (1,) * (1 if "norm" in name else 2)
            self.register_buffer(name.replace(".", "_"), torch.zeros(shape))

    def state_dict(self):
        tensors = importlib.import_module("gpu_engine").RandomModel(TINY, CPU).tensors
        return {name: torch.zeros(t.shape) for name, t in tensors.items()}

    def forward(self, *, input_ids, past_key_values, use_cache, logits_to_keep):
        assert use_cache
        assert logits_to_keep == 1
        past_key_values.seen += input_ids.shape[1]
        assert past_key_values.seen <= past_key_values.most
        return SimpleNamespace(logits=torch.randn(len(input_ids), 1, self.config.vocab_size))


CPU = torch.device("cpu")
TINY = {"layers": 2, "hidden": 64, "inter": 96, "heads": 4, "kv_heads": 2, "head_dim": 16,
        "vocab": 130, "context": 512}  # fmt: skip


def test_the_engine_is_timed_beside_transformers(script, monkeypatch, tmp_path):
    module = script("gpu_engine")
    monkeypatch.setattr(module, "SHAPES", {"smollm2_135m": TINY})
    kinds = {"LlamaConfig": Config, "LlamaForCausalLM": Model, "StaticCache": Cache}
    (tmp_path / "transformers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name, kind in kinds.items():
        monkeypatch.setattr(importlib.import_module("transformers"), name, kind, raising=False)
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    run(module, "--json", "e.json", "--quick", "--batch", "1", "--batch", "3")
    rows = {r["name"]: r for r in json.loads((tmp_path / "e.json").read_text())["rows"]}
    for batch in (1, 3):
        head = f"gpu_engine.smollm2_135m.decode_b{batch}"
        for engine in ("trivet", "transformers_eager", "transformers_compiled"):
            assert rows[f"{head}.{engine}"]["value"] > 0
            assert rows[f"{head}.{engine}.share"]["value"] > 0
        assert rows[f"{head}.vs_transformers_eager"]["unit"] == "ratio"


def test_the_engine_says_what_is_missing_or_late_or_broken(script, monkeypatch, capsys):
    module = script("gpu_engine")
    model = module.RandomModel(TINY, CPU)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    assert module.peers(model, torch.bfloat16, CPU, compiled=True) == {}
    assert "missing transformers" in capsys.readouterr().err

    def broken(_):
        raise RuntimeError("out of memory")

    task = module.Task("decode_b1", 1, 8, 4)
    given = [task], 1e9, 2
    assert module.measure("m", model, {"peer": broken}, *given, float("inf")) == []
    assert "peer: RuntimeError: out of memory" in capsys.readouterr().err
    assert module.measure("m", model, {"peer": broken}, *given, 0.0) == []
    assert "time is over" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="out of memory"):
        module.measure("m", model, {"trivet": broken}, *given, float("inf"))
    with pytest.raises(NotImplementedError):
        model.tokenizer()
    first, again = (model.tensors["lm_head.weight"].dequantise() for _ in range(2))
    assert torch.equal(first, again)
