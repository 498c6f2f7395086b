"""Other engines with the same model, for ``engine.py``: transformers and llama.cpp."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from llm import gguf, weights
from llm.config import Config


class Task(NamedTuple):
    """What is measured: so many prompts of one length, then so many steps of decoding."""

    name: str
    prompts: int
    length: int
    steps: int


class Engine(Protocol):
    """Something that can be timed."""

    def seconds(self, task: Task, clock: Callable[[], float]) -> list[float]:
        """Seconds of the prefill, then of each step of decoding."""


def prompts_of(task: Task, vocab: int) -> list[list[int]]:
    """Prompts of random words, the same in every run."""
    rng = torch.Generator().manual_seed(1)
    return torch.randint(17, vocab, (task.prompts, task.length), generator=rng).tolist()


_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _state(file: gguf.ModelFile, c: Config) -> dict[str, torch.Tensor]:
    """The tensors under the names that transformers gives them."""
    heads = {"attn_q": c.heads, "attn_k": c.kv_heads}
    found = {}
    for name, stored in file.tensors.items():
        tensor = stored.dequantise()
        first, *rest = name.split(".")
        if first == "blk":
            layer, part, _ = rest
            if part in heads:
                tensor = weights.split_halves(tensor, heads[part])
            found[f"model.layers.{layer}.{_NAMES[part]}.weight"] = tensor
        else:
            target = "embed_tokens" if first == "token_embd" else "norm"
            found[f"model.{target}.weight"] = tensor
    return found


class Transformers:
    """transformers' model with the same weights, eager, with its default attention (SDPA)."""

    def __init__(self, file: gguf.ModelFile) -> None:
        import transformers  # type: ignore[import-not-found,unused-ignore]

        c = file.config
        self.config = transformers.LlamaConfig(
            vocab_size=c.vocab,
            hidden_size=c.hidden,
            intermediate_size=c.inter,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            max_position_embeddings=c.context,
            rope_theta=c.rope.theta,
            rms_norm_eps=c.eps,
            tie_word_embeddings=True,
        )
        self.library: Any = transformers
        self.model = transformers.LlamaForCausalLM(self.config).eval()
        self.model.load_state_dict(_state(file, c), strict=False)


class WithCache:
    """transformers' engine with one of its caches."""

    def __init__(self, shared: Transformers, kind: str) -> None:
        self._shared, self._kind = shared, kind

    def _cache(self, task: Task) -> object:
        library, config = self._shared.library, self._shared.config
        if self._kind == "static":
            return library.StaticCache(config=config, max_cache_len=task.length + task.steps + 1)
        return library.DynamicCache(config=config)

    @torch.inference_mode()
    def seconds(self, task: Task, clock: Callable[[], float]) -> list[float]:
        """Times whole forward passes and the choice of the next token."""
        ids, times = torch.tensor(prompts_of(task, self._shared.config.vocab_size)), []
        cache = self._cache(task)
        for _ in range(task.steps + 1):
            start = clock()
            out = self._shared.model(
                input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            times.append(clock() - start)
        return times


class LlamaCpp:
    """llama.cpp on the quantised weights of the file, by its own clock (wall).

    Its weights have a quarter of the bytes and its activations eight bits: it is shown beside the
    float32 engines, not compared with them.
    """

    def __init__(self, path: Path, threads: int) -> None:
        import xllamacpp  # type: ignore[import-not-found,unused-ignore]

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = 4096, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = True
        self._server = xllamacpp.Server(params)

    def rates(self, task: Task, vocab: int) -> dict[str, float]:
        """Tokens per second of the prompt and of decoding one sequence."""
        asked = {
            "prompt": prompts_of(task, vocab)[0],
            "n_predict": max(task.steps, 1),
            "ignore_eos": True,
            "cache_prompt": False,
            "temperature": 0,
        }
        answer = self._server.handle_completions(asked)
        found = json.loads(answer) if isinstance(answer, str) else answer
        timings = found["timings"]
        return {
            "prefill": timings["prompt_per_second"],
            "decode": timings["predicted_per_second"],
        }


def wall() -> float:
    """Seconds by the clock on the wall."""
    return time.perf_counter()


def cpu() -> float:
    """Seconds of processor time of this process, all threads together."""
    return time.process_time()
