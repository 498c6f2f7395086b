from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzzing import HUGE, JUNK, NESTED, amounts, fuzz, mutated, mutated_document, outcome
from hostile_program import ended_well
from stand_ins import ALL, make_device
from trivet import plugins
from trivet.cli.program import program
from trivet.errors import ConfigError, LockMismatch
from trivet.selection import lock as locks

SITES = {
    "norm": ("rms_norm", {"dtype": "float32", "hidden": 64}),
    "up": ("linear_packed", {"contiguous": True, "tokens": "rows"}),
}
TOKENS = [b"\0", b"\xff", b"null", b"NaN", b"Infinity", b"-0", b'"\\ud800"', b'"sites": {},',
          b'"digest": "0",', b'{"schema": 1}', *[t.encode() for t in (*HUGE, *NESTED)]]  # fmt: skip


@pytest.fixture(scope="module")
def dev():
    return make_device(*ALL)


@pytest.fixture(scope="module")
def whole(dev):
    return dict(dev.plan(SITES).lock)


def agrees_or_is_refused(dev, lock) -> None:
    """A lock that is taken is that of the plan made with it, to the last field."""
    plan, error = outcome(lambda: dev.plan(SITES, lock=lock), ConfigError, LockMismatch)
    if plan is None:
        assert str(error).count(error.code) == 1
        return
    found = lock if isinstance(lock, dict) else json.loads(Path(lock).read_text(encoding="utf-8"))
    assert locks.digest(found) == plan.digest


@amounts("lock files", parts=3)
def test_a_damaged_file_is_refused(amount, dev, whole, tmp_path):
    path = tmp_path / "a.lock"
    locks.save(whole, path)

    def check(data):
        path.write_bytes(data)
        agrees_or_is_refused(dev, path)

    fuzz(amount, mutated([path.read_bytes()], TOKENS), check)


@amounts("lock files", parts=3)
def test_a_document_that_was_edited_with_its_digest_is_refused(amount, dev, whole):
    def check(document):
        agrees_or_is_refused(dev, document | {"digest": locks.digest(document)})

    fuzz(amount, mutated_document(whole), check)


@amounts("lock files", parts=3)
def test_the_command_ends_well_with_any_lock(amount, acme, whole, tmp_path, monkeypatch):
    Path("sites.json").write_text('{"norm": {"op": "rms_norm", "facts": {"hidden": 64}}}')
    ended_well(program, ["plan", "sites.json", "--save", "a.lock"], "trivet")
    made = json.loads(Path("a.lock").read_text())
    monkeypatch.setenv("TRIVET_LOCK", "a.lock")

    def check(document):
        plugins.reset()
        signed = document | {"digest": locks.digest(document)}
        Path("a.lock").write_text(json.dumps(signed))
        result = ended_well(program, ["plan", "sites.json"], "trivet")
        assert result.exit_code or signed["digest"] in result.stdout

    fuzz(amount, mutated_document(made), check)


def test_what_is_no_document_is_refused(dev, whole):
    def check(junk):
        with pytest.raises(ConfigError):
            locks.checked(junk, "it")

    fuzz(50, JUNK, check)


@pytest.mark.parametrize("name", ["folder", "loop", "absent", "a" * 300, "/dev/null", "\0"])
def test_what_is_no_file_is_refused(dev, name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="cannot be read"):
        dev.plan(SITES, lock=tmp_path / name)
