from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from trivet.cli.comm import command
from trivet.collectives.dump import merge, read
from trivet.collectives.place import host


def call(seq, operation="all_reduce", ended=1.0, **more):
    return {
        "seq": seq, "operation": operation, "dtype": "float32", "numel": 4, "nbytes": 16,
        "reduction": "sum", "peer": None, "provider": "p/x", "began": 0.5, "ended": ended,
        "error": "",
    } | more  # fmt: skip


def record(rank, *calls, size=2, **more):
    return {
        "schema": 1, "time": 0.0, "group": "tp", "token": "abc", "rank": rank, "size": size,
        "host": "h", "pid": 1, "world": [], "timeout": 5.0, "closed": False, "failure": None,
        "failure_code": None, "failure_ranks": [], "calls": list(calls), "alive": True,
    } | more  # fmt: skip


WAITING = call(1, ended=None)
DISAGREE = (
    "ranks disagree since #1: rank 0 made all_reduce #1 (16 bytes of float32 sum), "
    "rank 1 made broadcast #1 (16 bytes of float32 sum)"
)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record(0, call(0), WAITING), record(1, call(0))],
         ["rank 0 waits in all_reduce #1 (16 bytes of float32 sum) for rank 1",
          "rank 1 waits for nobody; its last call was all_reduce #0 (16 bytes of float32 sum)"]),
        ([record(0, call(0), WAITING), record(1, call(0), call(1, "broadcast", None))],
         [DISAGREE,
          "rank 0 waits in all_reduce #1 (16 bytes of float32 sum) for nobody that is known",
          "rank 1 waits in broadcast #1 (16 bytes of float32 sum) for nobody that is known"]),
        ([record(0, WAITING, size=3), record(1, size=3, alive=False)],
         ["rank 2 has written nothing", "rank 1 has ended",
          "rank 0 waits in all_reduce #1 (16 bytes of float32 sum) for ranks 1, 2"]),
        ([record(0, call(None, "batch", None, peer=1)), record(1, call(0))],
         ["rank 0 waits in batch (16 bytes of float32 sum, peer 1) for rank 1",
          "rank 1 waits for nobody; its last call was all_reduce #0 (16 bytes of float32 sum)"]),
        ([record(0, call(0, "all_to_all_v")), record(1, call(0, "all_to_all_v", nbytes=8))],
         ["nobody waits"]),
        ([record(0, call(0), failure="it broke"), record(1, call(0))], ["rank 0 failed: it broke"]),
    ],
)  # fmt: skip
def test_the_merged_records_say_who_waits_for_whom(records, words):
    assert merge(records)["verdict"] == words


def test_files_that_are_no_records_are_remarked_on(tmp_path):
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps({"schema": 0}), encoding="utf-8")
    here = record(1, host=host(), pid=os.getpid())
    (tmp_path / "c.json").write_text(json.dumps(here), encoding="utf-8")
    (tmp_path / "d.json").write_text(json.dumps(record(0, WAITING)), encoding="utf-8")
    groups, remarks = read(tmp_path)
    assert [(r["rank"], r["alive"]) for r in groups["abc"]] == [(0, None), (1, True)]
    assert len(remarks) == 2
    shown = CliRunner().invoke(command, ["dump", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "rank 0 waits in all_reduce #1" in " ".join(shown.output.split())
    told = json.loads(CliRunner().invoke(command, ["dump", str(tmp_path), "--json"]).output)
    assert told["groups"][0]["ranks"][1]["alive"] is True


def test_ranks_write_while_they_wait_and_when_they_fail(world, tmp_path):
    folder = tmp_path / "dump"
    environ = {"TRIVET_COMM_DUMP": str(folder)}
    world("failures.py", "leaves_a_record", 2, environ=environ)
    groups, remarks = read(folder)
    assert not remarks
    by_name = {rows[0]["group"]: merge(rows) for rows in groups.values()}
    verdict = " ".join(by_name["watched"]["verdict"])
    assert "rank 0 failed: all_reduce #1 of group watched" in verdict
    assert by_name["watched"]["missing"] == []


def test_the_table_of_a_group_needs_no_group():
    run = CliRunner()
    shown = run.invoke(command, ["table", "--device", "reference", "--size", "4", "--json"])
    told = json.loads(shown.output)
    rows = [r for r in told["rows"] if r["operation"] == "all_reduce" and r["dtype"] == "float32"]
    assert rows[-1]["providers"][0].partition("/")[2]
    args = ["explain", "reduce_scatter", "--size", "4", "--bytes", "64"]
    assert "composed/all_to_all_sum" in run.invoke(command, args).output
    assert "all_gather" in run.invoke(command, ["explain"]).output
