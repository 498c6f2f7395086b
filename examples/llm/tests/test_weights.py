from __future__ import annotations

import pytest
import torch

from llm import gguf, weights
from llm.errors import ModelFileError
from llm.parallel.shards import Shard


def load(made, tmp_path):
    file = gguf.read(made.write(tmp_path / "m.gguf"))
    packed = []

    def prepare(site, weight, bias):
        assert bias is None
        packed.append((site, weight))
        return site

    layers = []
    tree = weights.load(file, Shard(file.config), lambda w: w, prepare, lambda: layers.append(1))
    assert len(layers) == 2
    return tree, packed


def original(made, name):
    _, shape, raw = made.tensors[name]
    return torch.frombuffer(bytearray(raw), dtype=torch.float32).view(shape)


def test_rows_of_rotated_pairs_are_split_into_halves():
    rows = torch.arange(12.0).view(12, 1)  # two heads of six: pairs (0, 1), (2, 3), (4, 5)
    got = weights.split_halves(rows, 2).flatten().tolist()
    assert got == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_matrices_that_are_used_together_are_merged(tiny, tmp_path):
    _, packed = load(tiny, tmp_path)
    assert [site for site, _ in packed[:4]] == ["qkv", "out", "gate_up", "down"]
    by_site = dict(reversed(packed))  # the first layer's
    assert by_site["qkv"].shape == (64 + 32 + 32, 64)
    assert torch.equal(by_site["qkv"][96:], original(tiny, "blk.0.attn_v.weight"))
    key = weights.split_halves(original(tiny, "blk.0.attn_k.weight"), 1)
    assert torch.equal(by_site["qkv"][64:96], key)
    gate, up = (original(tiny, f"blk.0.ffn_{n}.weight") for n in ("gate", "up"))
    assert torch.equal(by_site["gate_up"], torch.cat([gate, up]))


def test_the_head_is_the_embedding_when_the_file_has_no_head(tiny, tmp_path):
    tree, packed = load(tiny, tmp_path)
    assert packed[-1][0] == "head"
    assert packed[-1][1] is tree.embedding


def test_a_head_of_its_own_is_used(tiny, tmp_path):
    tiny.put("output.weight", torch.ones(258, 64))
    _, packed = load(tiny, tmp_path)
    assert torch.equal(packed[-1][1], torch.ones(258, 64))


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output_norm.weight"])
def test_a_missing_tensor_is_named(tiny, tmp_path, name):
    del tiny.tensors[name]
    with pytest.raises(ModelFileError, match=f"'{name}' is missing"):
        load(tiny, tmp_path)


def test_tensors_that_are_left_over_are_named(tiny, tmp_path):
    tiny.put("rope_freqs.weight", torch.ones(16))
    with pytest.raises(ModelFileError, match=r"1 tensors are not used: rope_freqs\.weight"):
        load(tiny, tmp_path)


def test_a_tensor_of_another_shape_is_refused(tiny, tmp_path):
    tiny.put("blk.0.attn_v.weight", torch.ones(32, 32))
    with pytest.raises(ModelFileError, match=r"attn_v.*\[32, 32\].*\[32, 64\]"):
        load(tiny, tmp_path)
