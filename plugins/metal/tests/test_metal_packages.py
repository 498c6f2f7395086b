from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from trivet.errors import DeclarationError, DomainError, PluginBroken
from trivet_metal import packages
from trivet_metal.backend import backend_of, emulated
from trivet_metal.families import Limits
from trivet_metal.operators.norm import RMS_NORM
from trivet_metal.packages import Argument, Package, text_of


def test_arguments_are_declared_in_words():
    assert Argument.parse("x: in T*") == Argument("x", "T", "in")
    assert Argument.parse("rows: uint32") == Argument("rows", "uint32")
    for wrong in ("x", "x: T*", "n: uint64", "x: in T", "n: int32*"):
        with pytest.raises(DeclarationError, match="declares no argument"):
            Argument.parse(wrong)


def test_casts_follow_from_the_declared_types():
    kernel = RMS_NORM.at(T=torch.float16, W=torch.bfloat16)
    assert kernel.name == "rms_norm_half_bfloat"
    assert kernel is RMS_NORM.at(T=torch.float16, W=torch.bfloat16)
    names = [kernel.arguments[i].name for i in kernel._casts]
    assert names == ["width", "variance", "in_float32"]
    assert set(kernel._casts.values()) == {"int32"}


def test_no_kernel_for_a_dtype_that_metal_does_not_have():
    with pytest.raises(DomainError, match=r"T=torch\.float64"):
        RMS_NORM.at(T=torch.float64, W=torch.float32)


def test_a_file_that_is_included_stands_in_its_place_with_its_own_lines(tmp_path):
    (tmp_path / "in.h").write_text("// inner\nint f();\n")
    (tmp_path / "k.metal").write_text('// outer\n#include "in.h"\n#include <metal_stdlib>\n')
    expected = '// outer\n#line 1 "in.h"\n// inner\nint f();\n#line 3 "k.metal"\n'
    assert text_of(tmp_path / "k.metal") == expected + "#include <metal_stdlib>\n"


def test_tensors_of_another_device_have_no_backend():
    with pytest.raises(PluginBroken, match="not 'meta'"):
        backend_of("meta")


@pytest.mark.parametrize(
    ("text", "check", "chip"),
    [("", True, "m1"), ("1", True, "m1"), ("fast", False, "m1"), ("Fast, M3", False, "m3")],
)
def test_the_variable_says_how_to_emulate(text, check, chip):
    assert emulated.chosen({emulated.VARIABLE: text}) == emulated.Chosen(check, chip)


@pytest.mark.parametrize("text", ["quick", "m1,m2", "a14"])
def test_a_word_that_means_nothing_is_refused(text):
    from trivet.errors import ConfigError

    with pytest.raises(ConfigError, match=r"TRIVET_METAL_EMULATOR"):
        emulated.chosen({emulated.VARIABLE: text})


class Emulated:
    """What a launch needs, without a compiler: it records what it is given."""

    max_threads_per_threadgroup = 512
    static_thread_group_memory_length = 0

    def __init__(self):
        self.calls = []

    def __call__(self, *args, **launch):
        self.calls.append((args, launch))


@pytest.fixture
def kernel(monkeypatch):
    package = Package(
        "k.metal", "k_{T}", ("x: in T*", "y: out T*", "n: uint32", "step: int64", "a: float")
    )
    made, function = package.at(T=torch.float32), Emulated()

    class Backend:
        def limits(self):
            return Limits()

        def launch(self, library, function, args, launch, gate):
            function(*args, **launch, gate=gate)

    monkeypatch.setattr(packages, "backend_of", lambda where: Backend())
    library = SimpleNamespace(k_float=function)
    monkeypatch.setattr(packages, "library_of", lambda *where: library)
    return made, function


def test_a_launch_has_numbers_casts_and_the_bytes_that_must_be_written(kernel):
    made, function = kernel
    x, y = torch.zeros(6), torch.zeros(6)
    made(x, y, 6, 2**40, 1, threads=(64,), group=(64,))
    ((args, launch),) = function.calls
    assert args == (x, y, 6, 2**40, 1.0)
    assert launch["arg_casts"] == {2: "int32"}
    assert launch["gate"] == (24, False)
    made(x, None, 6, 1, 1, threads=(64,), group=(64,))
    assert function.calls[1][0][1] is x  # absent: any tensor


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({1: torch.zeros(6, dtype=torch.float16)}, "y is torch.float16 on cpu"),
        ({2: 2**31}, "n is 2147483648, beyond uint32"),
        ({2: -1}, "n is -1"),
        ({3: 2**63}, "step is"),
    ],
)
def test_what_a_kernel_cannot_read_is_refused_before_it_is_launched(kernel, change, words):
    made, function = kernel
    args = dict(enumerate((torch.zeros(6), torch.zeros(6), 6, 1, 1.0))) | change
    with pytest.raises(DomainError, match=words):
        made(*args.values(), threads=(64,), group=(64,))
    assert not function.calls


@pytest.mark.parametrize(
    ("threads", "group", "words"),
    [
        ((1024,), (1024,), "at most 512 fit"),
        ((64, 1), (64,), "in each of their dims"),
        ((0,), (32,), "in each of their dims"),
        ((2**32,), (32,), "in each of their dims"),
    ],
)
def test_what_the_chip_has_no_room_for_is_refused_before_it_is_launched(
    kernel, threads, group, words
):
    made, function = kernel
    with pytest.raises(DomainError, match=words):
        made(torch.zeros(6), torch.zeros(6), 6, 1, 1.0, threads=threads, group=group)
    assert not function.calls


def test_too_much_threadgroup_memory_is_refused(kernel):
    made, function = kernel
    function.static_thread_group_memory_length = 40_000
    with pytest.raises(DomainError, match="40000 bytes"):
        made(torch.zeros(6), torch.zeros(6), 6, 1, 1.0, threads=(64,), group=(64,))


def test_a_file_without_the_kernel_is_told(kernel):
    made, _ = kernel
    made.name = "k_other"
    with pytest.raises(PluginBroken, match=r"k\.metal has no kernel 'k_other'"):
        made(torch.zeros(6), torch.zeros(6), 6, 1, 1.0, threads=(64,), group=(64,))


def test_as_many_threads_as_the_kernel_takes(kernel):
    made, _ = kernel
    assert made.most_threads(torch.device("cpu")) == 512
