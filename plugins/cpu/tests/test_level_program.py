"""The kernels of one level, called without torch: here, and emulated for the processor of aarch64.

A small program reads operands and writes results; torch's float64 on this machine judges them.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import required
from trivet.catalogue import operators
from trivet_cpu import isa
from trivet_cpu.kernel_library import KERNELS

HERE = Path(__file__).resolve().parent
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TYPES = [F32, BF16, F16]  # in the order of the tables
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
TARGETS = {  # how it is run: compiler, what runs the program, level
    "hardware": ("g++", (), "baseline"),
    "emulated": (CROSS, (EMULATOR,), "neon"),
}


def flags():
    spec = importlib.util.spec_from_file_location("hatch_build", HERE.parent / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FLAGS


@dataclass(frozen=True)
class Program:
    command: tuple[str, ...]
    level: str

    def ask(self, kernel, *numbers, kind, operands):
        """Raw results of a kernel; kind is the number of its table entry."""
        data = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in operands)
        words = [*self.command, kernel, str(kind), *(str(float(n)) for n in numbers)]
        done = subprocess.run(words, input=data, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return bytearray(done.stdout)

    def norm(self, kernel, *operands, eps=1e-6, offset=0.0, in_float32=False):
        x, weight = operands[0], operands[-1]
        kind = len(TYPES) * TYPES.index(x.dtype) + TYPES.index(weight.dtype)
        raw = self.ask(kernel, *x.shape, eps, offset, in_float32, kind=kind, operands=operands)
        return torch.frombuffer(raw, dtype=x.dtype).view(-1, *x.shape)

    def gate(self, x):
        rows, inter = x.shape[0], x.shape[1] // 2
        raw = self.ask("silu_and_mul", rows, inter, kind=TYPES.index(x.dtype), operands=[x])
        return torch.frombuffer(raw, dtype=x.dtype).view(rows, inter)

    def rotary(self, q, cos, sin, pairing):
        numbers = *q.shape, cos.shape[-1], pairing == "interleaved"
        kind = TYPES.index(q.dtype)
        raw = self.ask("rotary", *numbers, kind=kind, operands=[q, cos, sin])
        return torch.frombuffer(raw, dtype=q.dtype).view(q.shape)

    def attention(self, q, k, v, table, start, lens, scale, window, soft_cap):
        (tokens, heads, dim), (blocks, size, kv_heads, _) = q.shape, k.shape
        numbers = tokens, heads, kv_heads, dim, *table.shape[:1], blocks, size, table.shape[1]
        raw = self.ask(
            "attention", *numbers, window, scale, soft_cap,
            kind=TYPES.index(q.dtype), operands=[q, k, v, table, start, lens],
        )  # fmt: skip
        return torch.frombuffer(raw, dtype=q.dtype).view(q.shape)


def answers(tool):
    """Whether the tool is there and runs; a launcher without what it launches does not."""
    if shutil.which(tool) is None:
        return False
    return subprocess.run([tool, "--version"], capture_output=True, check=False).returncode == 0


def not_run(target):
    """Why the target cannot be run here; empty where it can."""
    compiler, runner, _ = TARGETS[target]
    missing = [] if answers(compiler) else [f"compiler {compiler}"]
    missing += [tool for tool in runner if not answers(tool)]
    return f"{target}: no {' and no '.join(missing)}" if missing else ""


@pytest.mark.parametrize("stub", [None, "#!/bin/sh\nexit 1\n"])
def test_a_compiler_that_is_missing_or_does_not_run_is_named(monkeypatch, tmp_path, stub):
    if stub:
        (tmp_path / "g++").write_text(stub)
        (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not_run("hardware") == "hardware: no compiler g++"


@pytest.fixture(scope="module", params=TARGETS)
def program(request, tmp_path_factory):
    compiler, runner, level = TARGETS[request.param]
    if reason := not_run(request.param):
        needed = {"hardware": "compiler", "emulated": "aarch64"}[request.param]
        required.missing(needed, reason)
    folder = tmp_path_factory.mktemp(request.param)
    macros = [f"-DTRIVET_CPU_HAS_{level.upper()}", f"-DTRIVET_CPU_LEVEL=trivet_cpu_{level}"]

    def compiled(source):
        out = folder / f"{source.stem}.o"
        command = [compiler, *flags(), *macros, f"-I{KERNELS}", "-c", str(source)]
        subprocess.run([*command, "-o", str(out)], check=True)
        return str(out)

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compiled, (KERNELS / "level.cpp", HERE / "level_program.cpp")))
    path = folder / "level_program"  # static: the emulator needs no system libraries
    subprocess.run([compiler, "-static", *objects, "-o", str(path)], check=True)
    return Program((*runner, str(path)), level)


def reference(name, *arguments):
    """The operator's declaration, computed in float64."""
    wide = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in arguments
    ]
    return operators()[name].reference(*wide)


def close(found, expected, unit=1e-6):
    """Within half a unit of a narrow type, or a few units of float32."""
    half_a_unit = {BF16: 2**-8, F16: 2**-11}.get(found.dtype)
    exact = {"rtol": half_a_unit or unit, "atol": 2e-5 if half_a_unit else unit}
    torch.testing.assert_close(found.double(), expected, equal_nan=True, **exact)


@pytest.mark.parametrize("hidden", [1, 7, 33, 4099])
@pytest.mark.parametrize(
    ("xd", "wd"), [(F32, F32), (F32, BF16), (BF16, F32), (BF16, BF16), (F16, F32), (F16, F16)]
)
def test_norms(program, randn, hidden, xd, wd):
    x, residual = randn(5, hidden, dtype=xd), randn(5, hidden, dtype=xd)
    weight = randn(hidden, dtype=wd)
    scalars = {"eps": 1e-5, "offset": 1.0, "in_float32": True}
    (y,) = program.norm("rms_norm", x, weight, **scalars)
    close(y, reference("rms_norm", x, weight, 1e-5, 1.0, True), 4e-6)
    y, total = program.norm("fused_add_rms_norm", x, residual, weight, **scalars)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, program.norm("rms_norm", total, weight, **scalars)[0])


def test_the_order_of_rounding_is_the_declared_one(program, randn):
    x, weight = randn(64, 576, dtype=BF16), randn(576, dtype=BF16)
    twice = operators()["rms_norm"].reference(x, weight, 1e-6, 0.0, False)
    assert (program.norm("rms_norm", x, weight)[0] != twice).float().mean() < 0.01
    once = program.norm("rms_norm", x, weight, in_float32=True)[0]
    assert (once != twice).float().mean() > 0.1


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_sums_are_rounded_to_nearest_even_with_their_specials(program, dtype):
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype).view(16, -1)
    other = x.flatten().roll(12345).view(16, -1)
    total = program.norm("fused_add_rms_norm", x, other, torch.ones(x.shape[1]))[1]
    torch.testing.assert_close(total, x + other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("inter", [1, 31, 100])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_gates(program, randn, inter, dtype):
    x = (8 * randn(6, 2 * inter)).to(dtype)
    close(program.gate(x), reference("silu_and_mul", x))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_values_of_a_gate_pass_as_in_torch(program, dtype):
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.8, -88.8, 3e38, -3e38, 1e-40]
    special = torch.tensor(special).to(dtype)
    x = torch.cartesian_prod(special, special).T.reshape(1, -1)
    expected = operators()["silu_and_mul"].reference(x)
    torch.testing.assert_close(program.gate(x), expected, rtol=2e-6, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize(("dim", "half"), [(64, 32), (80, 20), (14, 3)])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_rotation(program, randn, dim, half, pairing, dtype):
    q, angles = randn(5, 3, dim, dtype=dtype), randn(5, half)
    found = program.rotary(q, angles.cos(), angles.sin(), pairing)
    (expected,) = reference("rotary_embedding", q, None, angles.cos(), angles.sin(), pairing)
    close(found, expected)
    assert torch.equal(found[..., 2 * half :], q[..., 2 * half :])


@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (17, 0.0), (0, 2.0)])
@pytest.mark.parametrize(("dim", "kv_heads", "group"), [(64, 2, 3), (20, 2, 5), (80, 1, 7)])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_attention(program, randn, dim, kv_heads, group, window, soft_cap, dtype):
    lens, queries = torch.tensor([1, 0, 130, 77, 5]), torch.tensor([0, 1, 0, 1, 40, 9])
    start = queries.cumsum(0).int()
    table = torch.randperm(50, generator=torch.Generator().manual_seed(3)).view(5, 10).int()
    q = randn(int(start[-1]), kv_heads * group, dim, dtype=dtype)
    k, v = (randn(50, 16, kv_heads, dim, dtype=dtype) for _ in range(2))
    pages = (q, k, v, table, start, lens.int())
    found = program.attention(*pages, dim**-0.5, window, soft_cap)
    expected = reference("paged_attention", *pages, 200, 200, dim**-0.5, [], window, soft_cap)
    close(found, expected, 1e-5)


def test_the_program_gives_the_bits_of_the_library(program, randn):
    """What is tested here is what runs under torch."""
    if program.level not in isa.levels():
        assert program.level == "neon"
        return
    from trivet_cpu.compiled.norm import rms_norm

    x, weight = randn(5, 999), randn(999)
    with isa.using(program.level):
        assert torch.equal(program.norm("rms_norm", x, weight)[0], rms_norm(x, weight))


def test_a_nan_of_any_pattern_stays_one_when_it_is_rounded(program):
    """Rounding adds to the bits: the carry of a full pattern would run into the sign."""
    patterns = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, -8388607, 0x7FC00000] * 20)
    weight = patterns.int().view(F32)
    y = program.norm("rms_norm", torch.ones(2, 100, dtype=BF16), weight, in_float32=True)[0]
    assert y.isnan().all()
