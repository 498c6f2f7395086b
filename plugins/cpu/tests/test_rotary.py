from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.compiled import rotary

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES = [(64, 32), (128, 64), (80, 20), (128, 16), (48, 24), (6, 3), (576, 280), (8, 0)]


def as_complex(t, cos, sin, pairing):
    """The rotation as a product of complex numbers, in float64."""
    n, result = cos.shape[-1], t.double().clone()
    turn = torch.complex(cos.double(), sin.double()).unsqueeze(-2)
    first = slice(0, n) if pairing == "neox" else slice(0, 2 * n, 2)
    second = slice(n, 2 * n) if pairing == "neox" else slice(1, 2 * n, 2)
    turned = torch.complex(result[..., first], result[..., second]) * turn
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def angles(randn, tokens, half):
    angle = 3 * randn(tokens, half)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize(("head_dim", "half"), CASES)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_split_views_of_a_packed_projection(level, randn, head_dim, half, pairing, dtype):
    tokens, heads, kv = 5, 6, 2
    packed = randn(tokens, (heads + 2 * kv) * head_dim, dtype=dtype)
    q, k, v = packed.split([heads * head_dim, kv * head_dim, kv * head_dim], -1)
    q, k = q.view(tokens, heads, head_dim), k.view(tokens, kv, head_dim)
    cos, sin = angles(randn, tokens, half)
    tolerance = {"rtol": {F32: 1e-6, BF16: 2**-8, F16: 2**-11}[dtype], "atol": 1e-6}

    turned = rotary.rotary_embedding(q, k, cos, sin, pairing)
    for mine, t in zip(turned, (q, k), strict=True):
        assert mine.is_contiguous()
        torch.testing.assert_close(mine.double(), as_complex(t, cos, sin, pairing), **tolerance)
        assert torch.equal(mine[..., 2 * half :], t[..., 2 * half :])
    alone = rotary.rotary_embedding(q, None, cos, sin, pairing)
    assert len(alone) == 1
    assert torch.equal(alone[0], turned[0])

    values = v.clone()
    rotary.rotary_embedding_(q, k, cos, sin, pairing)
    assert torch.equal(q, turned[0])
    assert torch.equal(k, turned[1])
    assert torch.equal(v, values)


def test_in_place_without_k(level, randn):
    q = randn(3, 2, 64)
    cos, sin = angles(randn, 3, 32)
    expected = rotary.rotary_embedding(q, None, cos, sin)[0]
    rotary.rotary_embedding_(q, None, cos, sin)
    assert torch.equal(q, expected)


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_token_depends_on_no_other_and_on_no_thread(level, randn, threads, pairing, dtype):
    q, k = randn(200, 9, 64, dtype=dtype), randn(200, 3, 64, dtype=dtype)
    cos, sin = angles(randn, 200, 32)
    with threads(1):
        whole = rotary.rotary_embedding(q, k, cos, sin, pairing)
        for i in (0, 99, 199):
            one = slice(i, i + 1)
            alone = rotary.rotary_embedding(q[one], k[one], cos[one], sin[one], pairing)
            assert torch.equal(alone[0], whole[0][one])
            assert torch.equal(alone[1], whole[1][one])
    with threads(3):
        again = rotary.rotary_embedding(q, k, cos, sin, pairing)
        assert all(map(torch.equal, again, whole))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_values_touch_their_pair_only(level, randn, dtype):
    q = randn(1, 2, 64, dtype=dtype)
    cos, sin = angles(randn, 1, 32)
    q[0, 0, 5] = torch.nan
    q[0, 1, 40] = torch.inf
    y = rotary.rotary_embedding(q, None, cos, sin)[0]
    assert y[0, 0].isnan().nonzero().flatten().tolist() == [5, 37]
    assert y[0, 1].isinf().nonzero().flatten().tolist() == [8, 40]


def test_layouts_of_the_angles_do_not_matter(level, randn):
    q = randn(2, 3, 4, 32)
    cos, sin = angles(randn, 6, 16)
    cos, sin = cos.view(2, 3, 16), sin.view(2, 3, 16)
    expected = rotary.rotary_embedding(q, None, cos, sin)[0]
    strange = cos.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    shared = rotary.rotary_embedding(q, None, strange, sin)[0]
    assert torch.equal(shared, expected)
    row = cos[:1, :1].expand(2, 3, 16)
    mine = rotary.rotary_embedding(q, None, row, row)[0]
    assert torch.equal(mine, rotary.rotary_embedding(q, None, row.clone(), row.clone())[0])


def test_no_tokens():
    y = rotary.rotary_embedding(
        torch.ones(0, 2, 8), torch.ones(0, 1, 8), torch.ones(0, 4), torch.ones(0, 4)
    )
    assert [t.shape for t in y] == [(0, 2, 8), (0, 1, 8)]


def test_refusals(randn):
    q, k = randn(3, 2, 8), randn(3, 1, 8)
    cos, sin = angles(randn, 3, 4)
    refused = [
        ((q.double(), k.double(), cos, sin), "dtype"),
        ((q, k.bfloat16(), cos, sin), "one dtype"),
        ((q, k, cos.double(), sin), "float32"),
        ((q, k, cos[:2], sin[:2]), "tokens of q"),
        ((q, k[:2], cos, sin), "tokens"),
        ((q, k, *angles(randn, 3, 5)), "exceed"),
        ((q.transpose(1, 2), None, *angles(randn, 3, 1)), "dense"),
        ((randn(8), None, cos, sin), "at least"),
    ]
    for arguments, words in refused:
        with pytest.raises(DomainError, match=words):
            rotary.rotary_embedding(*arguments)
        with pytest.raises(DomainError, match=words):
            rotary.rotary_embedding_(*arguments)


def test_an_unknown_pairing_is_refused(randn):
    q, (cos, sin) = randn(3, 2, 8), angles(randn, 3, 4)
    for call in (rotary.rotary_embedding, rotary.rotary_embedding_):
        for k in (None, randn(3, 1, 8)):
            with pytest.raises(DomainError, match="pairing is 'gptj'") as raised:
                call(q, k, cos, sin, "gptj")
            assert "'neox' or 'interleaved'" in raised.value.fix
