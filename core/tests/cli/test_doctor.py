from __future__ import annotations

import pytest

from trivet.cli import findings
from trivet.settings import VARIABLES

BROKEN = "raise OSError('libx.so.3: cannot open shared object file')"
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
REFUSED = """
from trivet.contracts import implements
def trivet_implementations(device): return [old]
@implements("silu_and_mul@9", name="old")
def old(x): return x
"""
MEMORY = """
from trivet.contracts import DeviceInfo
def trivet_devices(): return [DeviceInfo("acme")]
class Source:
    def info(self): raise OSError("no driver")
def trivet_memory(device): return Source()
"""


def whats(found) -> str:
    return "\n".join(p["what"] for p in found["problems"])


def test_every_documented_key_and_no_other(cli, acme):
    assert list(cli.json("doctor")) == list(findings.KEYS)


def test_with_no_plugin_all_is_well_and_references_run(cli):
    found = cli.json("doctor")
    assert found["ok"]
    assert found["auto"]["plugin"] == "reference"
    assert "core runs its references" in cli("doctor").stdout


def test_a_good_machine(cli, acme):
    found = cli.json("doctor")
    assert found["ok"]
    assert found["auto"] == {
        "device": "acme:0", "plugin": "acme", "error": "",
        "reason": "the only other device than the embedded one whose probe says yes",
    }  # fmt: skip
    assert found["device"]["notes"] == ["kernels built without vectors"]
    assert {"name": "dtype", "value": "float32", "reason": "x", "plugin": "acme"} in found[
        "defaults"
    ]
    providers = {row["operator"]: row["providers"] for row in found["operators"]}
    assert providers["silu_and_mul"] == ["acme/small", "acme/never"]
    assert providers["linear"] == []
    assert [u["provider"] for u in found["unmet"]] == ["acme/never"]
    assert [s["name"] for s in found["settings"]] == [v.name for v in VARIABLES]
    assert found["memory"]["source"]
    made = {o: row["provider"] for row in found["collectives"] for o in row["operations"]}
    assert made["all_reduce"].startswith("torch/")
    assert made["all_reduce_add_rms_norm"] == "composed/unfused"


def test_the_text_says_the_same_within_80_columns(cli, acme):
    text = cli("doctor").stdout
    parts = ("kernels built without vectors", "block_size", "l2 1 MiB", "acme/small, acme/never",
             "composed/unfused")  # fmt: skip
    for part in (
        *parts,
        "'tall' is not here",
        "Problems: none",
        "composed/unfused",
        "defaults: TRIVET_DEVICE",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_broken_plugin_is_a_problem_and_hides_nothing(cli, acme):
    acme.add("bad-dist", "bad", BROKEN)
    found = cli.json("doctor", code=1)
    lines = {line["plugin"]: line for line in found["plugins"]}
    assert lines["bad"]["status"] == "import_failed"
    assert lines["acme"]["status"] == "found"
    assert found["auto"]["device"] == "acme:0"
    assert "plugin bad (bad-dist 1.0): raises while it is imported: OSError" in whats(found)
    assert not found["ok"]
    result = cli("doctor", code=1)
    assert "Problems: 1" in result.stdout
    assert result.stderr == ""


def test_a_plugin_for_another_contract_is_a_problem(cli, dists):
    dists.add("old-dist", "old", "", contract="v7:v9")
    assert "built for contract 7 to 9" in whats(cli.json("doctor", code=1))


def test_missing_hardware_is_no_problem(cli, dists):
    dists.add("far-dist", "far", "def trivet_probe(): return 'no such card'")
    found = cli.json("doctor")
    assert found["plugins"][0]["status"] == "no_hardware"
    assert "no such card" in found["auto"]["reason"]


def test_two_equal_devices_are_a_problem_of_auto(cli, dists):
    dists.add_good("one")
    dists.add_good("two")
    found = cli.json("doctor", code=1)
    assert "one (one-dist) and two (two-dist)" in found["auto"]["error"]
    assert whats(found).startswith("auto: ")
    assert found["device"] is None
    assert {line["reason"] for line in found["plugins"]} == {"1 implementation"}
    assert "none: auto finds the hardware of" in cli("doctor", code=1).stdout


def test_a_refused_implementation_is_a_problem_with_its_fix(cli, acme):
    acme.add("extra-dist", "extra", REFUSED, extends="acme")
    found = cli.json("doctor", code=1)
    (refused,) = found["refused"]
    assert (refused["plugin"], refused["target"]) == ("extra", "silu_and_mul@9")
    assert refused["fix"] == "port it to silu_and_mul@1"
    assert "Refused implementations" in cli("doctor", code=1).stdout


def test_variables_of_an_installed_plugin_are_its_own(cli, acme, monkeypatch):
    for name in ("TRIVET_ACME_FAST", "TRIVET_ACMEFAST"):
        monkeypatch.setenv(name, "1")
    found = cli.json("doctor", code=1)
    assert [row["name"] for row in found["unknown_variables"]] == ["TRIVET_ACMEFAST"]


def test_unknown_variables_are_problems_with_near_misses(cli, monkeypatch):
    monkeypatch.setenv("TRIVET_DEVCE", "x")
    found = cli.json("doctor", code=1)
    assert found["unknown_variables"] == [{"name": "TRIVET_DEVCE", "near": ["TRIVET_DEVICE"]}]
    assert "did you mean TRIVET_DEVICE?" in cli("doctor", code=1).stdout


def test_settings_that_cannot_be_read_stop_only_what_needs_them(cli, acme, monkeypatch):
    monkeypatch.setenv("TRIVET_STRICT", "maybe")
    found = cli.json("doctor", code=1)
    assert "TRIVET_STRICT='maybe' is not understood" in whats(found)
    assert found["plugins"] == []
    assert found["versions"]["trivet"]
    assert "no plugin was asked" in cli("doctor", code=1).stdout


def test_settings_show_where_they_come_from(cli, acme, monkeypatch):
    (acme.folder / "trivet.toml").write_text('[providers]\nrms_norm = ["acme/vec"]\n')
    monkeypatch.setenv("TRIVET_TRACE", "1")
    found = {s["name"]: s for s in cli.json("doctor")["settings"]}
    assert found["TRIVET_TRACE"]["source"] == "TRIVET_TRACE"
    assert found["TRIVET_TRACE"]["value"] is True
    assert found["TRIVET_LOG"]["source"] == "default"
    assert found["providers.rms_norm"]["value"] == ["acme/vec"]
    assert found["providers.rms_norm"]["source"].endswith("trivet.toml")
    assert "providers.rms_norm" in cli("doctor").stdout


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TRIVET_PROVIDERS", "rms_norm=acme/vek", "'acme/vek'"),
        ("TRIVET_LOCK", "absent.json", "lock file absent.json cannot be read"),
        ("TRIVET_DEVICE", "acmee", "device or plugin 'acmee'"),
    ],
)
def test_a_setting_that_names_nothing_is_a_problem(cli, acme, monkeypatch, name, value, text):
    monkeypatch.setenv(name, value)
    assert text in whats(cli.json("doctor", code=1))


def test_memory_that_raises_is_reported_by_name(cli, dists):
    dists.add("acme-dist", "acme", MEMORY)
    found = cli.json("doctor", code=1)
    assert "plugin acme: memory info raises OSError: no driver" in whats(found)
    assert found["memory"] is None


def test_a_broken_command_of_a_package_is_a_problem(cli, dists):
    dists.write("extra-dist", "[trivet.commands]\ngrow = no_such_module_:command\n")
    assert "the command 'grow' of extra-dist 1.0 cannot be imported" in whats(
        cli.json("doctor", code=1)
    )


def test_isolate_survives_a_crash_and_says_so(cli, acme, monkeypatch):
    acme.add("dead-dist", "dead", CRASHES)
    monkeypatch.setenv("TRIVET_ALLOW", "acme,dead")
    found = cli.json("doctor", "--isolate", code=1)
    lines = {line["plugin"]: line for line in found["plugins"]}
    assert lines["dead"]["status"] == "import_failed"
    assert "by SIGSEGV" in lines["dead"]["reason"]
    assert lines["acme"]["status"] == "found"
    assert found["auto"]["device"] == "acme:0"
    assert "plugin dead (dead-dist 1.0): ended its process by SIGSEGV" in whats(found)


def test_the_order_of_use_and_references_by_order_are_shown(cli, acme, monkeypatch, tmp_path):
    lists = '[providers]\nrms_norm = ["reference"]\nsample_token = ["reference"]\n'
    (tmp_path / "trivet.toml").write_text(lists)
    found = cli.json("doctor")
    providers = {row["operator"]: row["providers"] for row in found["operators"]}
    assert providers["rms_norm"] == ["reference", "acme/vec"]
    assert providers["silu_and_mul"] == ["acme/small", "acme/never"]
    forced = f"2 operators are made to run on the reference by {tmp_path}/trivet.toml [providers]"
    assert found["notes"] == [forced]
    text = cli("doctor").stdout
    assert "reference, acme/vec" in text
    assert "2 operators are made to run on the reference by" in " ".join(text.split())
    (tmp_path / "trivet.toml").unlink()
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=reference")
    assert cli.json("doctor")["notes"] == [
        "1 operator is made to run on the reference by TRIVET_PROVIDERS"
    ]


def test_a_preferred_provider_that_cannot_run_is_a_remark(cli, acme, monkeypatch):
    monkeypatch.setenv("TRIVET_PROVIDERS", "silu_and_mul=acme/never")
    (note,) = cli.json("doctor")["notes"]
    assert note.startswith("silu_and_mul: acme/never is preferred by TRIVET_PROVIDERS")
    assert "but not for this device: feature 'tall' is not here" in note


@pytest.mark.parametrize("name", ["TRIVET_ALLOW", "TRIVET_DENY"])
def test_a_name_of_the_filters_that_is_not_installed_has_near_misses(cli, acme, monkeypatch, name):
    monkeypatch.setenv(name, "acme,acne" if name == "TRIVET_ALLOW" else "acne")
    text = " ".join(cli("doctor").stdout.split())
    assert f"note: {name} names 'acne', which is not installed, did you mean acme" in text


def test_a_path_goes_on_behind_a_separator(cli, acme, monkeypatch, tmp_path):
    folder = tmp_path / "a-long-folder" / "another-long-one" / "and-one-more-of-it"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text("[run]\ntrace = true\n")
    monkeypatch.setenv("TRIVET_CONFIG", str(folder / "settings.toml"))
    text = cli("doctor").stdout
    assert max(map(len, text.splitlines())) <= 80
    for part in ("a-long-folder/", "another-long-one/", "settings.toml"):
        assert part in text
