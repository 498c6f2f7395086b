from __future__ import annotations

import json

import pytest
import torch

from stand_ins import OPS
from trivet.contracts import between, divisible, dtype, equal, one_of, rank, rows
from trivet.contracts.terms import UNKNOWN, Interval
from trivet.errors import UnknownName
from trivet.selection.facts import decide, normalise

NORM = OPS["rms_norm"]


def test_short_forms_are_written_out():
    facts = normalise(NORM, {"dtype": "bfloat16", "contiguous": True, "rank": 2, "hidden": 64})
    assert dict(facts.values) == {
        "weight.rank": 1,
        "x.dtype": torch.bfloat16,
        "x.contiguous": True,
        "x.rank": 2,
        "hidden": 64,
    }
    both = normalise(NORM, {"contiguous": ["x", "weight"]}).values
    assert {"x.contiguous", "weight.contiguous"} <= set(both)
    fused = normalise(OPS["fused_add_rms_norm"], {"dtype": torch.float32}).values
    assert {p for p in fused if p.endswith("dtype")} == {"x.dtype", "residual.dtype"}


def test_declared_dtypes_and_ranks_are_facts():
    values = normalise(OPS["kv_cache_write"], {}).values
    assert values["slots.dtype"] is torch.int64
    assert values["k_cache.rank"] == 4
    assert "k.rank" not in values


def test_a_site_promises_defaults_and_leaves_open_what_varies():
    op = OPS["paged_attention"]
    site = normalise(op, {"scale": 0.125}, site=True, varying=["window"]).values
    assert (site["soft_cap"], site["layout"], site["scale"]) == (0.0, "NHD", 0.125)
    assert "window" not in site
    assert "max_query_len" not in site
    assert "layout" not in normalise(op, {}).values


def test_the_key_does_not_depend_on_the_order_but_on_types():
    one = normalise(NORM, {"hidden": 64, "eps": 1e-6, "dtype": torch.float32})
    two = normalise(NORM, {"dtype": "float32", "eps": 1e-6, "hidden": 64})
    assert one.key == two.key
    assert hash(one.key) == hash(two.key)
    assert normalise(NORM, {"hidden": range(64, 65)}).key != normalise(NORM, {"hidden": 64}).key
    assert json.loads(json.dumps(one.to_json())) == {
        "eps": 1e-06,
        "hidden": 64,
        "weight.rank": 1,
        "x.dtype": "float32",
    }


@pytest.mark.parametrize(
    ("facts", "problem", "fix"),
    [
        ({"hiden": 64}, "fact 'hiden' is no dim", "hidden"),
        ({"y.dtype": "float32"}, "fact 'y.dtype' is no dim", "x.dtype"),
        ({"x.width": 3}, "fact 'x.width' is no dim", ""),
        ({"dtype": "bf16"}, "'dtype' of rms_norm cannot be 'bf16'", "torch.dtype or its name"),
        ({"dtype": None}, "'dtype' of rms_norm cannot be None", "torch.dtype or its name"),
        ({"hidden": "64"}, "'hidden' of rms_norm cannot be '64'", "an integer or a range"),
        ({"hidden": 64.0}, "'hidden' of rms_norm cannot be 64.0", "an integer or a range"),
        ({"hidden": True}, "'hidden' of rms_norm cannot be True", "an integer or a range"),
        ({"hidden": -1}, "'hidden' of rms_norm cannot be -1", "a size is not negative"),
        ({"hidden": range(0, 9, 2)}, "range(0, 9, 2)", "a range has step 1"),
        ({"hidden": range(5, 5)}, "range(5, 5)", "and is not empty"),
        ({"x.contiguous": False}, "cannot be False", "facts are positive"),
        ({"contiguous": False}, "cannot be False", "facts are positive"),
        ({"contiguous": "x"}, "cannot be 'x'", "a list of arguments"),
        ({"contiguous": 5}, "cannot be 5", "a list of arguments"),
        ({"contiguous": ["z"]}, "fact 'z.contiguous' is no dim", ""),
        ({"x.rows": 0}, "cannot be 0", "a positive integer"),
        ({"x.rows": range(1, 9)}, "cannot be range(1, 9)", "a positive integer"),
        ({"rank": "two"}, "'x.rank' of rms_norm cannot be 'two'", "an integer or a range"),
        ({"weight.rank": 2}, "'weight.rank' of rms_norm cannot be 2", "it is declared 1"),
        ({"eps": "small"}, "'eps' of rms_norm cannot be 'small'", "it is a float"),
        ({"eps": range(3)}, "'eps' of rms_norm cannot be range(0, 3)", "it is a float"),
        ({"weight_in_float32": 1}, "cannot be 1", "it is a bool"),
        ({"x": None}, "'x' of rms_norm cannot be None", "not optional"),
        ({3: 4}, "a mapping from paths", ""),
        ("hidden", "a mapping from paths", ""),
        (None, "a mapping from paths", ""),
    ],
)
def test_a_fact_that_cannot_be_is_refused_with_what_can(facts, problem, fix):
    with pytest.raises(UnknownName) as caught:
        normalise(NORM, facts)
    assert problem in caught.value.what
    assert fix in caught.value.fix


def test_choices_and_declared_dtypes_cannot_be_contradicted():
    with pytest.raises(UnknownName, match="allowed: 'neox', 'interleaved'"):
        normalise(OPS["rotary_embedding"], {"pairing": "gptj"})
    with pytest.raises(UnknownName, match="it is declared int64"):
        normalise(OPS["kv_cache_write"], {"slots.dtype": "int32"})


@pytest.mark.parametrize("path", ["dtype", "x.dtype"])
@pytest.mark.parametrize("wrong", ["int32", torch.bool, "complex64"])
def test_activations_are_floating(path, wrong):
    with pytest.raises(UnknownName, match="activations have a floating dtype"):
        normalise(NORM, {path: wrong})
    assert normalise(NORM, {path: "float8_e4m3fn"}).values["x.dtype"] is torch.float8_e4m3fn


def test_what_copies_takes_any_dtype_and_other_variables_are_free():
    assert normalise(OPS["embedding"], {"dtype": "int8"}).values["weight.dtype"] is torch.int8
    assert normalise(OPS["kv_cache_write"], {"dtype": "uint8"}).values["k.dtype"] is torch.uint8
    paged = normalise(OPS["paged_attention"], {"k_cache.dtype": "int8"}).values
    assert paged["k_cache.dtype"] is torch.int8


@pytest.mark.parametrize(
    ("term", "value", "decision"),
    [
        (between("tokens", 1, 16), range(1, 17), True),
        (between("tokens", 1, 16), range(2, 5), True),
        (between("tokens", 1, 16), range(18), None),
        (between("tokens", 1, 16), range(17, 20), "tokens is 17..19, outside 1..16"),
        (between("tokens", None, 16), range(17, 20), "tokens is 17..19, outside ..16"),
        (between("tokens", 5, None), Interval(5, None), True),
        (between("tokens", 5, None), Interval(None, 9), None),
        (between("tokens", 5, None), Interval(None, 4), "tokens is ..4, outside 5.."),
        (one_of("tokens", 1, 2), range(3), None),
        (one_of("tokens", 1, 2), range(3, 9), "tokens in 3..8 is never 1 or 2"),
        (divisible("tokens", 8), range(8, 17), None),
        (equal("tokens", 8), range(8, 17), None),
        (equal("tokens", 8), 9, "tokens is 9, 8 is 8"),
        (divisible("tokens", 8), 12, "tokens = 12 is not a multiple of 8"),
    ],
)
def test_ranges_decide_what_they_can(term, value, decision):
    assert decide(NORM, term, normalise(NORM, {"tokens": value})) == decision


def test_a_range_of_ranks_decides_what_it_can():
    facts = normalise(NORM, {"rank": range(2, 4)})
    assert decide(NORM, rank("x", 2), facts) is None
    assert decide(NORM, rank("x", 4), facts) == "x has rank 2..3, not 4"


def test_rows_follow_from_contiguity_and_widths():
    op = OPS["rotary_embedding"]
    known = {"contiguous": ["q"], "heads": 9, "head_dim": 64}
    assert decide(op, rows("q", 8), normalise(op, known)) is True
    assert "width 576" in decide(op, rows("q", 7), normalise(op, known))
    assert decide(op, rows("q", 8), normalise(op, {"contiguous": ["q"], "heads": 9})) is None
    assert decide(op, rows("q", 8), normalise(op, {"q.rows": 16})) is True
    assert decide(op, rows("q", 8), normalise(op, {"q.rows": 4})) is None
    assert normalise(op, {"heads": range(1, 9), "head_dim": 8}).value("q.row_width") is UNKNOWN


def test_what_speaks_of_an_optional_tensor_is_open_until_it_is_known_to_be_there():
    op = OPS["linear"]
    term = dtype("bias", "bfloat16")
    assert decide(op, term, normalise(op, {"dtype": "float32"})) is None
    assert decide(op, term, normalise(op, {"dtype": "float32", "bias": None})) is True
    assert "bias is float32" in decide(op, term, normalise(op, {"dtype": "float32", "bias": 1}))


def test_a_shape_without_leading_dims_is_one_row_of_any_width():
    facts = normalise(OPS["linear"], {"out_features": 3, "bias.contiguous": True})
    assert decide(OPS["linear"], rows("bias", 4), facts) is True
