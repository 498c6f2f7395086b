"""What is wrong, for a person: value first, other families in a line, a command for each form."""

from __future__ import annotations

from trivet_conformance.report.problems import told


def row(family, case, *, provider="acme/vec", status="fail", reason="off by 1.5", op="rms_norm"):
    name = f"{family}/{op}/{provider}/{case}"
    return {"id": name, "family": family, "operator": op, "provider": provider, "status": status,
            "reason": reason, "repro": f"run --case {name}"}  # fmt: skip


def text(bad):
    return [line for line, _ in told(bad)]


def test_value_comes_first_and_the_others_are_one_line():
    found = text([
        row("alias", "functional:a", reason="changed"), row("alias", "functional:b"),
        row("value", "functional:a"), row("value", "functional:b", reason="off by 2.5"),
        row("stream", "functional:a", status="crash"),
    ])  # fmt: skip
    assert found == [
        "fail: value of rms_norm, acme/vec: 2 cases",
        "  off by 1.5",
        "  run --case value/rms_norm/acme/vec/functional:a",
        "  the same provider also fails in: alias 2, stream 1 (1 crash)",
    ]


def test_each_form_has_a_command():
    found = text([row("errors", f"{form}:a") for form in ("functional", "out", "out")])
    assert [line.rpartition("/")[2] for line in found[2:]] == ["functional:a", "out:a"]


def test_places_do_not_make_kinds():
    where = ["maximum is 3 times; worst at [3, 17]: got 2, wanted -1; 1 of 7 rows outside",
             "maximum is 4 times; worst at [1]: got nan, wanted 1; 1 of 1 row outside"]  # fmt: skip
    found = text([row("value", "functional:a", reason=r) for r in where])
    assert found[0].endswith("2 cases")


def test_what_does_not_load_is_told_beside_the_rest():
    found = text([row("value", "out:a"), row("load", "x", op="plugin", provider="acme")])
    assert [line for line in found if line.startswith("fail")] == [
        "fail: value of rms_norm, acme/vec: 1 case",
        "fail: load of plugin, acme: 1 case",
    ]


def test_a_reference_without_a_slash_is_one_provider():
    found = text([row("value", f"functional:{i}", provider="reference") for i in "ab"])
    assert found[0] == "fail: value of rms_norm, reference: 2 cases"
