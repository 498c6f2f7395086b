"""Which part of a model each rank has, and which rank a process is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llm.config import Config
from llm.errors import RequestError
from llm.parallel.place import Place, first_host, launched
from llm.parallel.shards import RULES, Shard
from trivet.rope import Rope

SIZES = [(9, 3), (8, 8), (8, 2), (6, 1), (4, 4), (12, 2)]


def config(heads, kv_heads, inter=96, vocab=50):
    return Config(
        layers=1, hidden=64, inter=inter, heads=heads, kv_heads=kv_heads, head_dim=8, vocab=vocab,
        context=64, eps=1e-5, rope=Rope(rotary_dim=8),
    )  # fmt: skip


@pytest.mark.parametrize(("heads", "kv_heads"), SIZES)
def test_every_number_of_ranks_has_every_head_once(heads, kv_heads):
    c = config(heads, kv_heads)
    for size in range(1, heads + 1):
        shards = [Shard(c, rank, size) for rank in range(size)]
        for of in ("heads", "inter"):
            parts = [i for shard in shards for i in shard.part(of)]
            assert parts == list(range(getattr(c, of))), (of, size)
        for shard in shards:
            keys, queries = shard.part("kv_heads"), shard.part("heads")
            assert len(queries) % len(keys) == 0
            each = len(queries) // len(keys)
            group = heads // kv_heads
            served = [keys[i // each] for i in range(len(queries))]
            assert served == [q // group for q in queries]  # each query has its own keys
            assert shard.config.hidden == c.hidden
            assert len(keys) <= shard.largest.kv_heads
        rows = [i for shard in shards for i in shard.part("vocab")]
        assert rows[: c.vocab] == list(range(c.vocab))
        assert len({len(shard.part("vocab")) for shard in shards}) == 1
    with pytest.raises(RequestError, match=f"{heads + 1} ranks cannot share"):
        Shard(c, 0, heads + 1)


def test_elements_stay_together_where_there_are_enough():
    c = config(4, 4, inter=64 * 5)
    assert [len(Shard(c, rank, 2).part("inter")) for rank in range(2)] == [128, 192]
    assert [len(Shard(c, rank, 2).part("inter")) for rank in range(2)] != [160, 160]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_parts_of_a_product_are_the_whole(name, size):
    """Outputs side by side are the outputs, partial sums add up to them, each bias counts once."""
    c, rng = config(9, 3), torch.Generator().manual_seed(1)
    rule = RULES[name]
    many = {"vocab": c.vocab, "heads": 72, "kv_heads": 24, "inter": c.inter}[rule.of]
    shape = (many, 10) if rule.dim == 0 else (10, many)
    weight = torch.randint(-4, 5, shape, generator=rng).double()
    bias = torch.randint(-4, 5, (shape[0],), generator=rng).double()
    x = torch.randint(-4, 5, (5, shape[1]), generator=rng).double()
    pieces, owners = [], []
    for rank in range(size):
        shard = Shard(c, rank, size)
        mine, own = shard.cut(name, weight), shard.cut(name, bias, kind="bias")
        given = x
        if rule.dim == 1:
            part, each = shard.part(rule.of), c.head_dim if "heads" in rule.of else 1
            given = x[:, part.start * each : part.stop * each]
        assert mine.is_contiguous()
        assert size == 1 or mine.untyped_storage().nbytes() == mine.nbytes
        pieces.append(given @ mine.T + own)
        owners.append(tuple(shard.part(rule.of)))
    whole = x @ weight.T + bias
    if rule.dim == 1:
        assert torch.equal(sum(pieces), whole)
    else:  # heads of keys that several ranks have are there several times
        once = [p for i, p in enumerate(pieces) if owners[i] not in owners[:i]]
        joined = torch.cat(once, dim=1)
        assert torch.equal(joined[:, : whole.shape[1]], whole)
        assert not joined[:, whole.shape[1] :].any()


def test_a_parameter_without_a_rule_is_whole_everywhere():
    weight = torch.ones(64)
    assert Shard(config(9, 3), 1, 2).cut("mlp_norm", weight) is weight


def test_the_place_that_a_launcher_gives():
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # a batch script, no step
    torch_run = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
                 "MASTER_ADDR": "a", "MASTER_PORT": "7"}  # fmt: skip
    assert launched(torch_run) == Place(5, 8, 1, 4, "torchrun", ("a", 7))
    slurm = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "4", "SLURM_LOCALID": "0",
             "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_JOB_ID": "3",
             "SLURM_STEP_NODELIST": "n[07-09],x"}  # fmt: skip
    found = launched(slurm)
    assert found == Place(4, 5, 0, 1, "srun", ("n07", 15093))
    assert launched(slurm | {"MASTER_ADDR": "b", "MASTER_PORT": "9"}).address == ("b", 9)
    assert replace(found, rank=0) == launched(slurm | {"SLURM_PROCID": "0"})
    with pytest.raises(RequestError, match="MASTER_ADDR"):
        launched({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(RequestError, match="SLURM_STEP_TASKS_PER_NODE"):
        launched({"SLURM_STEP_NUM_TASKS": "2"})


@pytest.mark.parametrize(
    ("text", "host"),
    [("a", "a"), ("a,b", "a"), ("n[1-4]", "n1"), ("n[07,09]-x,m", "n07-x"), ("n[3],m", "n3")],
)
def test_the_first_host_of_a_list(text, host):
    assert first_host(text) == host
