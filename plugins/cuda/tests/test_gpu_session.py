"""The script for a session on a GPU machine: its commands, and that no step stops a phase."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PHASES = (
    "check", "kit 1/3", "kit 2", "tune", "tune rms_norm", "kernels-a", "kernels-b", "attention",
    "engine",
)  # fmt: skip


def session(*words, **variables):
    command = ["/bin/bash", ROOT / ".ci" / "gpu-session", *words]
    env = os.environ | variables
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("phase", PHASES)
def test_a_dry_run_shows_commands_within_the_limit_and_starts_none(phase, tmp_path):
    done = session("--dry-run", *phase.split(), OUT=str(tmp_path / "out"), PYTHON="/bin/false")
    assert done.returncode == 0, done.stderr
    steps = [line.split() for line in done.stdout.splitlines() if "/bin/false -" in line
             or "/bin/false benchmarks" in line or "/bin/false conformance" in line]  # fmt: skip
    assert steps
    for first, *words in steps:
        assert 10 < int(first.removesuffix("s")) <= 540
        for word in words:
            if word.endswith(".py"):
                assert (ROOT / word).exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [(), ("kit",), ("kit", "0"), ("other",)])
def test_what_is_no_phase_is_refused_with_the_list(words):
    done = session(*words)
    assert done.returncode == 2
    assert "kit I/N" in done.stderr


def test_shards_run_side_by_side_and_one_that_fails_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *unpack*) ;; *2/3*) exit 3;; *) echo "did $*";; esac\n'
    )
    python.chmod(0o755)
    for name in (".ci", "build"):
        (tmp_path / name).mkdir()
    (tmp_path / ".ci" / "gpu-session").write_bytes((ROOT / ".ci" / "gpu-session").read_bytes())
    done = subprocess.run(
        ["/bin/bash", tmp_path / ".ci" / "gpu-session", "kit", "3"],
        env=os.environ | {"PYTHON": str(python), "OUT": str(tmp_path / "out")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 steps failed" in done.stdout
    assert "shard 2: see log-2 in the archive" in done.stdout
    logs = tmp_path / "build" / "gpu-work" / "kit-3"
    assert "--shard 1/3" in (logs / "log-1").read_text()
    assert "status 3" in (logs / "log-2").read_text()


def test_a_step_that_fails_does_not_stop_the_phase(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *unpack*) exit 0;; *doctor*) echo broken; exit 3;; esac\n'
        'echo "did $*"\n'
    )
    python.chmod(0o755)
    for name in (".ci", "build"):
        (tmp_path / name).mkdir()
    (tmp_path / ".ci" / "gpu-session").write_bytes((ROOT / ".ci" / "gpu-session").read_bytes())
    done = subprocess.run(
        ["/bin/bash", tmp_path / ".ci" / "gpu-session", "check"],
        env=os.environ | {"PYTHON": str(python), "OUT": str(tmp_path / "out")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    log = (tmp_path / "out" / "check.log").read_text()
    assert log == done.stdout
    assert "1 steps failed\nstatus 3:" in log
    assert log.index("broken") < log.index("did -m trivet kernels")
    with tarfile.open(tmp_path / "out" / "check.tar.gz") as archive:
        assert archive.getnames() == ["check"]
    assert len(list((tmp_path / "out").iterdir())) == 2
