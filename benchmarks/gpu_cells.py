"""What the GPU benchmark times of rows of tokens: norms, gates, rotary embedding, cache writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gpu_peers
import torch
from gpu_clock import Call
from torch import Tensor

import trivet

OURS = "trivet"
OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_and_mul",
    "rotary_embedding",
    "kv_cache_write",
)
TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 16384)
HIDDEN = (2048, 4096, 5120, 7168, 8192)
HEAD_DIM, PAGE = 128, 16
INPLACE = {"fused_add_rms_norm": (0, 1), "rotary_embedding": (0, 1), "kv_cache_write": (2, 3)}
"""Operators that ours computes in place, and which arguments that writes."""


@dataclass
class Cell:
    """What is timed for one operator and shape.

    Args:
        op: the operator, or what it is used for.
        sizes: the numbers that the row is named after.
        dtype: of the activations.
        nbytes: bytes that must be read and written.
        calls: provider -> call; ``trivet`` is ours.
        restore: makes the arguments as they were, for calls that work in place.
        results: what a call has returned or written, from what it returned.
        wanted: what is right, computed from the arguments as they were.
        provider: which implementation of ours it is.
        missing: providers that cannot take part, and why.
        flops: of the products, where they and not the bytes are the limit.
    """

    op: str
    sizes: dict[str, int]
    dtype: str
    nbytes: int
    calls: dict[str, Call]
    restore: Callable[[], None]
    results: Callable[[str, object], list[Tensor]]
    wanted: Callable[[], list[Tensor]]
    provider: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    flops: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other cells."""
        return (self.op, self.dtype, *self.sizes.values())


def arguments(
    op: str, tokens: int, hidden: int, dtype: torch.dtype, device: torch.device
) -> list[Any]:
    """Random arguments of an operator, the same in every run."""
    torch.manual_seed(tokens * 31 + hidden)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=device, dtype=dtype)

    heads, kv_heads = max(1, hidden // HEAD_DIM), max(1, hidden // (4 * HEAD_DIM))
    if op == "rms_norm":
        return [draw(tokens, hidden), draw(hidden), 1e-6, 0.0, True]
    if op == "fused_add_rms_norm":
        return [draw(tokens, hidden), draw(tokens, hidden), draw(hidden), 1e-6, 0.0, True]
    if op == "silu_and_mul":
        return [draw(tokens, 2 * hidden)]
    if op == "gelu_and_mul":
        return [draw(tokens, 2 * hidden), "tanh"]  # what every peer has
    if op == "rotary_embedding":
        angle = torch.rand(tokens, HEAD_DIM // 2, device=device) * 6
        width = (tokens, heads, HEAD_DIM), (tokens, 8, HEAD_DIM)
        return [draw(*width[0]), draw(*width[1]), angle.cos(), angle.sin()]
    pages = tokens // PAGE + 64
    slots = torch.randperm(pages * PAGE, device=device)[:tokens]
    cache = (pages, PAGE, kv_heads, HEAD_DIM)
    rows = (tokens, kv_heads, HEAD_DIM)
    return [draw(*rows), draw(*rows), draw(*cache), draw(*cache), slots]


def moved(op: str, given: Sequence[Any]) -> int:
    """Bytes that an operator has to read and write."""
    if op == "kv_cache_write":
        return int(4 * given[0].nbytes + given[4].nbytes)
    if op == "rotary_embedding":
        return int(2 * sum(t.nbytes for t in given[:2]) + sum(t.nbytes for t in given[2:4]))
    whole = sum(t.nbytes for t in given if isinstance(t, Tensor))
    written = {"rms_norm": 1, "fused_add_rms_norm": 2}.get(op, 0.5) * given[0].nbytes
    return int(whole + written)


def facts(op: str, given: Sequence[Any]) -> dict[str, Any]:
    """What an engine would promise of such a call."""
    dtype = str(given[0].dtype).removeprefix("torch.")
    act: dict[str, Any] = {"dtype": dtype}
    if op in ("rms_norm", "fused_add_rms_norm"):
        names = ["x", "weight"] if op == "rms_norm" else ["x", "residual", "weight"]
        return act | {"weight.dtype": dtype, "hidden": given[0].shape[-1], "contiguous": names,
                      "eps": 1e-6, "weight_offset": 0.0, "weight_in_float32": True,
                      "variance_size": 0}  # fmt: skip
    if op in ("silu_and_mul", "gelu_and_mul"):
        more = {"approximate": "tanh"} if op == "gelu_and_mul" else {}
        return act | more | {"inter": given[0].shape[-1] // 2, "contiguous": True}
    heads = {"kv_heads": given[1].shape[1], "head_dim": given[0].shape[2]}
    if op == "rotary_embedding":
        more = {"heads": given[0].shape[1], "rotary_half": given[2].shape[-1], "pairing": "neox"}
        return act | heads | more | {"contiguous": ["q", "k", "cos", "sin"]}
    caches = {"k_cache.dtype": dtype, "v_cache.dtype": dtype, "block_size": given[2].shape[1]}
    names = ["k", "v", "k_cache", "v_cache", "slots"]
    return act | heads | caches | {"layout": "NHD", "contiguous": names}


def cell(
    op: str,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: trivet.Device,
    peers: gpu_peers.Peers,
) -> Cell:
    """One operator and shape with every provider's call."""
    given = arguments(op, sizes["tokens"], sizes["hidden"], dtype, device.torch)
    kept = {i: given[i].clone() for i in INPLACE.get(op, ())}
    name = f"{op}_" if op in INPLACE and op != "kv_cache_write" else op
    promised = facts(op, given)
    ours = device.bind(name, promised)
    calls: dict[str, Call] = {OURS: partial(ours, *given)}
    writes = {OURS: op in INPLACE}
    for peer, functions in peers.items():
        if op in functions:
            calls[peer] = gpu_peers.call_of(peer, op, functions[op], given)
            writes[peer] = functions[op].inplace or op == "kv_cache_write"
    if "inductor" in writes:
        writes["inductor"] = op == "kv_cache_write"

    def restore() -> None:
        for i, tensor in kept.items():
            given[i].copy_(tensor)

    def results(provider: str, result: object) -> list[Tensor]:
        written = [given[i] for i in INPLACE.get(op, ())]
        return written if writes[provider] else gpu_peers.tensors(result)

    def wanted() -> list[Tensor]:
        mine = [kept[i].clone() if i in kept else a for i, a in enumerate(given)]
        result = device.operators[op].reference(*mine)
        return [mine[2], mine[3]] if result is None else gpu_peers.tensors(result)

    first = next(r for r in device.explain(name, promised) if r.verdict in ("yes", "guarded"))
    return Cell(
        op, dict(sizes), promised["dtype"], moved(op, given), calls, restore, results, wanted,
        first.provider,
    )  # fmt: skip


def cells(
    op: str,
    peers: gpu_peers.Peers,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: trivet.Device,
) -> Iterator[Cell]:
    """The one cell of an operator and shape, as other kinds of cells are made."""
    yield cell(op, sizes, dtype, device, peers)


def grid(op: str, tokens: Sequence[int], hidden: Sequence[int]) -> Iterator[dict[str, int]]:
    """The shapes of an operator, small ones first."""
    del op
    for n in tokens:
        for h in hidden:
            yield {"tokens": n, "hidden": h}


def wrong(got: list[Tensor], want: list[Tensor], dtype: torch.dtype) -> str:
    """How results differ by more than two roundings of the dtype; empty where they do not."""
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    allowed = 4 * torch.finfo(dtype).eps
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.shape != b.shape:
            return f"result {i} has shape {list(a.shape)}, not {list(b.shape)}"
        if not a.dtype.is_floating_point:
            if not torch.equal(a, b):
                return f"result {i}: {int((a != b).sum())} of {a.numel()} choices differ"
            continue
        far = float(((a.float() - b.float()).abs() / (1 + b.float().abs())).max().nan_to_num(1e9))
        if far > allowed:
            return f"result {i} differs by {far:.3g}, more than {allowed:.3g}"
    return ""


def checked(cell: Cell, dtype: torch.dtype) -> None:
    """Calls every provider once; those that fail or are wrong leave the cell with the reason."""
    want = cell.wanted()
    for name in list(cell.calls):
        cell.restore()
        try:
            problem = wrong(cell.results(name, cell.calls[name]()), want, dtype)
        except Exception as error:  # noqa: BLE001  # what a peer raises is its row
            words = " ".join(str(error).split())[:300]
            problem = f"{type(error).__name__}: {words}"
        if problem:
            del cell.calls[name]
            cell.missing[name] = problem
    cell.restore()
