"""Directories of every family that the engine runs, against one written out in plain torch."""

from __future__ import annotations

import math

import pytest
import torch

import trivet
from llm import config_json, gguf_model, source
from llm.model import Llama
from llm.schedule import Scheduler, generate

PROMPTS = [[5], [200, 3, 77, 41, 9], [(7 * i * i + 3) % 256 for i in range(41)]]
TOKENS = 16
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}


def angles(config, position):
    """The angle of each pair of a head at a position, and the factor on cos and sin."""
    dim, theta, scaling = config["head_dim"], config["rope_theta"], config.get("rope_scaling") or {}
    kind, by, old = (
        scaling.get(k) for k in ("rope_type", "factor", "original_max_position_embeddings")
    )
    result = []
    for j in range(dim // 2):
        plain = theta ** (-2 * j / dim)
        if kind is None:
            share = 0.0  # of the interpolated frequency
        elif kind == "llama3":
            share = 1 - min(max((old * plain / (2 * math.pi) - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        else:
            edge = [
                dim * math.log(old / (r * 2 * math.pi)) / (2 * math.log(theta)) for r in (32, 1)
            ]
            low, high = max(math.floor(edge[0]), 0), min(math.ceil(edge[1]), dim - 1)
            share = min(max((j - low) / (high - low), 0.0), 1.0)
        result.append(position * (share * plain / (by or 1) + (1 - share) * plain))
    factor = 0.1 * math.log(by) + 1 if kind == "yarn" else 1.0
    return torch.tensor(result, dtype=torch.float64), factor


def logits(config, tensors, ids):
    """The logits after the last token; [vocab], float64."""

    def get(name):
        return tensors[name].double() if name in tensors else None

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight

    def project(x, name):
        y, bias = x @ get(f"{name}.weight").T, get(f"{name}.bias")
        return y if bias is None else y + bias

    def turn(heads):
        rows = []
        for position, row in enumerate(heads):
            angle, factor = angles(config, position)
            pairs = torch.complex(*row.chunk(2, -1)) * torch.polar(factor + 0 * angle, angle)
            rows.append(torch.cat([pairs.real, pairs.imag], -1))
        return torch.stack(rows)

    width, count = config["head_dim"], len(ids)
    window = config.get("sliding_window") or count
    seen = [[0 <= i - j < window for j in range(count)] for i in range(count)]
    x = get("model.embed_tokens.weight")[ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        h = norm(x, get(f"{layer}.input_layernorm.weight"))
        q, k, v = (
            project(h, f"{layer}.self_attn.{p}_proj").view(count, -1, width)
            for p in ("q", "k", "v")
        )
        if (weight := get(f"{layer}.self_attn.q_norm.weight")) is not None:
            q, k = norm(q, weight), norm(k, get(f"{layer}.self_attn.k_norm.weight"))
        q, k = turn(q), turn(k)
        groups = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / width**0.5
        scores = scores.masked_fill(~torch.tensor(seen), -math.inf).softmax(-1)
        y = torch.einsum("hij,jhd->ihd", scores, v).reshape(count, -1)
        x = x + project(y, f"{layer}.self_attn.o_proj")
        h = norm(x, get(f"{layer}.post_attention_layernorm.weight"))
        gate, up = (project(h, f"{layer}.mlp.{p}_proj") for p in ("gate", "up"))
        x = x + project(torch.nn.functional.silu(gate) * up, f"{layer}.mlp.down_proj")
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return norm(x, get("model.norm.weight"))[-1] @ get(f"{head}.weight").T


def expected(config, tensors, prompt, tokens=TOKENS):
    """Greedy tokens, and by how much the best logit leads at the closest choice."""
    ids, lead = list(prompt), math.inf
    for _ in range(tokens):
        (first, second), best = logits(config, tensors, ids).topk(2)
        lead = min(lead, float(first - second))
        ids.append(int(best[0]))
    return ids[len(prompt) :], lead


def answers(path, **more):
    chosen = {"dtype": torch.float32, "num_blocks": 32, "block_size": 8, **more}
    llama = Llama(trivet.device("cpu", strict=True), source.read(path), **chosen)
    plan = Scheduler(
        llama.pool, max_batch=4, budget=16, context=llama.config.context, eos=frozenset()
    )
    requests = [plan.submit(p, TOKENS) for p in PROMPTS]
    list(generate(llama, plan))
    return [request.output for request in requests]


CASES = {
    "llama": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "bias": ("llama", {"attention_bias": True}),
    "llama3": ("llama", {"rope_scaling": LLAMA3}),
    "yarn": ("llama", {"rope_scaling": YARN}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"use_sliding_window": False}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 with window": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
    ),
}


@pytest.fixture
def made(directory):
    def make(name):
        kind, keys = CASES[name]
        return directory(kind, **keys)

    return make


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_those_of_the_model_written_out(made, name, tmp_path):
    model = made(name)
    wanted = [expected(model.config, model.tensors, prompt) for prompt in PROMPTS]
    assert min(lead for _, lead in wanted) > 1e-4, "the random model decides too closely"
    assert answers(model.write(tmp_path / "m")) == [ids for ids, _ in wanted]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama3", {"rope_scaling": None}),
        ("yarn", {"rope_scaling": None}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_what_these_models_test_changes_their_tokens(made, name, change):
    model = made(name)
    plain, other = (
        expected(config, model.tensors, PROMPTS[-1])[0]
        for config in (model.config, model.config | change)
    )
    assert plain != other


@pytest.mark.parametrize("name", ["q_norm", "q_proj.bias"])
def test_small_tensors_change_the_tokens(made, name):
    model = made("qwen3" if name == "q_norm" else "qwen2")
    rest = {k: 1 + 0 * t if name in k else t for k, t in model.tensors.items()}
    plain, other = (
        expected(model.config, tensors, PROMPTS[-1])[0] for tensors in (model.tensors, rest)
    )
    assert plain != other


def test_shards_are_one_model(made, tmp_path):
    model = made("llama")
    whole = answers(model.write(tmp_path / "one"))
    model.shards = 3
    assert answers(model.write(tmp_path / "three")) == whole


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_widened_exactly(made, tmp_path, dtype):
    model = made("llama")
    model.tensors = {name: t.to(dtype) for name, t in model.tensors.items()}
    narrow = answers(model.write(tmp_path / "narrow"))
    model.tensors = {name: t.float() for name, t in model.tensors.items()}
    assert answers(model.write(tmp_path / "wide")) == narrow
    assert all(len(ids) == TOKENS for ids in narrow)


def adjacent(weight, heads):
    """The rows of each rotated pair next to each other, as GGUF files have them."""
    halves = weight.view(heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def test_a_directory_and_a_file_of_one_model_answer_alike(directory, hand_made, tiny, tmp_path):
    model = directory("llama", hidden_size=128)
    config = model.config
    hand_made.metadata = {
        **{k: v for k, v in tiny.metadata.items() if k.startswith(("tokenizer", "general"))},
        "tokenizer.ggml.tokens": [str(i) for i in range(config["vocab_size"])],
        "llama.block_count": 2,
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    heads = {"layer.q": config["num_attention_heads"], "layer.k": config["num_key_value_heads"]}
    for part, name in gguf_model.NAMES.items():
        for i in range(2 if "{}" in name else 1):
            tensor = model.tensors[f"{config_json.NAMES[part].format(i)}.weight"]
            tensor = adjacent(tensor, heads[part]) if part in heads else tensor
            hand_made.put(f"{name.format(i)}.weight", tensor)
    assert answers(hand_made.write(tmp_path / "m.gguf")) == answers(model.write(tmp_path / "m"))


def test_the_window_is_promised_and_leaves_no_guard(directory, tmp_path):
    model = directory("mistral", sliding_window=7)
    file = source.read(model.write(tmp_path / "m"))
    llama = Llama(trivet.device("cpu"), file, dtype=torch.float32, num_blocks=8, block_size=8)
    assert "qk_norm" not in llama.plan.sites
    assert llama.plan.sites["attention"].choice.facts.values["window"] == 7
    providers = llama.plan.at(tokens=5, rows=1, max_query_len=5).providers()
    assert not [s for s in ("qkv", "rotary_kv", "attention", "out") if "|" in providers[s]]
