from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from trivet import settings
from trivet.errors import ConfigError
from trivet.settings import Settings, read


def read_file(folder: Path, text: str, environ: dict[str, str] | None = None) -> Settings:
    (folder / "trivet.toml").write_text(text)
    return read({"HOME": str(folder / "home"), **(environ or {})}, folder=folder)


def test_the_default_is_the_table(tmp_path):
    got = read({"HOME": str(tmp_path)}, folder=tmp_path)
    for variable in settings.VARIABLES:
        assert getattr(got, variable.field) == variable.default, variable.name
        assert got.source(variable.field) == "default"


def test_every_variable_is_a_field_and_every_field_of_the_environment_has_a_variable():
    fields = {f.name for f in dataclasses.fields(Settings)}
    ours = {v.field for v in settings.VARIABLES}
    assert ours <= fields
    assert fields - ours == {"sources", "file_providers", "file_providers_by_mode", "file_forbid"}


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("TRIVET_DEVICE", "acme:1", "acme:1"),
        ("TRIVET_ALLOW", "cpu, trivet-x", ("cpu", "trivet-x")),
        ("TRIVET_DENY", "acme", ("acme",)),
        ("TRIVET_STRICT", "1", True),
        ("TRIVET_CHECK", "Yes", True),
        ("TRIVET_TRACE", "off", False),
        ("TRIVET_LOCK", "a/b.json", Path("a/b.json")),
        ("TRIVET_CACHE_DIR", "/cache", Path("/cache")),
        ("TRIVET_TUNED", "/", Path("/")),
        ("TRIVET_LOG", "DEBUG", "debug"),
        ("TRIVET_REQUIRE", "compiler,tool", ("compiler", "tool")),
        (
            "TRIVET_PROVIDERS",
            "rms_norm=cpu/vec, acme/fast;acme.foo=acme/a; *=cpu/vec;",
            {"rms_norm": ("cpu/vec", "acme/fast"), "acme.foo": ("acme/a",), "*": ("cpu/vec",)},
        ),
        ("TRIVET_FORBID", "*=acme/fast", {"*": ("acme/fast",)}),
    ],
)
def test_a_variable_is_parsed_and_named_as_the_source(tmp_path, variable, text, value):
    got = read({"HOME": str(tmp_path), variable: text}, folder=tmp_path)
    field = variable.removeprefix("TRIVET_").lower()
    assert getattr(got, field) == value
    assert got.source(field) == variable


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("TRIVET_STRICT", "2", "one of 1, true, yes, on, 0, false, no, off"),
        ("TRIVET_LOG", "loud", "one of debug, info, warning, error"),
        ("TRIVET_ALLOW", "a,,b", "names separated by commas"),
        ("TRIVET_TUNED", "/no/such/folder", "a folder that is there"),
        ("TRIVET_DEVICE", "a b", "one name"),
        ("TRIVET_PROVIDERS", "rms_norm", "OPERATOR=PLUGIN/NAME"),
        ("TRIVET_PROVIDERS", "rms_norm=", "PLUGIN/NAME"),
        ("TRIVET_PROVIDERS", "rms_norm=a/b;rms_norm=c/d", "each operator once"),
        ("TRIVET_FORBID", "Rms=cpu/vec", "OPERATOR=PLUGIN/NAME"),
        ("TRIVET_FORBID", "*=cpu/vec/more", "PLUGIN/NAME"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_allowed(tmp_path, variable, text, allowed):
    with pytest.raises(ConfigError) as caught:
        read({"HOME": str(tmp_path), variable: text}, folder=tmp_path)
    assert f"{variable}={text!r}" in str(caught.value)
    assert allowed in str(caught.value)


def test_an_empty_variable_is_no_setting(tmp_path):
    got = read({"HOME": str(tmp_path), "TRIVET_STRICT": "", "TRIVET_CONFIG": ""}, folder=tmp_path)
    assert got.strict is False
    assert got.source("strict") == "default"


FULL = """
[device]
auto = "acme"
allow = ["acme", "cpu"]
deny = ["other"]
[providers]
rms_norm = ["cpu/vec"]
"*" = ["cpu/any"]
[providers.compiled]
rms_norm = ["reference"]
[forbid]
rms_norm = ["acme/slow"]
"*" = ["acme/odd"]
[run]
strict = true
check = false
trace = true
"""


def test_a_file_sets_what_it_names_and_each_value_knows_its_key(tmp_path):
    got = read_file(tmp_path, FULL)
    file = tmp_path / "trivet.toml"
    assert (got.device, got.allow, got.deny) == ("acme", ("acme", "cpu"), ("other",))
    assert (got.strict, got.check, got.trace) == (True, False, True)
    assert got.source("device") == f"{file} device.auto"
    assert got.source("strict") == f"{file} run.strict"
    assert got.source("log") == "default"
    assert got.config == file


def test_the_environment_goes_before_the_file_setting_by_setting(tmp_path):
    got = read_file(tmp_path, FULL, {"TRIVET_DEVICE": "cpu", "TRIVET_STRICT": "0"})
    assert (got.device, got.source("device")) == ("cpu", "TRIVET_DEVICE")
    assert (got.strict, got.source("strict")) == (False, "TRIVET_STRICT")
    assert got.trace is True


def test_an_order_list_comes_from_one_layer(tmp_path):
    got = read_file(tmp_path, FULL)
    assert got.order("rms_norm").providers == ("cpu/vec",)
    assert got.order("rms_norm", "compiled").providers == ("reference",)
    assert got.order("linear", "compiled").providers == ("cpu/any",)
    assert got.order("rms_norm", "compiled").source.endswith(
        "trivet.toml [providers.compiled] rms_norm"
    )
    got = read_file(tmp_path, FULL, {"TRIVET_PROVIDERS": "*=acme/x"})
    order = got.order("rms_norm", "compiled")
    assert (order.providers, order.source) == (("acme/x",), "TRIVET_PROVIDERS *")
    assert Settings().order("rms_norm") is None


def test_what_is_forbidden_adds_up_and_each_says_where(tmp_path):
    got = read_file(tmp_path, FULL, {"TRIVET_FORBID": "rms_norm=cpu/vec"})
    assert dict(got.forbidden("rms_norm")) == {
        "cpu/vec": "TRIVET_FORBID rms_norm",
        "acme/slow": f"{got.config} [forbid] rms_norm",
        "acme/odd": f"{got.config} [forbid] *",
    }
    assert set(got.forbidden("linear")) == {"acme/odd"}


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("[devices]\n", "devices: unknown key", "did you mean device?"),
        ("[device]\nalow = []\n", "device.alow: unknown key", "did you mean allow?"),
        ("[run]\nspeed = 1\n", "run.speed: unknown key", "allowed: strict, check, trace"),
        ("[run]\nstrict = 1\n", "run.strict: 1 is not true or false", ""),
        ("[device]\nallow = 'cpu'\n", "device.allow: 'cpu' is not a list", '["a", "b"]'),
        ("[device]\nauto = 3\n", "device.auto: 3 is not a name", ""),
        ("[providers]\nrms_norm = ['a b']\n", "providers.rms_norm: 'a b' is not a name", ""),
        ("[providers]\nRms = ['a/b']\n", "providers.Rms: is not an operator's name", ""),
        ("[providers.compile]\nx = ['a/b']\n", "providers.compile: unknown key", "compiled"),
        ("[forbid]\nx = 'a/b'\n", "forbid.x: 'a/b' is not a list", ""),
        ("device = 1\n", "device: must be a table", "[device]"),
        ("[device\n", "cannot be read", "line 1"),
        ("x = " + "[" * 100_000, "cannot be read", "correct the file"),
    ],
)
def test_a_wrong_file_names_file_key_and_what_is_meant(tmp_path, text, where, hint):
    with pytest.raises(ConfigError) as caught:
        read_file(tmp_path, text)
    message = str(caught.value)
    assert str(tmp_path / "trivet.toml") in message
    assert where in message
    assert hint in message


def test_the_first_file_found_is_the_only_one(tmp_path, monkeypatch):
    monkeypatch.setattr(settings.effective.sys, "platform", "linux")
    home = tmp_path / "config" / "trivet"
    home.mkdir(parents=True)
    (home / "trivet.toml").write_text("[run]\nstrict = true\ncheck = true\n")
    here = tmp_path / "here"
    here.mkdir()
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert read(environ, folder=here).config == home / "trivet.toml"
    (here / "trivet.toml").write_text("[run]\nstrict = false\n")
    got = read(environ, folder=here)
    assert (got.config, got.check) == (here / "trivet.toml", False)
    named = tmp_path / "named.toml"
    named.write_text("[run]\ntrace = true\n")
    got = read({**environ, "TRIVET_CONFIG": str(named)}, folder=here)
    assert (got.config, got.trace, got.check) == (named, True, False)
    with pytest.raises(ConfigError, match=r"TRIVET_CONFIG='.*absent.toml' is no file"):
        read({**environ, "TRIVET_CONFIG": str(tmp_path / "absent.toml")}, folder=here)


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {"HOME": "/h"}, "/h/.config/trivet"),
        ("linux", {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/trivet"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/trivet"),
        ("win32", {"HOME": "/h", "APPDATA": "/a"}, "/a/trivet"),
    ],
)
def test_the_users_folder_is_the_platforms(monkeypatch, platform, environ, folder):
    monkeypatch.setattr(settings.effective.sys, "platform", platform)
    assert settings.user_folder(environ) == Path(folder)


def test_the_fingerprint_names_what_changed(tmp_path):
    before = read_file(tmp_path, FULL).fingerprint()
    after = read_file(tmp_path, FULL, {"TRIVET_PROVIDERS": "linear=acme/x"}).fingerprint()
    assert {k for k in before | after if before.get(k) != after.get(k)} == {"providers.linear"}
    assert json.loads(json.dumps(dict(before))) == dict(before)
    assert before["file.providers.compiled.rms_norm"] == ["reference"]


def test_settings_cannot_be_changed(tmp_path):
    got = read_file(tmp_path, FULL, {"TRIVET_PROVIDERS": "linear=acme/x"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.strict = False
    for mapping in (got.providers, got.file_providers, got.sources, got.fingerprint()):
        with pytest.raises(TypeError):
            mapping["x"] = ()


def test_unknown_variables_are_found_with_near_misses():
    environ = {"TRIVET_DEVCE": "cpu", "TRIVET_DEVICE": "cpu", "PATH": "", "TRIVET_ZZZ": ""}
    assert settings.unknown_variables(environ) == {
        "TRIVET_DEVCE": ["TRIVET_DEVICE"],
        "TRIVET_ZZZ": [],
    }


def test_the_table_for_the_docs_has_a_row_a_variable():
    rows = settings.markdown_table().splitlines()
    assert len(rows) == len(settings.VARIABLES) + 2
    assert {row.count(" | ") for row in rows if "rms_norm" not in row} >= {3}
    for variable in settings.VARIABLES:
        assert any(row.startswith(f"| `{variable.name}` |") for row in rows)
