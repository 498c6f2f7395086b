from __future__ import annotations

import contextlib
import itertools
import logging
import os
import types

import pytest
import torch
from hypothesis import strategies as st

import trivet
from fuzzing import amounts, fuzz
from hostile_program import ended_well
from stand_ins import OPS, make_device
from trivet import plugins
from trivet.catalogue import operators
from trivet.cli.program import program
from trivet.contracts import implements
from trivet.errors import ContractBroken, DomainError, PluginError, TrivetError
from trivet.plugins import Discovery
from trivet.plugins.isolate import isolated_report
from trivet.plugins.offer import collect
from trivet.plugins.resolve import resolve
from trivet.settings import Settings

# --- answers of hooks ------------------------------------------------------------------------

HEAD = """
import sys, types
import torch
from dataclasses import replace
from trivet.contracts import DeviceInfo, Operator, divisible, dtype, implements, one_of, operator

class Panic(BaseException): pass
class Mute(Exception):
    def __str__(self): raise Panic
class Odd:
    def __repr__(self): raise Panic
    def __getattr__(self, name): raise Panic(name)
    def __eq__(self, other): raise Panic
    __hash__ = None
class List(list):
    def __iter__(self): raise Panic
class Text(str):
    def startswith(self, *a): raise Panic
    def __eq__(self, other): raise Panic
    __hash__ = str.__hash__
class Info(DeviceInfo):
    @property
    def torch(self): raise Panic
def forever():
    while True: yield good
def good_(x): return x
@implements("silu_and_mul@1", name="good")
def good(x):
    return x
class Whole:
    def f(self, x): return x
def drawn(x=None, *args, **kwargs): return x
async def waits(x): return x
def gives(x): yield x
def info(**words):
    return DeviceInfo("bad", **words)
def marked(function, *args, **words):
    return implements(*args, **words)(function)
def fresh():
    def good(x): return x
    return good
"""
WORDS = [
    "1",
    "-1",
    "1.5",
    "None",
    "True",
    "''",
    "'bad'",
    "'a b'",
    "Odd()",
    "[]",
    "{}",
    "object()",
    "Text('bad')",
    "'meta'",
    "torch.float32",
    "10**30",
    "float('nan')",
    "()",
    "b'x'",
    "int",
    "{'l2': 'x'}",
    "[1]",
    "['x']",
    "torch.zeros(2)",
    "lambda: 1",
    "'\\ud800'",
    "Panic()",
]
FIELDS = ["index", "torch_type", "name", "arch", "features", "dtypes", "cores", "subgroup_width",
          "shared_bytes", "cache_bytes", "memory_bytes", "execution", "notes"]  # fmt: skip
CLAIMS = [
    "target",
    "name",
    "domain",
    "requires",
    "sources",
    "graph_safe",
    "accumulates_in",
    "checks",
    "fuses",
    "prepare",
    "unpack",
    "opaque",
    "prepare_step",
    "workspace_bytes",
]
FUNCTIONS = [
    "good",
    "fresh()",
    "good_",
    "lambda x: x",
    "Whole().f",
    "Whole",
    "drawn",
    "waits",
    "gives",
    "len",
    "torch.relu",
    "Odd()",
    "None",
    "types.SimpleNamespace()",
    "print",
]
ACTS = ["raise Mute", "raise Panic", "sys.exit(3)", "raise StopIteration", "raise MemoryError",
        "sys.stdout.write('noise')", "print('noise')", "raise RecursionError", "1 / 0",
        "import os; os.fork() or os._exit(0)", "sys.stdout.close()", "good(*[1] * 9)",
        "raise GeneratorExit", "sys.modules[__name__] = None", "raise ExceptionGroup('', [Mute()])",
        "import trivet; trivet.device('bad')", "torch.set_default_dtype(1)", "DeviceInfo('')",
        "return forever()", "return Odd()", "return List([good])"]  # fmt: skip


@st.composite
def expressions(draw):
    """Something that a hook may return, as Python text: nearly right, or anything at all."""
    word = draw(st.sampled_from(WORDS))
    field, claim = draw(st.sampled_from(FIELDS)), draw(st.sampled_from(CLAIMS))
    function = draw(st.sampled_from(FUNCTIONS))
    words = {"target": "'silu_and_mul@1'", "name": "'good'"} | {claim: word}
    given = ", ".join(f"{key}={value}" for key, value in words.items())
    return draw(
        st.sampled_from(
            [
                word,
                f"[{word}]",
                f"[info({field}={word})]",
                f"[info(), info({field}={word})]",
                "[info()]",
                f"[Info('bad', {field}={word})]",
                f"[replace(info(), {field}={word})]",
                f"[{function}, good]",
                f"[marked({function}, {given}), good]",
                f"{{{word}: {draw(st.sampled_from(WORDS))}}}",
                f"{{'block_size': ({word}, {draw(st.sampled_from(WORDS))})}}",
                f"{{'block_size': ({word}, 'a reason')}}",
            ]
        )
    )


LINES = ["doctor --json", "doctor", "ops silu_and_mul --device bad",
         "explain silu_and_mul --device bad --source"]  # fmt: skip

HOOKS = ["trivet_probe()", "trivet_devices()", "trivet_operators()",
         "trivet_implementations(device)", "trivet_defaults(device)", "trivet_memory(device)",
         "trivet_collectives(device)", "trivet_prob()", "trivet_devices(x)",
         "trivet_implementations(*device)", "trivet_defaults(device=1)"]  # fmt: skip


@st.composite
def modules(draw):
    """The text of a plugin that has a device and then answers one to three hooks with nonsense."""
    hooks = {"trivet_devices()": "return [info()]"}
    for _ in range(draw(st.integers(1, 3))):
        hook = draw(st.sampled_from(HOOKS[:7] * 3 + HOOKS))
        body = f"return {draw(expressions())}"
        hooks[hook] = body if draw(st.integers(0, 4)) else draw(st.sampled_from(ACTS))
    return HEAD + "".join(f"def {name}:\n    {body}\n" for name, body in hooks.items())


@amounts("lying plugins", parts=2)
def test_nonsense_of_hooks_is_a_line_or_a_typed_error(amount, dists, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, "trivet")
    dists.add("bad-dist", "bad", None, value="fake_bad")
    dists.add_good("good")
    parent = os.getpid()

    def check(source):
        module = types.ModuleType("fake_bad")
        monkeypatch.setitem(__import__("sys").modules, "fake_bad", module)
        exec(compile(source, "fake_bad.py", "exec"), vars(module))  # noqa: S102 - as an import does
        plugins.reset()
        discovery = plugins.discover(Settings())
        with contextlib.suppress(TrivetError):
            used(trivet.device("bad"))
        for line in LINES:
            ended_well(program, line.split(), "trivet")
        assert os.getpid() == parent
        line = discovery.line("bad")
        assert line.usable or ((line.reason and line.fix) or not line.faulty), line
        assert str(discovery.report()).encode()
        discovery.report().to_json()
        good = collect(discovery, resolve("good", discovery), operators())
        assert [i.provider for i in good.implementations] == ["good/plain"]

    fuzz(amount, modules(), check)


def used(dev) -> None:
    """What an engine does with a device that was given to it, short of calling a kernel."""
    for refusal in dev.offer.refusals:
        assert str(refusal)
        assert refusal.error.what
    for step in (
        lambda: dev.bind("silu_and_mul"),
        lambda: dev.plan({"a": ("silu_and_mul", {"dtype": "float32"})}).at(tokens=1),
        lambda: [dev.explain(name) for name in dev.operators],
        lambda: dev.memory.info().to_json(),
        lambda: dev.memory.empty((2, 2), torch.float32),
        lambda: dev.collectives,
        dev.info.to_json,
    ):
        with contextlib.suppress(TrivetError):
            step()


# --- kernels ---------------------------------------------------------------------------------

CHANGES = {
    "shape": lambda y: y[..., :-1],
    "rank": lambda y: y.unsqueeze(0),
    "flat": lambda y: y.flatten(),
    "dtype": lambda y: y.double(),
    "integers": lambda y: y.int(),
    "meta": lambda y: y.to("meta"),
    "a list": lambda y: [y],
    "a pair": lambda y: (y, y),
    "nothing": lambda y: None,
    "a number": lambda y: 1.5,
    "sparse": lambda y: y.to_sparse(),
    "numpy": lambda y: y.numpy(),
    "text": str,
}
INPUTS = {
    "an input": lambda x: x,
    "a view": lambda x: x[..., : x.shape[-1] // 2],
    "written": lambda x: x.add_(1)[..., : x.shape[-1] // 2].clone(),
    "resized": lambda x: x.resize_(1).clone(),
}


@st.composite
def lies(draw):
    """How a kernel's result differs from the right one, and what it is called with."""
    kind = draw(st.sampled_from([*CHANGES, *INPUTS]))
    lead = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    width = draw(st.sampled_from([2, 4, 8]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    return kind, (*lead, 2 * width), dtype


@amounts("lying plugins", parts=2)
def test_under_check_a_lie_is_a_broken_contract(amount, monkeypatch):
    monkeypatch.setenv("TRIVET_CHECK", "1")
    told = itertools.count()

    @implements("silu_and_mul@1", name="liar")
    def liar(x):
        next(told)
        if lie in CHANGES:
            return CHANGES[lie](OPS["silu_and_mul"].reference(x))
        return INPUTS[lie](x)

    liar.__qualname__ = "liar"
    lie = ""
    call = make_device(liar).bind("silu_and_mul")

    def check(one):
        nonlocal lie
        lie, shape, dtype = one
        if dtype is torch.bfloat16 and lie == "numpy":
            lie = "text"
        before = next(told)
        with pytest.raises(ContractBroken) as caught:
            call(torch.ones(shape, dtype=dtype))
        assert caught.value.kind
        assert next(told) > before + 1

    fuzz(amount, lies(), check)


def test_without_check_a_lie_is_the_engines_result_and_no_error_of_ours():
    @implements("silu_and_mul@1", name="liar")
    def liar(x):
        return "nonsense"

    liar.__qualname__ = "liar"
    assert make_device(liar).bind("silu_and_mul")(torch.ones(1, 4)) == "nonsense"


# --- what ends a process ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "def trivet_probe():\n    ", "def trivet_devices():\n    "])
def test_an_interrupt_passes(dists, place):
    dists.add("bad-dist", "bad", f"{place}raise KeyboardInterrupt\n")
    discovery = Discovery(Settings())
    with pytest.raises(KeyboardInterrupt):
        discovery.devices("bad")
    assert discovery.line("bad").usable  # nothing is known of it yet, and it may be asked again
    with contextlib.suppress(KeyboardInterrupt):
        discovery.devices("bad")


ENDS = {
    "leaves": ("import os; os._exit(7)", "status 7"),
    "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "aborts": ("import os; os.abort()", "SIGABRT"),
    "a child that leaves": ("import os; os.fork() or os._exit(7)", ""),
    "two come back": ("import os; os.fork()", ""),
}


@pytest.mark.parametrize("name", ENDS)
def test_in_a_process_of_its_own_an_end_is_a_line(dists, name, monkeypatch):
    act, text = ENDS[name]
    dists.add("bad-dist", "bad", f"{act}\n{HEAD}\ndef trivet_devices():\n    return [info()]\n")
    line = isolated_report(30.0)["bad"]
    assert line.faulty is bool(text), line
    assert text in line.reason


def test_a_typed_error_of_a_kernel_stays_what_it_is():
    @implements("silu_and_mul@1", name="refuses")
    def refuses(x):
        raise DomainError("no", fix="other")

    refuses.__qualname__ = "refuses"
    with pytest.raises(DomainError, match="no"):
        make_device(refuses).bind("silu_and_mul")(torch.ones(1, 4))
    assert not issubclass(DomainError, PluginError)
