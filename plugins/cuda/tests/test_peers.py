"""The peers against the operators' references: stand-ins check argument order and meaning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import trivet
from stand_ins import make_device
from trivet.contracts import DeviceInfo, equal
from trivet.contracts.implementation import claims_of
from trivet.errors import DomainError, PluginBroken
from trivet.plugins.verification import verify
from trivet_cuda.peers import (
    arguments,
    flaggems,
    flashinfer,
    inductor,
    liger,
    quack,
    residence,
    torch_own,
    vllm_attention,
)
from trivet_cuda.peers import vllm as peer_vllm
from trivet_cuda.peers.installed import folders, load, package

MODULES = {
    "torch": torch_own,
    "inductor": inductor,
    "vllm": peer_vllm,
    "liger": liger,
    "flaggems": flaggems,
    "flashinfer": flashinfer,
    "quack": quack,
}
FA3 = vllm_attention
OPERATORS = trivet.device("reference").operators
GPU = DeviceInfo("cuda", name="a GPU", torch_type="cuda")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

_SCHEMAS = (
    "rms_norm(Tensor(a!) result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()",
    "silu_and_mul(Tensor(a!) result, Tensor input) -> ()",
    "gelu_and_mul(Tensor(a!) out, Tensor input) -> ()",
    "gelu_tanh_and_mul(Tensor(a!) out, Tensor input) -> ()",
    """rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size,
    Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()""",
)
_CACHE_SCHEMA = (
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache,"
    " Tensor(b!) value_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale,"
    " Tensor v_scale) -> ()"
)


def stand_ins():
    path = Path(__file__).with_name("peer_stand_ins.py")
    spec = importlib.util.spec_from_file_location("peer_stand_ins", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FA3_SCHEMA = """fwd(Tensor(a!) q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v,
    Tensor(b!)? out, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new,
    Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k,
    Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos,
    Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale,
    Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left,
    int window_size_right, float softcap, bool is_rotary_interleaved,
    Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux,
    int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"""


def _fa3(q, k, v, k_new, v_new, q_v, out, starts, cu_k, cu_k_new, used_q, lens, most_q, most_k,
         table, *more):  # fmt: skip
    """By the reference; a window of FlashAttention leaves a query's own key out of the count."""
    assert (k_new, v_new, q_v, cu_k, cu_k_new, used_q) == (None,) * 6
    scale, causal, left, right, cap = more[8:13]
    assert more[:8] == (None,) * 8
    assert causal
    assert (left, right) == (-1, -1) or (left >= 0 and right == 0)
    assert more[13:] == (True, None, 0, None, 0, None, 1, 0, None)
    given = (q, k, v, table, starts, lens, most_q, most_k, scale, [], left + 1, cap)
    result = OPERATORS["paged_attention"].reference(*given)
    covered = int(starts[-1])
    if out is not None:
        out[:covered] = result[:covered]
        result = out
    return [result.clone() if out is None else out.clone(), torch.zeros(1)]


@pytest.fixture(scope="module", autouse=True)
def _packages(tmp_path_factory):
    """Stand-ins as packages, and vLLM's operators on the CPU."""
    folder = tmp_path_factory.mktemp("site")
    patched = pytest.MonkeyPatch()
    patched.setattr(residence, "refuse", lambda _: None)  # these are on the CPU
    stand_ins().write(folder)
    (folder / "vllm").mkdir()
    sys.path.insert(0, str(folder))
    numerics, infer, gems = map(import_module, ("numerics", "flashinfer", "flag_gems"))
    own = torch.library.Library("_C", "FRAGMENT")
    caches = torch.library.Library("_C_cache_ops", "FRAGMENT")
    attention = torch.library.Library("_vllm_fa3_C", "FRAGMENT")
    attention.define(_FA3_SCHEMA)
    attention.impl("fwd", _fa3, "CPU")
    for schema in _SCHEMAS:
        own.define(schema)
    caches.define(_CACHE_SCHEMA)
    bodies = {
        "rms_norm": lambda out, x, w, eps: out.copy_(numerics.norm(x, w, eps)),
        "fused_add_rms_norm": infer.fused_add_rmsnorm,
        "silu_and_mul": lambda out, x: out.copy_(infer.silu_and_mul(x)),
        "gelu_and_mul": lambda out, x: out.copy_(infer.gelu_and_mul(x)),
        "gelu_tanh_and_mul": lambda out, x: out.copy_(infer.gelu_tanh_and_mul(x)),
        "rotary_embedding": _rotary,
    }
    for name, body in bodies.items():
        own.impl(name, _nothing(body), "CPU")
    caches.impl("reshape_and_cache_flash", gems.reshape_and_cache_flash, "CPU")
    yield
    patched.undo()
    own._destroy()
    caches._destroy()
    attention._destroy()
    sys.path.remove(str(folder))
    for name in ("numerics", "liger_kernel", "liger_kernel.ops", "flag_gems", "flashinfer",
                 "quack"):  # fmt: skip
        sys.modules.pop(name, None)


def _nothing(body):
    def returning_nothing(*given):
        body(*given)

    return returning_nothing


def _rotary(at, q, k, head_size, table, is_neox, rope_dim_offset=0, inverse=False):
    assert not rope_dim_offset
    assert not inverse
    numerics = import_module("numerics")
    cos, sin = table[at].chunk(2, -1)
    assert head_size == q.shape[-1]
    for t in (q, k):
        if t is not None:
            t.copy_(numerics.turned(t, cos, sin, not is_neox))


def offered():
    for name, module in (*MODULES.items(), ("vllm", FA3)):
        for function in vars(module).values():
            if getattr(function, "__module__", "") == module.__name__:
                for claim in claims_of(function):
                    yield pytest.param(name, claim, id=f"{claim.name}-{claim.target}")


ALL = list(offered())


@pytest.mark.parametrize(("name", "claim"), ALL)
def test_each_is_what_core_takes_and_runs_on_request_alone(name, claim):
    found = verify(claim, "cuda", OPERATORS)
    assert found.provider == f"cuda/{'sdpa' if claim.target == 'attention@1' else name}"
    assert claim.on_request


REFUSE = residence.refuse
ON_GPU = [p for p in ALL if p.values[0] not in ("torch", "inductor")]


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("name", "claim"), ON_GPU)
def test_each_refuses_tensors_that_are_on_no_gpu_and_calls_nobody(name, claim, device, monkeypatch):
    monkeypatch.setattr(residence, "refuse", REFUSE)
    for module in (*MODULES.values(), FA3):
        for door in ("_ops", "_gems", "_infer", "_rmsnorm", "ops", "_write", "attend"):
            monkeypatch.setattr(module, door, pytest.fail, raising=False)
    given = case(claim.target.split("@")[0].removesuffix("_"), torch.float32)
    moved = [t.to(device) if isinstance(t, torch.Tensor) else t for t in given]
    with pytest.raises(DomainError, match=f"is on {device}, not on a GPU"):
        claim.function(*moved)


def test_none_says_that_it_checks_its_domain_and_no_compiled_one_that_it_repeats():
    for _, claim in (p.values for p in ALL):
        assert not claim.checks
        assert not (claim.name == "inductor" and claim.deterministic)


def case(operator, dtype):
    g = torch.Generator().manual_seed(3)

    def draw(*sizes):
        return torch.randn(*sizes, generator=g).to(dtype)

    angle = torch.rand(5, 16, generator=g) * 6
    caches = [torch.zeros(4, 4, 2, 64, dtype=dtype) for _ in range(2)]
    return {
        "rms_norm": [draw(5, 64), draw(64), 1e-5, 0.0, True],
        "fused_add_rms_norm": [draw(5, 64), draw(5, 64), draw(64), 1e-5, 0.0, True],
        "silu": [draw(5, 64)],
        "gelu": [draw(5, 64), "tanh"],
        "silu_and_mul": [draw(5, 128)],
        "gelu_and_mul": [draw(5, 128), "tanh"],
        "rotary_embedding": [draw(5, 4, 64), draw(5, 2, 64), angle.cos(), angle.sin()],
        "kv_cache_write": [draw(5, 2, 64), draw(5, 2, 64), *caches,
                           torch.tensor([3, -1, 9, 0, 15])],
        "paged_attention": [
            draw(7, 4, 16), draw(5, 16, 2, 16), draw(5, 16, 2, 16),
            torch.tensor([[3, 1], [0, 4]]).int(), torch.tensor([0, 1, 6]).int(),
            torch.tensor([20, 9]).int(), 5, 20, 0.25, [], 4, 3.0],
        "attention": [draw(2, 6, 4, 16), draw(2, 6, 2, 16), draw(2, 6, 2, 16), None, 0.25, True],
    }[operator]  # fmt: skip


def results(call, given, written):
    mine = [t.clone() if isinstance(t, torch.Tensor) else t for t in given]
    got = call(*mine)
    if got is None:
        return [mine[i] for i in written]
    return list(got) if isinstance(got, (list, tuple)) else [got]


WRITTEN = {"fused_add_rms_norm": (0, 1), "rotary_embedding": (0, 1), "kv_cache_write": (2, 3)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "claim"), [p for p in ALL if p.values[0] != "inductor"])
def test_each_means_what_the_operator_means(name, claim, dtype):
    operator = claim.target.split("@")[0].removesuffix("_")
    given, written = case(operator, dtype), WRITTEN.get(operator, ())
    want = results(OPERATORS[operator].reference, given, written)
    got = results(claim.function, given, written)
    exact = 2 * torch.finfo(dtype).eps  # a rounding more than the reference's
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.is_contiguous() or a.dim() == 3
        torch.testing.assert_close(a, b, rtol=exact, atol=exact)


@pytest.mark.parametrize("operator", ["rms_norm", "rotary_embedding"])
def test_the_compiled_reference_is_the_reference(operator, monkeypatch):
    """Traced, not compiled: building code takes seconds, and it is PyTorch's business."""
    monkeypatch.setattr(inductor, "compiled", inductor.reference)
    given = case(operator, torch.bfloat16)
    want = results(OPERATORS[operator].reference, given, ())
    got = results(getattr(inductor, operator), given, ())
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_fresh_copy_is_compiled_for_every_shape_and_counts_for_itself(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda f, **more: seen.append((f, more)) or f)
    first, second = inductor.fresh("silu_and_mul"), inductor.fresh("silu_and_mul")
    x = torch.randn(3, 8)
    assert torch.equal(first(x), OPERATORS["silu_and_mul"].reference(x))
    assert [more for _, more in seen] == [{"dynamic": False}] * 2
    assert first.__code__ is not second.__code__
    assert first.__code__ is not OPERATORS["silu_and_mul"].reference.__code__


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("half", [32, 8])
@pytest.mark.parametrize("peer", [peer_vllm.rotary_embedding_, flashinfer.rotary_embedding_,
                                  flaggems.rotary_embedding])  # fmt: skip
def test_rotary_of_whole_heads_and_of_parts_and_both_pairings(peer, half, pairing):
    angle = torch.rand(5, half) * 6
    given = [torch.randn(5, 4, 64), torch.randn(5, 2, 64), angle.cos(), angle.sin(), pairing]
    want = results(OPERATORS["rotary_embedding"].reference, given, (0, 1))
    got = results(peer, given, (0, 1))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_queries_may_be_turned_alone_by_vllm():
    angle = torch.rand(5, 32)
    q, given = torch.randn(5, 4, 64), [None, angle.cos(), angle.sin()]
    want = OPERATORS["rotary_embedding"].reference(q, *given)[0]
    peer_vllm.rotary_embedding_(q, *given)
    torch.testing.assert_close(q, want)


@pytest.mark.parametrize("module", [liger, quack, flashinfer])
def test_rounding_orders_and_offsets_inside_the_domain_agree(module):
    x, w = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()
    terms = [t for c in claims_of(module.rms_norm) for t in c.domain]
    orders = (True,) if any(t.path == "weight_in_float32" for t in terms) else (True, False)
    offsets = (0.0,) if equal("weight_offset", 0.0) in terms else (0.0, 1.0)
    assert (len(orders), len(offsets)) == {liger: (2, 1)}.get(module, (1, 2))
    for order in orders:
        for offset in offsets:
            want = OPERATORS["rms_norm"].reference(x, w, 1e-6, offset, order)
            got = module.rms_norm(x, w, 1e-6, offset, order)
            torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-7)


OWN_EMPTY = ("inductor", "liger", "quack")  # they take empty tensors themselves


@pytest.mark.parametrize(
    ("name", "claim"),
    [p for p in ALL if "attention" not in p.id and p.values[0] not in OWN_EMPTY],
)
def test_no_tokens_are_no_call(name, claim):
    operator = claim.target.split("@")[0].removesuffix("_")
    given = [t[:0] if isinstance(t, torch.Tensor) and t.shape[0] == 5 else t
             for t in case(operator, torch.float32)]  # fmt: skip
    for t in results(claim.function, given, WRITTEN.get(operator, ())):
        assert t.shape[0] in (0, 4)


def test_what_is_not_installed_is_said_without_an_import():
    need = package("no_such_peer", "pip install no-such-peer")
    assert need.unmet(GPU) == "package 'no_such_peer' is not installed: pip install no-such-peer"
    before = set(sys.modules)
    assert liger.NEED.unmet(GPU) == ""
    assert set(sys.modules) - before <= {"liger_kernel"}
    assert folders("no_such_peer") == []


def test_a_peer_that_does_not_import_is_a_typed_error(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise ImportError('no libnothing.so')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginBroken, match=r"no libnothing\.so") as caught:
        load("broken_peer", package("broken_peer", "pip install broken-peer"))
    assert "off the order list" in caught.value.fix


def test_attention_of_vllm_without_a_window():
    given = case("paged_attention", torch.float32)[:10]
    want = OPERATORS["paged_attention"].reference(*given)
    torch.testing.assert_close(FA3.paged_attention(*given), want)
    torch.testing.assert_close(FA3.paged(*given[:9])[:6], want[:6])


SITE = {
    "dtype": "bfloat16",
    "weight.dtype": "bfloat16",
    "hidden": 64,
    "contiguous": ["x", "weight"],
    "weight_in_float32": True,
    "weight_offset": 0.0,
    "variance_size": 0,
}


def test_a_site_that_names_a_peer_holds_its_function_and_others_say_why():
    device = make_device(liger.rms_norm, torch_own.rms_norm)
    named = {"rms_norm": ["acme/liger"]}
    assert device.bind("rms_norm", SITE, prefer=named) is liger.rms_norm
    assert device.bind("rms_norm", SITE) is OPERATORS["rms_norm"].reference
    rows = [str(r) for r in device.explain("rms_norm", SITE)]
    assert rows[0] == "acme/liger no: only where an order list names it"
    offset = SITE | {"weight_offset": 1.0}
    first = device.explain("rms_norm", offset, prefer=named)[0]
    assert (first.provider, first.verdict) == ("acme/liger", "no")
    assert "weight_offset is 1.0" in first.reason


def test_positions_grow_and_are_kept():
    cpu = torch.device("cpu")
    assert arguments.positions(3, cpu).tolist() == [0, 1, 2]
    few, many = arguments.positions(7, cpu), arguments.positions(9000, cpu)
    assert few.shape == (7,)
    assert many.tolist()[-1] == 8999
    assert arguments.positions(9000, cpu).data_ptr() == many.data_ptr()


def test_what_a_graph_may_read_is_kept_and_what_a_capture_made_is_not(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(arguments, "_positions", {})
    monkeypatch.setattr(arguments, "_units", {})
    monkeypatch.setattr(arguments, "_captured", lambda _: True)
    assert arguments.positions(3, device).tolist() == [0, 1, 2]
    assert arguments.unit_scale(device).tolist() == [1.0]
    assert not arguments._positions[device]
    assert not arguments._units
    monkeypatch.setattr(arguments, "_captured", lambda _: False)
    few, unit = arguments.positions(3, device), arguments.unit_scale(device)
    arguments.positions(10_000, device)
    assert few.data_ptr() == arguments._positions[device][0].data_ptr()
    assert unit is arguments.unit_scale(device)
