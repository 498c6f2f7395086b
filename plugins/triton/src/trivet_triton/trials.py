"""How each tuned kernel is called while ``trivet tune`` measures it: through its operator.

``rows`` is what the kernel's table goes by: tokens, elements, or sequences. Kernels are imported
when they are called, so that this module imports no Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from trivet.kernels.triton import Trials

Key: TypeAlias = Any
Made: TypeAlias = tuple[Callable[[], object], int]

_PAGE: Final = 16
_CONTEXTS: Final = ((16, 8192), (256, 2048))
"""Keys of a sequence in decoding, for so many sequences at most."""
_PROMPT: Final = 2048
"""Longest query of a sequence in prefill."""


def _operator(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"trivet_triton.kernels.{module}"), name)
    return found


def _draw(device: torch.device, dtype: str, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=getattr(torch, dtype))


def rms_norm(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """One read and one write of each row."""
    x = _draw(device, key["dtype"], rows, key["hidden"])
    weight = _draw(device, key["weight"], key["hidden"])
    run = _operator("norm", "rms_norm")
    return lambda: run(x, weight), 2 * x.nbytes + weight.nbytes


def fused_add_rms_norm(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """Two reads and two writes of each row."""
    x = _draw(device, key["dtype"], rows, key["hidden"])
    residual = _draw(device, key["dtype"], rows, key["hidden"])
    weight = _draw(device, key["weight"], key["hidden"])
    run = _operator("norm", "fused_add_rms_norm")
    return lambda: run(x, residual, weight), 4 * x.nbytes + weight.nbytes


def layer_norm(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """One read and one write of each row."""
    x = _draw(device, key["dtype"], rows, key["hidden"])
    weight, bias = (_draw(device, key["weight"], key["hidden"]) for _ in range(2))
    run = _operator("layer_norm", "layer_norm")
    return lambda: run(x, weight, bias), 2 * x.nbytes + weight.nbytes + bias.nbytes


def qk_rms_norm(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """Heads of a packed projection, as a model has them."""
    heads, kv_heads, dim = key["heads"], key["kv_heads"], key["head_dim"]
    packed = _draw(device, key["dtype"], rows, heads + 2 * kv_heads, dim)
    q, k = packed[:, :heads], packed[:, heads : heads + kv_heads]
    q_weight, k_weight = (_draw(device, key["weight"], dim) for _ in range(2))
    run = _operator("qk_norm", "qk_rms_norm")
    moved = 2 * rows * (heads + kv_heads) * dim * packed.element_size()
    return lambda: run(q, k, q_weight, k_weight), moved


def _activation(act: str, *, gated: bool) -> Callable[[Tensor], Any]:
    if act == "silu":
        return _operator("activation", "silu_and_mul" if gated else "silu")
    run = _operator("activation", "gelu_and_mul" if gated else "gelu")
    return lambda x: run(x, act)


def activation_rows(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """Two halves of each row, or rows with gaps between them."""
    width, gated = key["width"], key["gated"]
    x = _draw(device, key["dtype"], rows, 2 * width)
    given = x if gated else x[:, :width]
    run = _activation(key["act"], gated=gated)
    return lambda: run(given), (3 if gated else 2) * x.nbytes // 2


def activation_flat(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """As many elements as ``rows`` says, without gaps."""
    x = _draw(device, key["dtype"], rows)
    run = _activation(key["act"], gated=False)
    return lambda: run(x), 2 * x.nbytes


def _heads(key: Key, rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as views of a packed projection."""
    heads, kv_heads = key["heads"], key["kv_heads"]
    packed = _draw(device, key["dtype"], rows, heads + 2 * kv_heads, key["head_dim"])
    return packed[:, :heads], packed[:, heads:-kv_heads], packed[:, -kv_heads:]


def _turns(key: Key, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    angle = torch.rand(rows, key["half"], device=device)
    return angle.cos(), angle.sin()


def rotary_embedding(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """Turns q and k of a packed projection, into fresh tensors or in place."""
    q, k, _v = _heads(key, rows, device)
    cos, sin = _turns(key, rows, device)
    moved = 2 * (q.numel() + k.numel()) * q.element_size() + 2 * cos.nbytes
    if not key["inplace"]:
        run = _operator("rotary", "rotary_embedding")
        return lambda: run(q, k, cos, sin, key["pairing"]), moved
    write = _operator("rotary", "rotary_embedding_")

    def call() -> list[Tensor]:
        write(q, k, cos, sin, key["pairing"])
        return [q, k]

    return call, moved


def _caches(
    key: Key, rows: int, kv_heads: int, dim: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Two caches that hold the tokens, and a slot for each in no order."""
    blocks = -(-rows // _PAGE)
    caches = [
        torch.zeros(blocks, _PAGE, kv_heads, dim, device=device, dtype=getattr(torch, key["cache"]))
        for _ in range(2)
    ]
    return caches[0], caches[1], torch.randperm(blocks * _PAGE, device=device)[:rows]


def kv_cache_write(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """Copies tokens into slots."""
    kv_heads = 8 if key["width"] % 8 == 0 else 1
    shape = kv_heads, key["width"] // kv_heads
    k, v = (_draw(device, key["dtype"], rows, *shape) for _ in range(2))
    k_cache, v_cache, slots = _caches(key, rows, *shape, device)
    run = _operator("kv_cache", "kv_cache_write")

    def call() -> list[Tensor]:
        run(k, v, k_cache, v_cache, slots)
        return [k_cache, v_cache]

    return call, 2 * k.numel() * (k.element_size() + k_cache.element_size())


def rotary_kv_cache_write(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """Turns q in place, and writes keys and values into slots."""
    q, k, v = _heads(key, rows, device)
    cos, sin = _turns(key, rows, device)
    k_cache, v_cache, slots = _caches(key, rows, key["kv_heads"], key["head_dim"], device)
    run = _operator("rotary_kv_cache", "rotary_kv_cache_write")

    def call() -> list[Tensor]:
        run(q, k, v, cos, sin, k_cache, v_cache, slots, key["pairing"])
        return [q, k_cache, v_cache]

    moved = (2 * q.numel() + 2 * k.numel()) * q.element_size()
    return call, moved + 2 * k.numel() * k_cache.element_size() + 2 * cos.nbytes


def _attention(key: Key, queries: list[int], context: int, device: torch.device) -> Made:
    kv_heads, dim, page = 8, key["head_dim"], key["page"]
    heads, pages = kv_heads * key["group"], -(-context // page)
    q = _draw(device, key["dtype"], sum(queries), heads, dim)
    shape = pages * len(queries), page, kv_heads, dim
    k_cache, v_cache = (_draw(device, key["dtype"], *shape) for _ in range(2))
    table = torch.randperm(shape[0], device=device).reshape(len(queries), pages).int()
    start = torch.tensor([0, *queries], device=device).cumsum(0).int()
    lengths = torch.full((len(queries),), context, device=device, dtype=torch.int32)
    run = _operator("attention", "paged_attention")
    longest = max(queries)

    def call() -> Tensor:
        made: Tensor = run(
            q, k_cache, v_cache, table, start, lengths, longest, context, dim**-0.5, []
        )
        return made

    return call, 2 * q.nbytes + k_cache.nbytes + v_cache.nbytes


def paged_attention_decode(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """One query for each of ``rows`` sequences, the longer the fewer they are."""
    context = next(keys for most, keys in _CONTEXTS if rows <= most)
    return _attention(key, [1] * rows, context if device.type != "cpu" else 64, device)


def paged_attention_prefill(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """``rows`` tokens of prompts of at most 2048, without keys of before."""
    whole, rest = divmod(rows, _PROMPT)
    queries = [_PROMPT] * whole + [rest] * (rest > 0)
    return _attention(key, queries, max(queries), device)


def attention(key: Key, rows: int, _: Any, device: torch.device) -> Made:
    """``rows`` queries over as many keys and more; a mask is that of all heads, or one each."""
    batch, keys, heads = (1, 64, 2) if device.type == "cpu" else (4, max(rows, 512), 16)
    dim = key["head_dim"]
    q = _draw(device, key["dtype"], batch, rows, heads, dim)
    k, v = (_draw(device, key["dtype"], batch, keys, heads, dim) for _ in range(2))
    shape = {0: (), 1: (batch, 1, 1, keys), 2: (batch, 1, rows, keys)}[key["mask"]]
    mask = torch.rand(shape, device=device) < 0.9 if shape else None
    run = _operator("dense_attention", "attention")
    moved = 2 * q.nbytes + k.nbytes + v.nbytes + (0 if mask is None else mask.nbytes)
    return lambda: run(q, k, v, mask, dim**-0.5), moved


def _keys(**fields: Any) -> tuple[dict[str, Any], ...]:
    """One key for each value of the one field that is a list."""
    (name,) = (n for n, v in fields.items() if isinstance(v, list))
    return tuple({**fields, name: value} for value in fields[name])


_BF16: Final[dict[str, Any]] = {"dtype": "bfloat16"}
_NORM: Final[dict[str, Any]] = {**_BF16, "weight": "bfloat16"}
_HEADS: Final[dict[str, Any]] = {"heads": 32, "kv_heads": 8, "head_dim": 128}
_ROTARY: Final[dict[str, Any]] = {**_BF16, **_HEADS, "half": 64, "pairing": "neox"}
_HIDDEN: Final = [2048, 4096, 5120, 7168, 8192]
_GATES: Final = [*_HIDDEN, 14336]
_ROWS: Final = (1, 8, 32, 128, 512, 2048, 8192, 16384)
_SEQUENCES: Final = (1, 4, 8, 16, 32, 64, 256)
_TOKENS: Final = (16, 64, 256, 1024, 4096, 8192)
_QUERIES: Final = (1, 16, 64, 256, 1024, 4096)


def trials(arch_shared_kib: int) -> dict[str, Trials]:
    """By the names of tables; attention's keys hold the memory that a program can share."""
    shared = {**_BF16, "head_dim": 128, "shared": arch_shared_kib}
    paged = {**shared, "page": _PAGE}
    gates = tuple(
        key for act in ("silu", "tanh") for key in _keys(**_BF16, act=act, gated=True, width=_GATES)
    )
    turns = {**_BF16, "kv_heads": 8, "head_dim": 128, "half": 64, "pairing": "neox"}
    inplace = _keys(**turns, heads=[h // 128 for h in _HIDDEN], inplace=True)
    return {
        "rms_norm": Trials(rms_norm, _keys(**_NORM, hidden=_HIDDEN), _ROWS),
        "fused_add_rms_norm": Trials(fused_add_rms_norm, _keys(**_NORM, hidden=_HIDDEN), _ROWS),
        "layer_norm": Trials(layer_norm, _keys(**_NORM, hidden=[768, 4096]), _ROWS),
        "qk_rms_norm": Trials(qk_rms_norm, ({**_NORM, **_HEADS},), _ROWS),
        "activation_rows": Trials(activation_rows, gates, _ROWS),
        "activation_flat": Trials(
            activation_flat, _keys(**_BF16, act=["silu", "tanh"]), tuple(4**n for n in range(5, 14))
        ),
        "rotary_embedding": Trials(
            rotary_embedding, (*inplace, {**_ROTARY, "inplace": False}), _ROWS
        ),
        "rotary_kv_cache_write": Trials(
            rotary_kv_cache_write, ({**_ROTARY, "cache": "bfloat16"},), _ROWS
        ),
        "kv_cache_write": Trials(
            kv_cache_write, _keys(**_BF16, cache="bfloat16", width=[h // 4 for h in _HIDDEN]), _ROWS
        ),
        "paged_attention_decode": Trials(
            paged_attention_decode, _keys(**paged, group=[4, 8]), _SEQUENCES
        ),
        "paged_attention_prefill": Trials(
            paged_attention_prefill, _keys(**paged, group=[4, 8]), _TOKENS
        ),
        "attention": Trials(attention, _keys(**shared, mask=[0, 1, 2]), _QUERIES),
    }
