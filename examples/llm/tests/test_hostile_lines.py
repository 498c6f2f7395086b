"""Command lines of the engine with bad paths, numbers and files: an answer, or one message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzzing import HUGE, ODD, SECONDS, amounts, fuzz, text_without_nul
from hostile_program import ended_well
from llm import cli

NUMBERS = ["1", "2", "0", "-1", "0.5", "nan", "inf", "-inf", "1e999", "x", "9" * 18, "9" * 30]
PATHS = ["tiny.gguf", "tiny.gguf", "folder", "broken.gguf", "empty.gguf", "absent", "loop",
         "/dev/null", "a" * 300, "lines.jsonl", "tiny.gguf/x", "config", "\udcff"]  # fmt: skip
SMALL = ["--max-tokens", "--batch", "--block-size", "--cache-tokens", "--budget", "--threads"]
FREE = ["--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--repetition-penalty",
        "--presence-penalty", "--frequency-penalty"]  # fmt: skip
TEXT = st.sampled_from([o for o in ODD if len(o) < 400]) | text_without_nul(max_size=8)


def option(names, values):
    return st.tuples(st.sampled_from(names), values).map(list)


OPTIONS = [
    option(FREE, st.sampled_from([*NUMBERS, *HUGE])),
    option(FREE, st.sampled_from([*NUMBERS, *HUGE])),
    option(SMALL, st.sampled_from(["1", "2", "8", "0", "-1", "x", "nan", "9" * 30])),
    option(["--kv-cache-gib"], st.sampled_from(["0.001", "1e-9", "0", *NUMBERS[5:]])),
    option(["--preempt"], st.sampled_from(["swap", "recompute", "x"])),
    option(["--model", "--batch-file", "--output", "--trace"], st.sampled_from(PATHS)),
    option(["--prompt", "--stop", "--device"], TEXT),
    option(["--dtype"], st.sampled_from(["float32", "bfloat16", "int8", "x"])),
    st.sampled_from(["--raw", "--strict", "--observe", "--json", "--nonsense", "x", "--"]).map(
        lambda one: [one]
    ),
]


@st.composite
def lines(draw):
    """A line that answers with the tiny model, unless one of its options forbids it."""
    parts = draw(st.lists(st.one_of(*OPTIONS), max_size=4))
    first = ["--model", draw(st.sampled_from(PATHS[:1] * 30 + PATHS)), "--device", "reference"]
    return [*first, "--max-tokens", "1", *(word for part in parts for word in part)]


@pytest.fixture
def files(tiny, directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = tiny.write(Path("tiny.gguf")).read_bytes()
    Path("broken.gguf").write_bytes(whole[: len(whole) // 2])
    Path("empty.gguf").touch()
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("lines.jsonl").write_text('{"prompt": "a"}\n{"prompt": 5}\n[]\n{\n')
    Path("config").mkdir()
    Path("config/config.json").write_text("[" * 5000)
    before = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}

    def restore():
        for path, content in before.items():
            path.write_bytes(content)

    return restore


@amounts("command lines of the engine")
def test_a_command_line_is_answered_or_refused_in_one_message(amount, files):
    def check(line):
        ended_well(cli.main, line, "llm", streams=True)
        files()

    fuzz(amount, lines(), check)


@pytest.mark.parametrize("text", ["notes", "notes\nmore", '{"a": 1}', "{}\n{", "\n"])
def test_a_file_that_is_no_output_keeps_every_byte(files, text):
    Path("notes").write_text(text)
    line = ["--model", "tiny.gguf", "--batch-file", "lines.jsonl", "--output", "notes"]
    assert ended_well(cli.main, line, "llm").exit_code == 2
    assert Path("notes").read_text() == text


@pytest.mark.parametrize("line", [["--model", "loop"], ["--model", "broken.gguf"], ["nonsense"]])
def test_as_a_process_it_is_one_message_too(files, line):
    done = subprocess.run(
        [sys.executable, str(Path(cli.__file__).parent), *line],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.strip()
    assert b"Traceback" not in done.stderr
