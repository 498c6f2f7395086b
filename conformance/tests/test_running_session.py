"""A run that is killed keeps what it had, and is gone on with; shards and whole runs agree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from trivet_conformance.report import lines as report
from trivet_conformance.report.errors import ReportError
from trivet_conformance.running.session import Options, Session

WORDS = ["--plugin", "reference", "--op", "silu_and_mul", "--family", "value", "--quick"]


def results(folder):
    return {r["id"]: r["status"] for r in report.read(folder) if r["kind"] == "result"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    options = Options("reference", folder, ops=("silu_and_mul",), families=("value",), mode="quick")
    assert Session(options).run()["ok"]
    return folder


def test_a_killed_run_keeps_every_result_and_is_gone_on_with(whole, tmp_path):
    command = [sys.executable, "-m", "trivet_conformance.cli.program", "run", *WORDS]
    process = subprocess.Popen([*command, "--dir", str(tmp_path)], stderr=subprocess.DEVNULL)
    file = tmp_path / report.LINES
    while process.poll() is None and not (file.exists() and file.read_text().count("\n") > 14):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = results(tmp_path)
    assert before
    with file.open("a") as end:
        end.write('{"kind": "result", "id": "cut sh')  # what a kill may leave
    done = subprocess.run(
        [*command, "--resume", "--json", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"]
    after = results(tmp_path)
    assert after == results(whole)
    assert before.items() <= after.items()


def test_another_run_is_not_gone_on_with(whole):
    options = Options("reference", whole, ops=("silu_and_mul",), families=("value",), seed=5,
                      mode="quick", resume=True)  # fmt: skip
    with pytest.raises(ReportError, match="seed was 0 and is 5"):
        Session(options).run()
    assert results(whole)


def test_an_empty_folder_cannot_be_gone_on_with(tmp_path):
    with pytest.raises(ReportError, match="no report"):
        Session(Options("reference", tmp_path, resume=True)).run()


def test_shards_are_parts_of_the_whole(whole, tmp_path):
    parts = []
    for i in (1, 2):
        options = Options("reference", tmp_path / str(i), ops=("silu_and_mul",),
                          families=("value",), mode="quick", shard=(i, 2))  # fmt: skip
        Session(options).run()
        parts.append(results(tmp_path / str(i)))
    assert not set(parts[0]) & set(parts[1])
    assert parts[0] | parts[1] == results(whole)


def test_in_process_gives_the_same_answers(whole, tmp_path):
    options = Options("reference", tmp_path, ops=("silu_and_mul",), families=("value",),
                      mode="quick", in_process=True)  # fmt: skip
    Session(options).run()
    inner = {k: v for k, v in results(whole).items() if not k.startswith("load/")}
    assert results(tmp_path) == inner
