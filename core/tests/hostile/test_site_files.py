from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from fuzzing import HUGE, NESTED, ODD, amounts, fuzz, mutated, mutated_document
from hostile_program import ended_well
from trivet import plugins
from trivet.cli.program import program

WHOLE = {
    "norm": {"op": "rms_norm", "facts": {"dtype": "float32", "hidden": 64, "tokens": [1, 8]}},
    "act": {"op": "silu_and_mul", "facts": {"tokens": "rows", "contiguous": True}},
    "up": {"op": "linear_packed", "facts": {"dtype": "float32", "bias": None}},
}
JSON = b'{"norm": {"op": "rms_norm", "facts": {"hidden": 64, "tokens": [1, null]}}}'
TOML = b'[norm]\nop = "rms_norm"\n[norm.facts]\nhidden = 64\ntokens = [1, 8]\ndtype = "float32"\n'
TOKENS = [b"\0", b"\xff", b"\xef\xbb\xbf", b"null", b"nan", b"1979-05-27", b"[8, 1]", b"{}", b"-1",
          *[t.encode() for t in (*HUGE, *NESTED, *ODD[:14])]]  # fmt: skip


def planned(name: str, data: bytes) -> None:
    plugins.reset()
    Path(name).write_bytes(data)
    ended_well(program, ["plan", name], "trivet")


@amounts("site files", parts=2)
def test_a_damaged_file_is_planned_or_refused(amount, acme):
    of = {"a.json": JSON, "a.toml": TOML}
    inputs = st.sampled_from(list(of)).flatmap(
        lambda name: st.tuples(st.just(name), mutated([of[name]], TOKENS))
    )
    fuzz(amount, inputs, lambda one: planned(*one))


@amounts("site files", parts=2)
def test_a_document_of_odd_values_is_planned_or_refused(amount, acme):
    def check(document):
        planned("a.json", json.dumps(document).encode())

    fuzz(amount, mutated_document(WHOLE), check)
