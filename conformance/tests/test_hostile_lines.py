"""Command lines of the kit with bad names, bad paths, bad reports and bad options."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzzing import HUGE, JUNK, NESTED, ODD, SECONDS, amounts, fuzz, mutated, text_without_nul
from hostile_program import ended_well
from trivet_conformance.cli import program as cli
from trivet_conformance.families import FAMILIES

WORDS = [o for o in (*ODD, *HUGE) if o]
PATHS = ["report", "cut", "empty", "folder", "file", "absent", "loop", "/dev/null", "a" * 300,
         "file/x", ".", "bad.toml", "locked/x", "\udcff"]  # fmt: skip
PLUGINS = ["reference", "no_such", "./absent.py", "./bad.py", "./folder", "./bad.py:x", "auto",
           "./loop", "cpu:0", "./file"]  # fmt: skip
RUN_ONE = ["run", "--plugin", "reference", "--op", "embedding", "--family", "meta", "--quick",
           "--in-process"]  # fmt: skip


def pick(*words):
    odd = st.sampled_from(WORDS) | text_without_nul(min_size=1, max_size=8)
    return st.one_of(*[st.sampled_from(words)] * 6, odd)


def option(name, *words):
    return st.tuples(st.just(name), pick(*words)).map(list)


PATH = pick(*PATHS).map(lambda one: [one])
OUT = option("-o", *PATHS)
QUIET = st.sampled_from([["--json"], ["--help"], ["--nonsense"], ["--"]])
CLAIM = [option("--level", "L0", "L1", "L9"), option("--profile", "inference-dense", "no-such")]
RUN = [option("--seed", "0", "-1", "x", "9" * 30), option("--case", "value/x", "harness/", "*"),
       option("--family", *list(FAMILIES)[:3], "no_such"), option("--op", "no_such", "Embedding"),
       option("--shard", "1/1", "0/1", "2/1", "9/9", "x"), option("--limit", "1", "0", "-1", "nan"),
       option("--dir", *PATHS), option("--junit", *PATHS), option("--waivers", *PATHS),
       option("--mode", "quick", "certify", "x"), st.just(["--resume"]), *CLAIM]  # fmt: skip
COMMANDS = {
    "html": (1, [OUT, option("--against", *PATHS)]),
    "badge": (1, [OUT, st.just(["--check"])]),
    "diff": (2, []),
    "merge": (2, [OUT]),
    "expect": (1, [OUT]),
    "list": (0, [option("--op", "no_such", "embedding"), *CLAIM]),
    "run": (0, RUN),
    "preflight": (0, []),
}


@st.composite
def lines(draw):
    """A line of a command that looks at reports, or of one whose plugin is not there."""
    name = draw(st.sampled_from(["html", "badge", "diff", "merge", "expect", "list", "run"]))
    count, options = COMMANDS[name]
    parts = [draw(PATH) for _ in range(count if draw(st.integers(0, 9)) else 1 - count)]
    parts += draw(st.lists(st.one_of(*options, *options, QUIET) if options else QUIET, max_size=4))
    if name in {"list", "run"}:
        parts.append(["--plugin", draw(pick(*(PLUGINS[1:] if name == "run" else PLUGINS)))])
    order = draw(st.permutations(parts))
    return [name, *(word for part in order for word in part)]


@pytest.fixture(scope="module")
def whole_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    ended_well(cli.main, [*RUN_ONE, "--dir", str(folder)], "trivet-conformance")
    return folder


@pytest.fixture
def reports(whole_report, tmp_path, monkeypatch):
    """Folders with a whole report and with wrong ones; gives what puts them back."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole_report, "report")
    for name in ("cut", "empty", "folder"):
        Path(name).mkdir()
    whole = Path("report/report.jsonl").read_bytes()
    Path("cut/report.jsonl").write_bytes(whole[: len(whole) // 2])
    Path("empty/report.jsonl").touch()
    for name in ("file", "bad.toml", "bad.py"):
        Path(name).write_bytes(b"\xff = 1/0\n")
    Path("loop").symlink_to("loop")
    files = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}

    def restore():
        for path, content in files.items():
            path.write_bytes(content)

    return restore


@amounts("command lines of the kit", parts=2)
def test_a_command_line_is_answered_or_refused_in_one_message(amount, reports):
    def check(line):
        ended_well(cli.main, line, "trivet-conformance")
        reports()

    fuzz(amount, lines(), check)


@amounts("command lines of the kit", parts=2)
def test_a_damaged_report_is_read_or_refused(amount, reports):
    path = Path("report/report.jsonl")
    rows = path.read_bytes().splitlines(keepends=True)
    tokens = [b"\0", b"\xff", b"\n", b"null", b"[]\n", b"{}\n", b'"x"\n', b'{"kind": "result"}\n',
              b"NaN", b'"status": "pass"', *rows[:2], *[t.encode() for t in (*HUGE, *NESTED)],
              *[json.dumps({"kind": k, "schema": 1}).encode() + b"\n" for k in ("run", "x")],
              ]  # fmt: skip
    wholes = [b"".join(rows[:1]), b"".join(rows[:3]), b"".join(rows)]
    broken = [json.loads(row) for row in rows[:3]]

    @st.composite
    def reports_(draw):
        """A report damaged as bytes, or with values that do not belong there."""
        if draw(st.booleans()):
            return draw(mutated(wholes, tokens))
        made = [dict(row) for row in broken]
        for _ in range(draw(st.integers(1, 2))):
            row = draw(st.sampled_from(made))
            row[draw(st.sampled_from(sorted(row) or ["kind"]))] = draw(JUNK)
        return b"".join(json.dumps(row).encode() + b"\n" for row in made)

    commands = [["html", "report"], ["badge", "report"], ["diff", "report", "report"],
                ["merge", "report", "-o", "whole"], ["expect", "report"],
                ["html", "report", "--against", "report"]]  # fmt: skip

    def check(one):
        data, line = one
        path.write_bytes(data)
        ended_well(cli.main, line, "trivet-conformance")

    fuzz(amount, st.tuples(reports_(), st.sampled_from(commands)), check)


RUNS = [
    ["--junit", "folder"],
    ["--junit", "file/x"],
    ["--junit", "a" * 300],
    ["--dir", "file/x"],
    ["--dir", "loop"],
    ["--dir", "a" * 300],
    ["--limit", "nan"],
    ["--limit", "-1"],
    ["--limit", "0"],
    ["--seed", "9" * 30],
    ["--seed", "-1"],
    ["--waivers", "loop"],
    ["--waivers", "bad.toml"],
    ["--resume", "--dir", "empty"],
    ["--resume", "--dir", "cut"],
    ["--case", "a" * 5000],
    ["--op", "x" * 5000],
]


@pytest.mark.parametrize("options", RUNS, ids=lambda words: " ".join(words)[:24])
def test_a_run_with_bad_options_says_which(reports, options):
    result = ended_well(cli.main, [*RUN_ONE, *options], "trivet-conformance")
    if "--seed" not in options:
        assert result.exit_code, result.output


@pytest.mark.parametrize("line", [["html", "\udcff"], ["run", "--plugin", "./loop"], ["nonsense"]])
def test_as_a_process_it_is_one_message_too(reports, line):
    done = subprocess.run(
        [sys.executable, "-m", "trivet_conformance.cli.program", *line],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode in {1, 2}
    assert done.stdout == b""
    assert done.stderr.strip()
    assert b"Traceback" not in done.stderr
