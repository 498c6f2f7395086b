from __future__ import annotations

import pytest

from trivet.catalogue import operators
from trivet.cli import ops


def test_the_list_has_every_operator_with_providers_in_order(cli, acme):
    found = cli.json("ops")
    assert list(found) == list(ops.KEYS)
    rows = {row["operator"]: row for row in found["operators"]}
    assert list(rows) == list(operators())
    assert rows["rms_norm"] == {
        "operator": "rms_norm", "version": 1, "forms": ["rms_norm", "rms_norm_", "rms_norm_out"],
        "dims": ["tokens", "hidden"], "providers": ["acme/vec", "reference"],
    }  # fmt: skip
    assert rows["kv_cache_write"]["forms"] == ["kv_cache_write"]
    assert rows["linear"]["forms"] == ["linear", "linear_out"]


def test_the_list_fits_and_names_are_whole(cli, acme):
    text = cli("ops").stdout
    assert max(map(len, text.splitlines())) <= 80
    for name, op in operators().items():
        assert f"{name}@{op.version}" in text
        assert all(dim in text.split() for dim in op.where)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


@pytest.mark.parametrize("name", operators())
def test_one_operator_is_its_whole_declaration(cli, acme, name):
    op = operators()[name]
    (found,) = cli.json("ops", name)["operators"]
    assert [a["name"] for a in found["arguments"]] == list(op.signature.names())
    assert found["source"] == op.source
    assert found["schema"] == op.schema
    text = cli("ops", name).stdout
    assert max(map(len, text.splitlines())) <= 80
    for argument in found["arguments"]:
        assert argument["name"] in text.split()
        assert f"[{argument['shape']}]" in text or not argument["shape"]
    for word in ("Signature", "bytes moved", "budget", "source", "reference"):
        assert word in text


def test_one_operator_shows_choices_effects_and_domains(cli, acme):
    assert "one of neox, interleaved" in " ".join(cli("ops", "rotary_embedding").stdout.split())
    assert "x becomes result 0" in cli("ops", "rms_norm").stdout
    assert "k_cache, v_cache" in cli("ops", "kv_cache_write").stdout
    assert "divisible(hidden, 8)" in cli("ops", "rms_norm").stdout
    assert "not for this device: feature 'tall'" in cli("ops", "silu_and_mul").stdout


def test_a_form_shows_its_operator_and_a_near_miss_is_named(cli, acme):
    assert cli.json("ops", "rms_norm_out")["operators"][0]["operator"] == "rms_norm"
    assert "use one of rms_norm" in cli("ops", "rms_nrm", code=2).stderr


def test_an_unknown_device_is_an_error(cli, acme):
    assert "'acmee'" in cli("ops", "--device", "acmee", code=2).stderr


def test_the_signatures_of_all_forms_are_shown(cli, acme):
    (found,) = cli.json("ops", "rms_norm")["operators"]
    inside = found["signature"].removeprefix("rms_norm(").removesuffix(")")
    assert found["signatures"] == [
        f"rms_norm({inside}) -> Tensor",
        f"rms_norm_({inside}) -> None",
        f"rms_norm_out({inside}, *, out) -> None",
    ]
    text = " ".join(cli("ops", "rms_norm").stdout.split())
    assert all(line in text for line in found["signatures"])
    told = {op: cli.json("ops", op)["operators"][0]["signatures"] for op in
            ("kv_cache_write", "fused_add_rms_norm", "rotary_embedding")}  # fmt: skip
    assert [t.rpartition(" -> ")[2] for t in told["kv_cache_write"]] == ["None"]
    assert told["fused_add_rms_norm"][0].endswith(" -> tuple[Tensor, Tensor]")
    assert told["rotary_embedding"][0].endswith(" -> list[Tensor]")


def test_the_list_has_the_order_that_lists_give(cli, acme, monkeypatch):
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=reference")
    rows = {row["operator"]: row["providers"] for row in cli.json("ops")["operators"]}
    assert rows["rms_norm"] == ["reference", "acme/vec"]
    assert rows["sample_token"] == ["acme/raises", "reference"]
