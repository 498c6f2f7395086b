from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzzing import HUGE, ODD, SECONDS, amounts, fuzz, text_without_nul
from hostile_program import ended_well
from stand_ins import OPS
from trivet import plugins
from trivet.cli.program import program

SITES = {
    "norm": {"op": "rms_norm", "facts": {"dtype": "float32", "hidden": 64, "tokens": [1, 8]}},
    "act": {"op": "silu_and_mul", "facts": {"tokens": "rows"}},
}
FILES = ["sites.json", "sites.toml", "good.lock", "bad.lock", "folder", "loop", "absent", "/", ".",
         "", "deep/er/file", "/dev/null", "a" * 300, "sites.json/x", "\udcff.json"]  # fmt: skip
OPERATORS = [*OPS, "rms_norm_", "rms_norm_out", "rms_norm@1", "rms_norm@9", "rms_nrm", "*", "_out"]
VALUES = ["1", "64", "0", "-1", "1..8", "8..1", "..", "1..", "true", "none", "[]", "float32",
          "bfloat16", "x,weight", "0.5", "NHD", "x.dtype", "1e999", "nan", "9" * 5000]  # fmt: skip
NUMBERS = ["1", "2", "8", "64", "0", "-1", "x", "9" * 18, "9" * 30, "9" * 5000, "٣"]
SHAPES = ["2x64", "64", "0x64", "2x3x64", "1x1x1x1x1x1", "x", "2x", "99999999999x99999999999x9",
          "9" * 30, "9" * 5000, "1x" * 500 + "1", "٣x٣"]  # fmt: skip
DTYPES = ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn", "quint8", "W=int64",
          "dtype=float32", "float", "bits8", "=", "float4_e2m1fn_x2"]  # fmt: skip
MODES = ["eager", "compiled", "captured", "exported"]
DEVICES = ["acme", "auto", "reference", "acme:1", "reference:0", "cpu", "acme:" + "9" * 30]


def pick(*lists):
    """Mostly something sensible, sometimes what is odd or has nothing to do with it."""
    odd = st.sampled_from([*ODD, *HUGE]) | text_without_nul(max_size=8)
    sensible = [one for some in lists for one in some]
    return st.one_of(*[st.sampled_from(sensible)] * 6, odd) if sensible else odd


def option(name, *values):
    """An option with a value; of two parts when there are two."""
    return st.tuples(st.just(name), st.tuples(*values).map("=".join)).map(list)


def flags(*names):
    return st.sampled_from(names).map(lambda name: [name])


def of_operator(name):
    """Options of ``explain`` and ``ab`` that name what the operator has."""
    op = OPS[name] if name in OPS else OPS["rms_norm"]
    inner = [f"{t}.{a}" for t in op.tensors[:2] for a in ("dtype", "rank", "contiguous", "rows")]
    names = [*op.where, *op.parameters, "dtype", "contiguous"]
    size = option("--size", pick([*op.where, *op.scalars]), pick(NUMBERS))
    fact = option("--fact", pick(names, names, inner), pick(VALUES))
    shape = option("--shape", pick([*op.tensors]), pick(SHAPES))
    kind = option("--dtype", pick(DTYPES))
    explain = [size, size, fact, fact, shape, kind, option("--mode", pick(MODES)),
               flags("--source")]  # fmt: skip
    ab = [size, kind, option("--threads", pick(["1", "0", "-1"])), flags("--no-oracle")]
    return {"explain": explain, "ab": ab, "ops": []}


OTHERS = {
    "plan": [option("--mode", pick(MODES)), option("--lock", pick(FILES)),
             option("--save", pick(FILES))],
    "doctor": [option("--seconds", pick(["1", "0", "-1", "nan"]))],
}  # fmt: skip
COMMON = [option("--device", pick(DEVICES)), flags("--json", "--help", "--"),
          option("--nonsense", pick()), pick().map(lambda one: [one])]  # fmt: skip
PAIRS = ["acme/vec,reference", "reference,reference", "reference,reference", "acme/vec", ",",
         "a,b,c", "acme/small,acme/big"]  # fmt: skip


@st.composite
def lines(draw):
    """A line of some command: its argument, some of its options, and now and then junk."""
    name = draw(st.sampled_from(["explain", "explain", "explain", "ab", "ops", "plan", "plan",
                                 "doctor"]))  # fmt: skip
    subject = draw(pick(FILES) if name == "plan" else pick(OPERATORS))
    options = OTHERS[name] if name in OTHERS else of_operator(subject)[name]
    parts = draw(st.lists(st.one_of(*options, *options, *COMMON), max_size=5))
    if name == "ab":  # the real thing is measured: a short round suffices
        subject = f"{subject}={draw(pick(PAIRS))}"
        parts.append(["--rounds", draw(st.sampled_from(["1", "1", "2", "0", "-1", "x", "1e3"]))])
    if name != "doctor" and draw(st.integers(0, 9)):
        parts.insert(draw(st.integers(0, len(parts))), [subject])
    words = [word for part in parts for word in part]
    return [name if draw(st.integers(0, 19)) else draw(pick()), *words]


@pytest.fixture
def files():
    """The files that lines name; all but the valid ones are wrong in some way."""
    here = Path.cwd()
    (here / "sites.json").write_text(json.dumps(SITES))
    (here / "sites.toml").write_text('[a]\nop = "rms_norm"\n')
    ended_well(program, ["plan", "sites.json", "--save", "good.lock"], "trivet")
    (here / "bad.lock").write_bytes(b"\xff{")
    (here / "folder").mkdir()
    (here / "loop").symlink_to("loop")
    before = {p.name: p.read_bytes() for p in here.iterdir() if p.is_file()}

    def restore():
        for name, content in before.items():
            (here / name).write_bytes(content)

    return restore


@amounts("command lines")
def test_a_command_line_is_answered_or_refused_in_one_message(amount, acme, files):
    def check(line):
        plugins.reset()
        ended_well(program, line, "trivet")
        files()

    fuzz(amount, lines(), check)


PROCESSES = [
    (["explain", "rms_norm", "--size", "hidden=" + "9" * 5000], 2),
    (["explain", "\udcff"], 2),
    (["plan", "/"], 2),
    (["plan", "sites.json", "--save", "/"], 2),
    (["plan", "loop"], 2),
    (["nonsense"], 2),
    (["doctor", "--seconds", "nan"], 2),
]


@pytest.mark.parametrize(("line", "code"), PROCESSES, ids=lambda value: str(value)[:30])
def test_as_a_process_it_is_one_message_too(acme, files, line, code):
    clean = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TRIVET_ALLOW": "acme"}
    done = subprocess.run(
        [sys.executable, "-m", "trivet", *line],
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    assert done.stderr.strip()
