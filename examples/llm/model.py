"""The model: one plan of operator sites, and one ``step`` that calls them.

Nothing here asks which hardware it runs on: the plan holds, for each site, the function that the
installed packages offer for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import trivet
from llm import bound, cache_size, sampling, weights
from llm.config import Config
from llm.decode import Decode, replayed
from llm.inputs import Inputs, lay_out
from llm.parallel.shards import Shard
from llm.parallel.team import STEP, Alone, Team, waited
from llm.schedule import Piece
from llm.source import Source
from llm.timing import GRAPH, RANKS, Times


def sites(
    c: Config, vocab: int, dtype: torch.dtype, block_size: int
) -> dict[str, tuple[str, dict[str, Any]]]:
    """The operator of each site, and what the engine promises of its arguments there.

    ``c`` has the sizes of this rank's part of the model, ``vocab`` all tokens there are.
    Queries, keys and values are views of one product, so their rows are as far apart as its are.
    """
    heads, queries = c.heads + 2 * c.kv_heads, c.heads * c.head_dim
    apart, scale = heads * c.head_dim, c.head_dim**-0.5
    act = {"dtype": dtype, "contiguous": True}
    norm = {"dtype": dtype, "weight.dtype": dtype, "hidden": c.hidden, "eps": c.eps}
    cache: dict[str, Any] = {"dtype": dtype, "k_cache.dtype": dtype, "v_cache.dtype": dtype}
    cache |= {"kv_heads": c.kv_heads, "head_dim": c.head_dim, "block_size": block_size}
    cache |= starts(c, dtype, "q", "k_cache", "v_cache")
    caches, tables = ["k_cache", "v_cache"], ["block_table", "query_start", "seq_lens"]
    heads_of = {"dtype": dtype, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim}
    heads_of |= {"q.rows": apart, "k.rows": apart}

    def linear(
        inputs: int, outputs: int, *, bias: bool = False, **more: Any
    ) -> tuple[str, dict[str, Any]]:
        sizes = {"in_features": inputs, "out_features": outputs}
        added = {"bias.dtype": dtype} if bias else {"bias": None}
        return "linear_packed", {**act, **sizes, **added, **more}

    heads_norm = {**heads_of, "q_weight.dtype": dtype, "k_weight.dtype": dtype, "eps": c.eps}
    of_heads = {"qk_norm": ("qk_rms_norm_", {**heads_norm, "contiguous": ["q_weight", "k_weight"]})}
    return {
        **(of_heads if c.qk_norm else {}),
        "embed": ("embedding", {**act, "hidden": c.hidden, "vocab": c.vocab}),
        "norm": ("rms_norm", {**norm, "contiguous": ["x", "weight"]}),
        "add_norm": ("fused_add_rms_norm_", {**norm, "contiguous": ["x", "residual", "weight"]}),
        "qkv": linear(c.hidden, apart, bias=c.qkv_bias),
        "rotary_kv": (
            "rotary_kv_cache_write",
            {
                **heads_of,
                **cache,
                **starts(c, dtype, "k", "v", "cos", "sin"),
                "rotary_half": c.rope.half,
                "v.rows": apart,
                "contiguous": ["cos", "sin", *caches, "slots"],
            },
        ),
        "attention": (
            "paged_attention",
            {
                **cache,
                "heads": c.heads,
                "scale": scale,
                "window": c.window,
                "q.rows": apart,
                "contiguous": [*caches, *tables],
            },
        ),
        "out": linear(queries, c.hidden, bias=c.out_bias),
        "gate_up": linear(c.hidden, 2 * c.inter),
        "glu": ("silu_and_mul", {**act, "inter": c.inter}),
        "down": linear(c.inter, c.hidden),
        "head": linear(c.hidden, c.vocab, tokens="rows"),
        **sampling.sites(act, vocab),
    }


def starts(c: Config, dtype: torch.dtype, *names: str) -> dict[str, int]:
    """Each starts where an allocation does, or a whole number of heads behind."""
    whole = c.head_dim * dtype.itemsize % 16 == 0
    return {f"{name}.offset_aligned": 16 for name in names} if whole else {}


class Llama:
    """A decoder on one device, or this rank's part of it, with its weights and its KV cache."""

    def __init__(  # one keyword a choice
        self,
        device: trivet.Device,
        file: Source,
        *,
        dtype: torch.dtype,
        num_blocks: int,
        block_size: int,
        observe: bool = False,
        times: Times | None = None,
        advance: Callable[[], None] = lambda: None,
        capture: Sequence[int] = (),
        team: Team | None = None,
    ) -> None:
        c = self.config = file.config
        self.team = team or Alone(Shard(c))
        mine = self._mine = self.team.shard.config
        self._where, self._memory, self._times = device.torch, device.memory, times
        self.device_name = f"{device.info.kind}:{device.info.index} {device.info.name}"
        self._observe = observe and times is None  # what is timed is counted
        mode = "captured" if capture else "eager"
        self.plan = device.plan(
            sites(mine, c.vocab, dtype, block_size), observe=self._observe, mode=mode
        )
        self._at = self.plan.at if times is None else times.timed(self.plan.at)
        self._weights = weights.load(
            file,
            self.team.shard,
            lambda w: self._placed(w.to(self._where, dtype)),
            partial(self.plan.prepare, account=device.memory.account),
            advance,
        )
        each = cache_size.bytes_of_block(mine, block_size, dtype)
        cache_size.refuse_too_large(device, num_blocks * each)
        self.caches = device.memory.kv_caches(
            c.layers, num_blocks, block_size, mine.kv_heads, c.head_dim, dtype
        )
        device.memory.publish()  # all that is large is there; without the variable it does nothing
        self.pool = device.memory.kv_blocks(num_blocks, block_size, bytes_per_block=each)
        reach = min(c.context, num_blocks * block_size)  # no position beyond the cache is computed
        tables = c.rope.tables(torch.arange(reach), length=reach)
        self._cos, self._sin = (t.to(self._where) for t in tables)
        # What keys and values depend on besides the tokens; a rotary variant may depend on reach.
        self.salt = repr((str(file.path), c, dtype, reach)).encode()
        self.decode = Decode(device, self, capture, reach) if capture else None
        if times is not None:
            self.team.timed(times.call)
            if self.decode is not None:
                self.decode.timed(times.call)
        self._before = self.plan.counts() if self._observe else {}  # what the captures called

    def _placed(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight, counted until its memory ends; packing may be the end of it."""
        self._memory.account(weight, "weights")
        return weight

    def memory(self) -> dict[str, int]:
        """Bytes by what they are for: weights as they came, packs made of them, the KV cache."""
        return dict(self._memory.stats().by_tag)

    def calls(self) -> list[dict[str, Any]]:
        """Which implementation ran at each site, how often and why, if that is counted or timed.

        A step that is replayed counts what it captured; where time is taken it is one row.
        Otherwise all that some step may choose there, and None for how often.
        """
        if self._times is not None:
            table = dict(self._times.table())
            replays = [replayed(table.pop(key)) for key in list(table) if key[0] == GRAPH]
            waits = [waited(table.pop(key)) for key in list(table) if key[0] == RANKS]
            return [*replays, *waits, *bound.rows(self.plan, table)]
        if self._observe:
            counted = Counter(self.plan.counts())
            counted.subtract(self._before)
            counted.update(self.decode.counts() if self.decode else {})
            ran = sorted((key, n) for key, n in counted.items() if n)
            told = self.team.rows(self.decode.sizes() if self.decode else {})
            return [*bound.rows(self.plan, {key: {"calls": n} for key, n in ran}), *told]
        return self.bound()

    def bound(self) -> list[dict[str, Any]]:
        """Which implementations some step may choose at each site, and why; none counted."""
        return bound.rows(self.plan, None)

    @torch.inference_mode()
    def step(self, pieces: list[Piece]) -> list[int]:
        """Runs the pieces through the model; the next token of each piece that samples."""
        if self.decode is not None and self.decode.takes(pieces):
            return self.decode.step(pieces)
        n = lay_out(pieces, self.pool)
        self.team.tell(STEP, n)
        op, logits = self.run(n)
        if not len(n.rows):
            return []
        chosen = sampling.choose(op, logits, [piece for piece in pieces if piece.samples])
        return list(chosen.tolist())

    @torch.inference_mode()
    def run(self, n: Inputs) -> tuple[Any, torch.Tensor]:
        """Runs a step that was laid out; the functions of its sites, and the logits."""
        # A step that only reads prompts samples nothing; its plan is looked up as for one row.
        op = self._at(tokens=len(n.ids), rows=len(n.rows) or 1, max_query_len=n.max_query)
        self.team.steps[len(n.ids), len(n.rows)] += 1
        return op, self.logits(op, n.to(self._where))

    def logits(self, op: Any, n: Inputs) -> torch.Tensor:
        """Runs tokens through the model; the logits [rows, vocab], nothing where it has no rows.

        Of several ranks the first one has the logits.
        """
        c, tokens, team = self._mine, len(n.ids), self.team
        shape, parts = (-1, c.heads + 2 * c.kv_heads, c.head_dim), (c.heads, c.kv_heads, c.kv_heads)
        w = op.use(self._weights)
        batch = (n.table, n.starts, n.lengths, n.max_query, n.max_length)
        schedule = op.schedule("attention", *batch)
        cos, sin = self._cos[n.positions], self._sin[n.positions]

        residual = team.embedded(op.embed, n.ids, w.embedding)
        x = op.norm(residual, w.layers[0].norm, c.eps)
        for i, (layer, (k_cache, v_cache)) in enumerate(zip(w.layers, self.caches, strict=True)):
            if i:
                op.add_norm(x, residual, layer.norm, c.eps)
            qkv = op.qkv(x, layer.qkv, shape[1] * c.head_dim, layer.qkv_bias)
            q, k, v = qkv.view(shape).split(parts, dim=1)
            if c.qk_norm:
                op.qk_norm(q, k, layer.q_norm, layer.k_norm, c.eps)
            op.rotary_kv(q, k, v, cos, sin, k_cache, v_cache, n.slots)
            y = op.attention(q, k_cache, v_cache, *batch, c.head_dim**-0.5, schedule, c.window)
            x = team.total(op.out(y.view(tokens, -1), layer.out, c.hidden, layer.out_bias))
            op.add_norm(x, residual, layer.mlp_norm, c.eps)
            x = op.glu(op.gate_up(x, layer.gate_up, 2 * c.inter))
            x = team.total(op.down(x, layer.down, c.hidden))
        if len(n.rows):
            op.add_norm(x, residual, w.norm, c.eps)
            x = team.joined(op.head(x[n.rows], w.head, c.vocab))
        return x  # type: ignore[no-any-return]
