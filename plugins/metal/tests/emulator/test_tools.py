"""The translation, the cache, the search for a compiler and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import trivet_metal_emulator as emulator
from trivet_metal_emulator import cache, compilers
from trivet_metal_emulator.commands import program
from trivet_metal_emulator.dwarf import LineTable
from trivet_metal_emulator.tokens import closing, tokenise
from trivet_metal_emulator.translation import translate

SCALE = """#include <metal_stdlib>
using namespace metal;
#define INSTANTIATE(T) template [[host_name("scale_" #T)]] [[kernel]] decltype(scale<T>) scale<T>;
template <typename T>
[[kernel]] void scale(device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
                      constant float& factor [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = T(float(x[i]) * factor);
}
INSTANTIATE(float)
INSTANTIATE(half)
"""


def _body(text: str) -> str:
    return translate(text, "t.metal", {}).body


def test_tokens_give_the_text_back_and_know_their_lines():
    text = 'int a = 1; // \n# 7 "other.h"\nfloat b = .5e-3f; char c = \'"\'; a >>= b<c>>1;\n'
    tokens = tokenise(text, "one.metal")
    assert tokens.text() == text
    places = {token.text: (token.file, token.line) for token in tokens.solid}
    assert places["a"] == ("other.h", 7)
    assert places["int"] == ("one.metal", 1)
    assert [t.text for t in tokens.solid if t.kind == "number"] == ["1", ".5e-3f", "1"]


def test_brackets_of_templates_are_matched():
    tokens = tokenise("a<b<c, (1 > 2)>, sizeof(T) < 8> x;", "t")
    assert tokens.peek(closing(tokens, 1) + 1) == "x"


@pytest.mark.parametrize("text", ["void f() {", "int a[3;", "kernel void f(device float* x { }"])
def test_a_bracket_that_is_left_open_is_an_error_with_its_line(text):
    with pytest.raises(emulator.CompileError) as caught:
        emulator.compile_shader(f"\n\n{text}\n", name="open.metal")
    assert caught.value.findings[0].line in {3, 4}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("float a = 1.0 + 2e3 + 1.5f + 7;", "float a = 1.0f + 2e3f + 1.5f + 7;"),
        ("half a = 1.5h;", "half a = ((half)1.5f);"),
        ("x = metal::float2(1, y);", "x = trivet_msl::make<metal::float2>(1, y);"),
        ("float4x4 m; int float_ = 0x1e3;", "float4x4 m; int float_ = 0x1e3;"),
        ("device float4 (*p)[4];", "device float4 (*p)[4];"),
        ("f(sizeof(float4));", "f(sizeof(float4));"),
        ("threadgroup float* p = q;", "threadgroup float* p = q;"),
        ("#pragma METAL internals : enable\nint x;", " \nint x;"),
    ],
)
def test_what_is_rewritten_and_what_is_not(text, wanted):
    assert _body(text) == wanted


def test_lines_stay_where_they_are():
    text = "void f() {\n  threadgroup float a[3],\n\n    b;\n  int c;\n}\n"
    assert _body(text).count("\n") == text.count("\n")
    assert _body(text).splitlines()[4].strip() == "int c;"


def test_overloads_for_several_memories_become_one():
    text = (
        "struct S { float v; float get() const device { return v; }\n"
        "  float get() const thread { return v; } };\n"
        "float f(device float* p) { return *p; }\nfloat f(threadgroup float* p) { return *p; }\n"
    )
    body = _body(text)
    assert body.count("get()") == 1
    assert body.count("float f(") == 1


def test_kernels_and_their_parameters():
    text = (
        "template <typename T> [[kernel]] void scale("
        "device const T* x [[buffer(0)]], device T* out, "
        "constant float& factor [[buffer(4)]], uint i [[thread_position_in_grid]]) {}\n"
        'template [[host_name("a" "b")]] [[kernel]] decltype(scale<float>) scale<float>;\n'
        "kernel void plain(device int* y [[buffer(0)]]) {}\n"
    )
    plain, scale = translate(text, "t", {}).kernels
    assert (plain.name, plain.line) == ("plain", 3)
    assert (scale.name, scale.expression.replace(" ", "")) == ("ab", "scale<float>")
    assert [(p.name, p.kind, p.index, p.space, p.reference) for p in scale.parameters] == [
        ("x", "buffer", 0, "device", False),
        ("out", "buffer", 1, "device", False),
        ("factor", "buffer", 4, "constant", True),
        ("i", "position", -1, "", False),
    ]


def test_a_library_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    first = emulator.compile_shader(SCALE, name="scale.metal")
    files = {path: path.stat().st_ino for path in tmp_path.glob("*.so")}
    again = emulator.compile_shader(SCALE, name="scale.metal")
    assert again.path == first.path
    assert {path: path.stat().st_ino for path in tmp_path.glob("*.so")} == files
    assert not list(tmp_path.glob(".*"))  # nothing half written is left
    other = emulator.compile_shader(SCALE + "// changed\n", name="scale.metal", lint=False)
    assert other.path != first.path


@pytest.mark.parametrize("suffix", [".json", ".so"])
def test_a_damaged_library_is_built_again(tmp_path, monkeypatch, suffix):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    path = emulator.compile_shader(SCALE, name="scale.metal").path
    good = path.read_bytes()
    damaged = path.with_suffix(suffix)
    cut = damaged.read_bytes()[:40]
    damaged.unlink()  # the file that is loaded stays as it is
    damaged.write_bytes(cut)
    assert emulator.compile_shader(SCALE, name="scale.metal").path == path
    assert len(path.read_bytes()) == len(good)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(emulator.EmulatorError, match=cache.VARIABLE):
        emulator.compile_shader(SCALE)


def test_without_a_compiler_the_reason_says_what_was_tried(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(compilers.VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reason = compilers.compiler()
    assert "no clang++ of 17 or newer on PATH" in str(reason)
    assert "ziglang is not installed" in str(reason)
    with pytest.raises(emulator.NoCompiler, match="pip install"):
        emulator.compile_shader(SCALE)


@pytest.mark.parametrize(
    ("said", "reason"),
    [("Debian clang version 14.0.6", "needs 17"), ("g++ 12.2", "not a clang")],
)
def test_a_compiler_that_is_too_old_or_another_is_refused(monkeypatch, tmp_path, said, reason):
    fake = tmp_path / "fake++"
    fake.write_text(f"#!/bin/sh\necho '{said}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv(compilers.VARIABLE, str(fake))
    assert reason in str(compilers.compiler())


def test_addresses_have_lines_without_other_tools():
    library = emulator.compile_shader(SCALE, name="scale.metal")
    table = LineTable.read(library.path)
    lines = {place[1] for place in table.places if place and place[0].endswith("scale.metal")}
    assert 7 in lines  # the statement of the kernel
    assert table.place(1 << 60) is None


def _command(*words: str):
    return CliRunner().invoke(program, list(words))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.metal"
    path.write_text(SCALE)
    return str(path)


RUN = ("-a", "randn:64:f16", "-a", "nan:64:f16", "-a", "float:2", "--threads", "64", "--json")


def test_the_command_runs_a_kernel(file, tmp_path):
    saved = tmp_path / "out.npy"
    done = _command("run", file, "scale_half", *RUN, "--save", f"1={saved}")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["ok"]
    assert told["checked"]
    assert told["stats"]["bytes_covered"] == 128
    assert told["buffers"][1]["not_finite"] == 0
    assert saved.stat().st_size > 128


@pytest.mark.parametrize(
    "words",
    [
        ("--save", "9=o.npy"), ("--save", "zz"), ("--save", "2=o.npy"),
        ("--save", "1=/no/such/folder/o.npy"), ("-a", "zeros:99999999999999"),
        ("-a", "arange:-4:f32"), ("-a", f"int32:{2**80}"),
    ],
)  # fmt: skip
def test_the_command_refuses_in_one_message(file, words):
    done = _command("run", file, "scale_half", *RUN, *words)
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert not json.loads(done.stdout)["ok"]


def test_the_command_is_a_module_too(file):
    words = [sys.executable, "-m", "trivet_metal_emulator", "list", file]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.stdout.startswith("scale_float: "), done.stderr


def test_the_command_tells_a_fault(file):
    done = _command("run", file, "scale_half", *RUN[:-3], "--threads", "65", "--json")
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert [(one["kind"], one["line"]) for one in told["findings"]] == [("out-of-bounds", 7)]


def test_the_command_lists_lints_and_looks_around(file, tmp_path):
    done = _command("list", file)
    assert (
        done.stdout.splitlines()[0]
        == "scale_float: device x, device out, constant factor (one value)"
    )
    assert _command("lint", file).exit_code == 0
    bad = tmp_path / "bad.metal"
    bad.write_text(SCALE.replace("T(float(x[i]) * factor)", "T(double(x[i]))"))
    done = _command("lint", str(bad), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["findings"][0]["kind"] == "double"
    assert _command("run", file, "nothing").exit_code == 2
    assert _command("doctor").exit_code == 0


def test_the_emulator_imports_nothing_of_trivet():
    code = (
        "import sys, trivet_metal_emulator\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('trivet', 'trivet_metal')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_threads_may_launch_the_same_library():
    from concurrent.futures import ThreadPoolExecutor

    library = emulator.compile_shader(SCALE, name="scale.metal")

    def one(k):
        x, out = torch.full((100,), float(k)), torch.zeros(100)
        for _ in range(20):
            library.scale_float(x, out, 2.0)
        return out

    with ThreadPoolExecutor(4) as pool:
        for k, out in enumerate(pool.map(one, range(8))):
            assert torch.equal(out, torch.full((100,), 2.0 * k))


def test_the_example_of_the_page_runs(capsys):
    page = Path(__file__).resolve().parents[4] / "docs/how-to/run-metal-kernels.md"
    block = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
    (text,) = block.findall(page.read_text(encoding="utf-8"))
    space: dict[str, object] = {}
    exec(compile(text, "page", "exec"), space)  # noqa: S102 - the page's own text
    assert capsys.readouterr().out == "6000 2000\n"
    assert space["out"].tolist() == [2.0] * 1000


def test_files_of_the_runtime_are_shipped():
    runtime = Path(emulator.__file__).parent / "runtime"
    assert {"scheduler.cpp", "checker.cpp", "conversions.cpp"} <= {
        p.name for p in runtime.iterdir()
    }
