"""Writes rope_transformers.json: inverse frequencies and tables as transformers computes them.

Run it with an interpreter that has transformers: ``python core/tests/data/make_rope.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "original_max_position_embeddings": 4096}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0],
    "long_factor": [1.0, 1.1, 1.5, 2.5, 5.0, 12.0, 30.0, 62.0],
    "original_max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# name, max_position_embeddings, rope parameters, lengths of which the frequencies are recorded
CASES = [
    ("default", 4096, {"rope_type": "default", "rope_theta": 10000.0}, []),
    ("linear", 8192, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, []),
    ("partial", 8192, {**YARN, "factor": 2.0, "partial_rotary_factor": 0.5}, []),
    ("dynamic", 2048, {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, [99, 2048, 8192]),
    ("yarn", 16384, {**YARN, "factor": 4.0}, []),
    ("yarn_ratio", 40960, {**YARN, "factor": None}, []),
    ("yarn_attention", 16384, {**YARN, "factor": 4.0, "attention_factor": 1.5}, []),
    ("yarn_mscale", 163840, {**YARN, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.4}, []),
    (
        "yarn_exact_range",
        131072,
        {**YARN, "factor": 32.0, "truncate": False, "beta_fast": 24.0, "beta_slow": 2.0},
        [],
    ),
    ("yarn_wide", 65536, {**YARN, "factor": 2.0, "rope_theta": 100.0}, []),
    (
        "yarn_step",
        16384,
        {**YARN, "factor": 4.0, "truncate": False, "beta_fast": 8.0, "beta_slow": 8.0},
        [],
    ),
    ("llama3", 131072, LLAMA3, []),
    ("longrope", 131072, LONG, [4096, 4097]),
    ("longrope_factor", 131072, {**LONG, "factor": 16.0}, [4097]),
    ("longrope_attention", 131072, {**LONG, "attention_factor": 1.25}, [4097]),
]
MULTIMODAL = [
    ("sections", Qwen2VLTextConfig, Qwen2VLRotaryEmbedding, [2, 3, 3], False),
    ("interleaved", Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, [4, 2, 2], True),
]
POSITIONS = [0, 1, 7, 100, 1000]


def listed(tensor: torch.Tensor) -> list[float]:
    """Numbers that read back as the same float32."""
    return [float(f"{v:.9g}") for v in tensor.flatten().tolist()]


def record(name: str, most: int, parameters: dict, lengths: list[int]) -> dict:
    """One variant on plain positions."""
    sizes = {**SIZES, "max_position_embeddings": most}
    config = LlamaConfig(**sizes, rope_parameters=dict(parameters))
    made = LlamaRotaryEmbedding(config)
    by_length = {}
    for length in lengths:
        fresh = LlamaRotaryEmbedding(config)
        fresh(torch.zeros(1), torch.tensor([[length - 1]]))
        by_length[str(length)] = listed(fresh.inv_freq)
    cos, sin = made(torch.zeros(1), torch.tensor([POSITIONS]))
    half = cos.shape[-1] // 2
    return {
        "name": name,
        "config": {**sizes, "rope_parameters": parameters},
        "attention_factor": made.attention_scaling,
        "inverse_frequencies": listed(made.original_inv_freq),
        "by_length": by_length,
        "positions": POSITIONS,
        "cos": listed(cos[..., :half]),
        "sin": listed(sin[..., :half]),
    }


def record_sections(name: str, config_of: type, made_of: type, sections: list, turns: bool) -> dict:
    """One multimodal variant on three rows of positions."""
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    if turns:
        parameters["mrope_interleaved"] = True
    sizes = {**SIZES, "max_position_embeddings": 4096}
    made = made_of(config_of(**sizes, rope_parameters=dict(parameters)))
    positions = torch.tensor([[3, 4, 4, 4, 4, 90], [3, 4, 4, 5, 5, 90], [3, 4, 5, 4, 5, 90]])
    cos, sin = made(torch.zeros(1), positions[:, None])
    half = cos.shape[-1] // 2
    return {
        "name": name,
        "config": {**sizes, "rope_parameters": parameters},
        "attention_factor": made.attention_scaling,
        "inverse_frequencies": listed(made.original_inv_freq),
        "by_length": {},
        "positions": positions.tolist(),
        "cos": listed(cos[..., :half]),
        "sin": listed(sin[..., :half]),
    }


def main() -> None:
    """Writes the file beside this script."""
    cases = [record(*case) for case in CASES] + [record_sections(*case) for case in MULTIMODAL]
    path = Path(__file__).with_name("rope_transformers.json")
    head = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{json.dumps(head)[:-1]}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
