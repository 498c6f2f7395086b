from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import strategies as st

from fuzzing import HUGE, ODD, SECONDS, amounts, fuzz, text_without_nul
from hostile_program import ended_well
from trivet import plugins
from trivet.cli.program import program
from trivet.settings import VARIABLES

NAMES = [v.name for v in VARIABLES]
NEAR = ["TRIVET_DEVCE", "TRIVET_DEVICES", "TRIVET_", "TRIVET_STRICT_", "TRIVET_strict", "TRIVET_X",
        "trivet_device", "Trivet_Strict", "TRIVET_CHECKS", "TRIVET_NO_SUCH"]  # fmt: skip
VALUES = {
    "TRIVET_DEVICE": ["acme", "auto", "reference", "acme:1", "acme:x", "acme:", "cpu", "Acme"],
    "TRIVET_ALLOW": ["acme", "acme-dist", "acme,acme", "acme,", "acmee", ","],
    "TRIVET_DENY": ["acme", "other", "acme-dist", "a,b", "acme:1"],
    "TRIVET_PROVIDERS": ["rms_norm=acme/vec", "*=acme/vec", "rms_norm=acme/none", "rms_norm",
                         "no_such=acme/vec", "=", ";;", "rms_norm=acme/vec;rms_norm=acme/small"],
    "TRIVET_FORBID": ["rms_norm=acme/vec", "*=reference", "*=no/such", "rms_norm=vec"],
    "TRIVET_LOCK": ["absent.lock", ".", "/dev/null", "\udcff"],
    "TRIVET_CONFIG": ["absent.toml", ".", "/dev/null", "\udcff"],
    "TRIVET_REQUIRE": ["compiler", "no_such_tool", "compiler,"],
    "TRIVET_CACHE_DIR": ["/dev/null/x", ".", "\udcff"],
    "TRIVET_LOG": ["debug", "DEBUG", "loud", "warn", "10"],
}  # fmt: skip
FLAGS = ["1", "0", "yes", "no", "on", "TRUE", "2", "y", "tru", " 1", "1 ", "none"]

WORDS = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}


@st.composite
def environments(draw):
    """Up to three variables of ours, of which at least one is misspelt or odd now and then."""
    made = {}
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(NAMES * 2 + NEAR))
        odd = st.sampled_from([o for o in (*ODD, *HUGE) if o]) | text_without_nul(min_size=1)
        likely = st.sampled_from(VALUES.get(name, FLAGS))
        made[name] = draw(st.one_of(likely, likely, odd))
    return made


def settled(environ: dict[str, str], found: dict) -> None:
    """Each variable is in effect, or a problem or note names it, or its value."""
    said = " ".join([*(p["what"] for p in found["problems"]), *found["notes"],
                     *(line["reason"] for line in found["plugins"])])  # fmt: skip
    effective = {s["name"]: s for s in found["settings"]}
    if not effective:  # the first variable that cannot be read ends the visit, and is named
        assert any(name in said for name in environ)
        return
    for name, value in environ.items():
        if name in said:
            continue
        assert name in effective, f"{name} is no setting, and nobody says so"
        assert effective[name]["source"] == name
        parts = value.replace(";", ",").replace("=", ",").split(",")
        shown = json.dumps(effective[name]["value"], ensure_ascii=False).lower()
        for part in filter(None, (p.strip().lower() for p in parts)):
            escaped = json.dumps(part, ensure_ascii=False)[1:-1]
            want = WORDS.get(part, part) if shown in {"true", "false"} else escaped
            assert want in shown or part in said.lower(), (name, part, shown)
        check_names(name, found, said)


def check_names(name: str, found: dict, said: str) -> None:
    """What names a thing that does not exist is told."""
    value = next(s["value"] for s in found["settings"] if s["name"] == name)
    if name == "TRIVET_DEVICE" and not found["auto"]["error"]:
        assert value.partition(":")[0] in {"acme", "auto", "reference"}
    if name in {"TRIVET_ALLOW", "TRIVET_DENY"}:
        for one in value:
            assert one.lower() in {"acme", "acme-dist"} or one in said, (name, one)
    if name in {"TRIVET_PROVIDERS", "TRIVET_FORBID"} and not found["problems"]:
        known = {row["operator"] for row in found["operators"]}
        assert set(value) <= known | {"*"}
    if name == "TRIVET_LOCK":
        assert found["problems"]


@amounts("environment variables")
def test_a_variable_is_in_effect_or_the_doctor_names_it(amount, acme, monkeypatch):
    def check(environ):
        plugins.reset()
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            result = ended_well(program, ["doctor", "--json"], "trivet")
            found = json.loads(result.stdout)
            assert result.exit_code == (0 if found["ok"] else 1)
            settled(environ, found)

    fuzz(amount, environments(), check)


CASES = [
    {"TRIVET_STRICT": "maybe"},
    {"TRIVET_CONFIG": "a" * 5000},
    {"TRIVET_PROVIDERS": "rms_norm=acme/vec;rms_norm=acme/vec"},
    {"HOME": "a" * 5000},
    {"TRIVET_DEVICE": "\udcff"},
]


@pytest.mark.parametrize("environ", CASES, ids="".join)
def test_as_a_process_it_is_one_message_or_none(acme, environ, tmp_path):
    clean = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TRIVET_ALLOW": "acme"}
    clean.pop("XDG_CONFIG_HOME")
    done = subprocess.run(
        [sys.executable, "-m", "trivet", "ops"],
        env=clean | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == (0 if "HOME" in environ else 2), done.stderr
    assert bool(done.stderr) == bool(done.returncode)
