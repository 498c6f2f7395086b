from __future__ import annotations

import json

import pytest

import required
from trivet.errors import PluginNotFound
from trivet.kernels.triton import kernel_set

ACME = """
    from pathlib import Path
    import tuned_kernels
    from trivet.contracts import DeviceInfo

    def trivet_devices():
        return [DeviceInfo("acme", name="Acme One")]

    def trivet_kernels():
        return tuned_kernels.kernel_set(Path("gates.toml"))
"""
"""A device whose kernels are the stand-ins of ``tuned_kernels``."""


@pytest.fixture(autouse=True)
def here(dists, monkeypatch):
    import tuned_kernels

    dists.add("acme-dist", "acme", ACME)
    monkeypatch.setattr(kernel_set, "version", lambda name: "3.9.1")
    monkeypatch.setattr("trivet.kernels.triton.ahead.Children", tuned_kernels.Here)
    monkeypatch.setattr("trivet.kernels.triton.tuning.session.Children", tuned_kernels.Here)
    monkeypatch.setenv("TRIVET_CACHE_DIR", "cache")


def test_kernels_are_compiled_only_and_a_breach_is_a_problem(cli):
    found = cli.json("kernels", "--arch", "one", "--kernel", "small", code=1)
    assert (found["execution"], found["triton"], found["breaches"]) == ("compile_only", "3.9", 2)
    first = found["kernels"][0]
    assert (first["module"], first["variant"], first["arch"]) == ("tuned_kernels", "small", "one")
    assert first["facts"]["loads"] == {"4": 1, "16": 2}
    assert first["facts"]["occupancy"] is None
    text = cli("kernels", "--plugin", "acme", "--kernel", "small", code=1).stdout
    assert "Kernels by Triton 3.9: compile_only" in text
    assert "stack 8 bytes, at most 0" in text
    assert max(map(len, text.splitlines())) <= 80


def test_kernels_without_gates_are_no_problem(cli):
    assert "unmeasured" in cli("kernels", "--kernel", "other").stdout
    assert "no variant has such a name" in cli("kernels", "--kernel", "nothing").stdout


def test_what_has_no_kernels_is_named(cli, dists):
    assert "none of one, two" in cli("kernels", "--arch", "three", code=2).stderr
    dists.add("bare-dist", "bare", "def trivet_probe():\n    return True\n")
    assert "no hook trivet_kernels" in cli("kernels", "--plugin", "bare", code=2).stderr
    dists.add("odd-dist", "odd", "def trivet_kernels():\n    return 3\n")
    assert "gives a int, no KernelSet" in cli("kernels", "--plugin", "odd", code=2).stderr
    assert "acme, odd have Triton kernels" in cli("kernels", code=2).stderr
    assert "no installed distribution" in cli("kernels", "--plugin", "none", code=2).stderr


def test_triton_that_is_missing_is_named(monkeypatch):
    def version(name):
        raise kernel_set.PackageNotFoundError(name)

    monkeypatch.setattr(kernel_set, "version", version)
    with pytest.raises(PluginNotFound, match="triton is not installed"):
        kernel_set.triton_version()


def test_tuning_writes_a_table_and_draws_it(cli, tmp_path):
    required.module("matplotlib")
    given = ("tune", "--device", "acme", "--rows", "1,4")
    found = cli.json(*given, "--out", "mine", "--picture", "drawn/one.png")
    assert (found["table"], found["arch"], found["complete"]) == ("mine/one.json", "one", True)
    assert [(r["rows"], r["us"]) for r in found["rows"]] == [(1, 10), (4, 10)]
    assert found["rows"][1]["gb_s"] == pytest.approx(8 * 4 * 8 / 10 / 1e3)
    assert found["refused"] == []
    assert len(json.loads((tmp_path / "mine/one.json").read_text())["rows"]) == 2
    assert (tmp_path / "drawn/one.png").read_bytes().startswith(b"\x89PNG")
    text = cli(*given).stdout
    assert "wrote cache/tuned/one.json; used where TRIVET_TUNED=cache/tuned" in " ".join(
        text.split()
    )
    assert (tmp_path / "cache/tuned/one.json").exists()


def test_wrong_results_are_a_problem_and_stand_in_the_report(cli):
    given = ("tune", "--device", "acme", "--kernel", "double", "--rows", "1")
    given = (*given, "--keys", "width=8,kinds=wrong")
    found = cli.json(*given, code=1)
    (refused,) = found["refused"]
    assert (refused["word"], refused["config"]) == ("wrong", {"BLOCK": 2, "kind": "wrong"})
    text = cli(*given, code=1).stdout
    assert "Refused" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_list_says_what_would_be_measured_and_starts_nothing(cli, tmp_path):
    found = cli.json("tune", "--plugin", "acme", "--list", "--rows", "1,4")
    (row,) = found["wanted"]
    assert row == {"kernel": "double", "key": {"width": 8}, "rows": [1, 4], "configs": 10}
    assert "width=8" in cli("tune", "--device", "acme", "--list").stdout
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_tuned_is_refused(cli, dists):
    def refusal(*given, device="acme"):
        return " ".join(cli("tune", "--device", device, *given, code=2).stderr.split())

    assert "no kernel triple can be tuned" in refusal("--kernel", "triple")
    assert "name it by --kernel" in refusal("--keys", "width=8")
    assert "is not of the form 1,16,256" in refusal("--rows", "0")
    assert "NAME=VALUE" in refusal("--kernel", "double", "--keys", "width")
    slow = ACME.replace('"acme", name="Acme One"', '"slow", execution="interpreted"')
    dists.add("slow-dist", "slow", slow)
    assert "device slow is interpreted: its times mean nothing" in refusal(device="slow")
