from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzzing import HUGE, NESTED, ODD, amounts, fuzz, mutated, outcome
from trivet.errors import ConfigError
from trivet.settings import MODES, Settings, read

WHOLE = b"""[device]
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
[run]
strict = true
check = false
trace = true
"""
TOKENS = [b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"[device]\n", b"[[run]]\n", b"a.b.c = 1\n",
          b'"""', b"1979-05-27T07:32:00Z", b"{ a = 1 }", b"run.strict = false\n",
          b"x.y" * 2000 + b" = 1\n",
          *[t.encode() for t in (*HUGE, *NESTED)]]  # fmt: skip

TABLES = [
    "device",
    "providers",
    "forbid",
    "run",
    "providers.compiled",
    "providers.eager",
    "devices",
    "provider",
    "Run",
    "providers.compile",
    "run.strict",
    "device.auto.x",
]
KEYS = ["auto", "allow", "deny", "strict", "check", "trace", "rms_norm", '"*"', '"acme.op"',
        "alow", "Strict", "lock", "log", '""', '"a b"', "cache_dir", "compiled", "9"]  # fmt: skip
LISTS = ['["acme"]', '["acme/vec", "reference"]', "[]", '["a b"]', "[1]", '["acme", ["acme"]]',
         '[""]', '["acme:1"]', '["acme", "acme"]']  # fmt: skip
VALUES = ["true", "false", '"acme"', '"acme:1"', '""', "1", "0", "nan", "1979-05-27", "{}",
          "{ strict = true }", "'true'", *LISTS, *LISTS, *HUGE[:4]]  # fmt: skip


@st.composite
def documents(draw):
    """Text of TOML from known, misspelt and odd tables, keys and values."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        rows.append(f"[{draw(st.sampled_from(TABLES[:6] * 3 + TABLES))}]")
        for _ in range(draw(st.integers(0, 3))):
            key, value = draw(st.sampled_from(KEYS)), draw(st.sampled_from(VALUES))
            rows.append(f"{key} = {value}")
    return "\n".join(rows).encode()


def leaves(table: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(table, dict):
        for key, value in table.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, table


def in_effect(got: Settings, path: tuple[str, ...]) -> object:
    """The value that a setting of a file has, by the documented meaning of its key."""
    match path:
        case ("device", "auto"):
            return got.device
        case ("device", "allow" | "deny" as key) | ("run", "strict" | "check" | "trace" as key):
            return getattr(got, key)
        case ("providers", mode, operator) if mode in MODES:
            return got.file_providers_by_mode[mode][operator]
        case ("providers", operator):
            return got.file_providers[operator]
        case ("forbid", operator):
            return got.file_forbid[operator]
    raise AssertionError(f"{path} is accepted, and no setting is called so")


def every_key_counts(data: bytes, folder: Path) -> None:
    """The file is refused by name, or each of its keys has the effect that it asks for."""
    path = folder / "trivet.toml"
    path.write_bytes(data)
    got, error = outcome(lambda: read({"HOME": str(folder)}, folder=folder), ConfigError)
    if got is None:
        assert str(path) in error.what
        assert len(str(error)) < 20_000
        return
    assert got.config == path
    for where, value in leaves(tomllib.loads(path.read_text(encoding="utf-8"))):
        have = in_effect(got, where)
        assert have == (tuple(value) if isinstance(value, list) else value), where
    got.fingerprint()


@amounts("configuration files", parts=2)
def test_a_damaged_file_is_refused_or_every_key_counts(amount, tmp_path):
    fuzz(amount, mutated([WHOLE], TOKENS), lambda data: every_key_counts(data, tmp_path))


@amounts("configuration files", parts=2)
def test_a_file_of_odd_keys_is_refused_or_every_key_counts(amount, tmp_path):
    fuzz(amount, documents(), lambda data: every_key_counts(data, tmp_path))


def test_what_is_no_file_is_refused_where_it_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("absent")
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    paths = [tmp_path / name for name in ("folder", "loop", "broken", "pipe", "a" * 300)]
    for path in map(str, [*paths, "\0", "/dev/null/x", "a/" * 3000, *(o for o in ODD if o)]):
        with pytest.raises(ConfigError, match="TRIVET_CONFIG="):
            read({"TRIVET_CONFIG": path, "HOME": str(tmp_path)}, folder=tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, lambda p: p.symlink_to(p), os.mkfifo])
def test_what_is_found_and_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / "trivet.toml")
    with pytest.raises(ConfigError, match=r"trivet.toml"):
        read({"HOME": str(tmp_path)}, folder=tmp_path)


@pytest.mark.parametrize("home", ["", "\0", "a/" * 3000, "/dev/null", "\udcff"])
def test_a_users_folder_that_cannot_be_is_none(tmp_path, home):
    for environ in ({"HOME": home}, {"XDG_CONFIG_HOME": home, "HOME": home}):
        assert read(environ, folder=tmp_path).config is None


def test_a_working_directory_that_was_removed_holds_no_file(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert read({"HOME": str(tmp_path)}).config is None
