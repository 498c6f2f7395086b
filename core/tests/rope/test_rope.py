from __future__ import annotations

import json
import math
import subprocess
import sys
from decimal import Decimal, getcontext
from pathlib import Path

import pytest
import torch

from trivet.errors import ConfigError, DomainError
from trivet.rope import Dynamic, LongRope, Rope, Yarn, from_config

CASES = json.loads(
    # written by make_rope.py beside it
    (Path(__file__).parents[1] / "data" / "rope_transformers.json").read_text(encoding="utf-8")
)["cases"]
SIZES = {"head_dim": 16, "max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 4096,
}


def read(parameters, **more):
    return from_config({**SIZES, "rope_theta": 1e4, "rope_parameters": parameters, **more})


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_numbers_are_those_of_transformers(case):
    rope = from_config(case["config"])
    kept = rope.inverse_frequencies()
    assert kept.dtype == torch.float64
    torch.testing.assert_close(
        kept, torch.tensor(case["inverse_frequencies"]).double(), rtol=5e-7, atol=0
    )
    for length, wanted in case["by_length"].items():
        got = rope.inverse_frequencies(int(length))
        torch.testing.assert_close(got, torch.tensor(wanted).double(), rtol=5e-7, atol=0)
    assert rope.attention_factor == pytest.approx(case["attention_factor"], rel=1e-12)
    positions = torch.tensor(case["positions"])
    for name, got in zip(("cos", "sin"), rope.tables(positions), strict=True):
        assert (got.dtype, got.is_contiguous()) == (torch.float32, True)
        wanted = torch.tensor(case[name]).view(-1, rope.half)
        # an angle of 1000 in float32 is wrong by up to 2**-15, and its frequency by another one
        torch.testing.assert_close(got, wanted, rtol=0, atol=1.5e-4)


def test_the_recorded_cases_hold_every_kind_and_differ():
    kinds = {from_config(case["config"]).kind for case in CASES}
    assert kinds == {"default", "linear", "dynamic", "yarn", "llama3", "longrope"}
    changed = [c for c in CASES if c["by_length"]]
    assert all(c["by_length"].popitem()[1] != c["inverse_frequencies"] for c in changed)
    assert len(changed) == 4


def exact(rope, position, j):
    """Cos and sin of one entry with 60 digits up to the last step."""
    getcontext().prec = 60
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    frequency = Decimal(rope.theta) ** (-Decimal(2 * j) / Decimal(rope.rotary_dim))
    rest = float(Decimal(position) * frequency % (2 * pi))
    return math.cos(rest), math.sin(rest)


@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_entries_are_rounded_once_at_any_position(theta):
    rope = Rope(rotary_dim=128, theta=theta)
    positions = [1, 4097, 2**17 - 1, 2**17, 2**20 + 3]
    cos, sin = rope.tables(torch.tensor(positions))
    for i, position in enumerate(positions):
        for j in range(rope.half):
            want = torch.tensor(exact(rope, position, j), dtype=torch.float64)
            got = torch.stack([cos[i, j], sin[i, j]]).double()
            assert (got - want).abs().max() <= 2**-24 * 0.51 * 2


def test_positions_of_a_section_turn_only_its_pairs():
    rope = Rope(rotary_dim=16, sections=(4, 2, 2), interleaved=True)
    cos, _ = rope.tables(torch.tensor([[5], [0], [0]]))
    turned = (cos != 1).flatten().tolist()
    assert turned == [True, False, False, True, False, False, True, True]
    plain = Rope(rotary_dim=16, sections=(4, 2, 2)).tables(torch.tensor([[5], [0], [0]]))[0]
    assert (plain != 1).flatten().tolist() == [True] * 4 + [False] * 4


def test_one_position_a_token_is_the_same_in_every_section():
    rope = Rope(rotary_dim=16, sections=(2, 3, 3))
    at = torch.arange(9)
    for one, many in zip(rope.tables(at), rope.tables(at.expand(3, -1)), strict=True):
        assert torch.equal(one, many)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_no_token_is_an_empty_table(dtype):
    cos, sin = Rope(rotary_dim=8).tables(torch.zeros(0, dtype=dtype))
    assert cos.shape == sin.shape == (0, 4)


@pytest.mark.parametrize("shape", [(2, 3), (), (1, 2, 3)])
def test_positions_of_another_shape_are_refused(shape):
    with pytest.raises(DomainError, match="positions"):
        Rope(rotary_dim=8).tables(torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(DomainError, match="float32"):
        Rope(rotary_dim=8).tables(torch.zeros(3))


@pytest.mark.parametrize("length", [0, -1, 2.0, True])
def test_a_senseless_length_is_refused(length):
    for rope in (read(None), read({"rope_type": "dynamic", "factor": 2.0}), read(LONG)):
        with pytest.raises(DomainError, match="length"):
            rope.tables(torch.arange(3), length=length)


@pytest.mark.parametrize("parameters", [YARN, LLAMA3, LONG, {"rope_type": "linear", "factor": 4.0}])
def test_the_two_spellings_of_a_configuration_are_one(parameters):
    new = read(parameters)
    old = {**{k: v for k, v in parameters.items() if k != "rope_type"}}
    old["type"] = "su" if parameters is LONG else parameters["rope_type"]
    assert from_config({**SIZES, "rope_theta": 1e4, "rope_scaling": old}) == new
    inside = {**SIZES, "rope_parameters": {**parameters, "rope_theta": 1e4}}
    assert from_config(inside) == new


def test_multimodal_sections_of_older_files_are_read():
    scaling = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}
    rope = from_config({**SIZES, "rope_theta": 1e6, "rope_scaling": scaling})
    assert rope == Rope(rotary_dim=16, theta=1e6, sections=(2, 3, 3))


def test_a_type_of_layer_chooses_among_several_embeddings():
    both = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = {**SIZES, "rope_parameters": both}
    assert from_config(config, layer_type="sliding_attention").theta == 1e4
    assert from_config(config, layer_type="full_attention").kind == "linear"
    with pytest.raises(ConfigError, match="layer type None"):
        from_config(config)


def test_sizes_of_a_head_are_found_where_models_keep_them():
    assert from_config({"hidden_size": 96, "num_attention_heads": 4, "rope_theta": 5}).half == 12
    assert read(None, partial_rotary_factor=0.25).rotary_dim == 4
    assert from_config({**SIZES, "rope_theta": 5}, head_dim=64).half == 32
    assert from_config(SIZES, default_theta=1e4).theta == 1e4


def without(parameters, key):
    return {k: v for k, v in parameters.items() if k != key}


@pytest.mark.parametrize(
    ("parameters", "key"),
    [(p, k) for p in (LLAMA3, LONG) for k in p if k != "rope_type"]
    + [(YARN, "original_max_position_embeddings")]
    + [({"rope_type": kind, "factor": 2.0}, "factor") for kind in ("linear", "dynamic")],
)
def test_a_missing_key_is_named(parameters, key):
    with pytest.raises(ConfigError, match=f"needs the key '{key}'"):
        read(without(parameters, key))
    with pytest.raises(ConfigError, match=key):
        read({**parameters, key: "wide"})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"type": "yarn"}, "rope_parameters": YARN}, "rope_scaling"),
        ({"rope_parameters": {**YARN, "type": "linear"}}, "rope_type and type"),
        ({"rope_parameters": {**YARN, "rope_theta": 5.0}}, "rope_theta is 5.0"),
        ({"original_max_position_embeddings": 7, "rope_parameters": YARN}, "original_max_pos"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is not known"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "is not known"),
        ({"rope_parameters": {"factor": 2.0}}, "no rope_type"),
        ({"rope_parameters": {**YARN, "short_mscale": 1.0}}, "no key 'short_mscale'"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {**LONG, "long_factor": [1.0] * 7}}, "long_factor"),
        ({"rope_parameters": {**LONG, "long_factor": [0.0] * 8}}, "long_factor"),
        ({"rope_parameters": {**YARN, "truncate": 1}}, "truncate"),
        ({"rope_parameters": {**YARN, "factor": 0.5}}, "factor is 0.5"),
        ({"rope_parameters": {**YARN, "factor": float("nan")}}, "factor is nan"),
        ({"rope_parameters": {**YARN, "factor": 10**400}}, "factor is 1000"),
        ({"rope_parameters": {**YARN, "beta_fast": 0.5}}, "beta_fast"),
        ({"rope_parameters": "yarn"}, "not a mapping"),
        ({"rope_parameters": {"mrope_section": [2, 3, 2]}}, r"\[2, 3, 2\] do not fill 8"),
        ({"rope_parameters": {"mrope_section": [2, 3, 3], "mrope_interleaved": True}}, "turns"),
        ({"rope_parameters": {"mrope_section": [8, 0]}}, "a section is 0"),
        ({"rope_parameters": {"mrope_section": 8}}, "mrope_section"),
        ({"rope_parameters": {"mrope_section": [8], "mrope_interleaved": 1}}, "mrope_interleaved"),
        ({"rope_theta": None}, "'rope_theta'"),
        ({"rope_theta": 1.0}, "rope_theta is 1.0"),
        ({"rope_theta": True}, "rope_theta is True"),
        ({"head_dim": 7}, "rotary_dim is 7"),
        ({"head_dim": 10**12}, "rotary_dim is 1000000000000"),
        ({"head_dim": None}, "neither head_dim"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.01}, "rotary_dim is 0"),
        ({"head_dim": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "needs 4"),
    ],
)
def test_what_makes_no_sense_is_named(config, named):
    with pytest.raises(ConfigError, match=named):
        from_config({**SIZES, "rope_theta": 1e4, **config})


def test_embeddings_of_equal_fields_are_equal_and_can_be_keys():
    one, two = read(YARN), read(dict(YARN))
    assert one == two
    assert len({one, two, read(LONG), read(LLAMA3)}) == 3
    assert isinstance(one, Yarn)


def test_only_two_kinds_depend_on_the_length():
    for parameters in (None, YARN, LLAMA3, LONG, {"rope_type": "dynamic", "factor": 2.0}):
        rope = read(parameters)
        same = torch.equal(rope.inverse_frequencies(), rope.inverse_frequencies(10**6))
        assert same == (not isinstance(rope, Dynamic | LongRope))


def test_importing_trivet_does_not_load_it():
    code = "import sys, trivet; sys.exit(any(m.startswith('trivet.rope') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
