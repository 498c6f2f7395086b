from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import required
from trivet.contracts import DeviceInfo, contiguous, dtype, implements, one_of
from trivet.errors import DomainError, PluginBroken
from trivet.kernels import triton as interpreted
from trivet.kernels.triton.interpreted.numerics import NARROW, convert, truncated


@pytest.fixture(scope="module")
def kernels():
    required.triton()
    import triton_kernels

    return triton_kernels


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def test_core_and_the_package_import_no_triton():
    code = "import sys, trivet, trivet.kernels.triton; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bf16_is_rounded_to_nearest_even_by_the_bits():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    finite = np.isfinite(values)
    expected = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    found = convert(values, "fp32", "bf16")
    assert (found == expected)[finite].all()
    back = convert(found, "bf16", "fp32")
    assert (np.isnan(back) == np.isnan(values)).all()
    assert (truncated(values) == bits >> 16)[finite].all()
    assert (truncated(values) != expected)[finite].any()


@pytest.mark.parametrize("name", NARROW)
def test_special_values_become_what_torch_makes_of_them(name):
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 500.0, -1e6, 1e-12], np.float32)
    expected = torch.from_numpy(values).to(NARROW[name]).float()
    found = torch.from_numpy(convert(convert(values, "fp32", name), name, "fp32"))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_an_untested_version_is_refused_with_what_was_tested(monkeypatch):
    from trivet.kernels.triton import interpreted as home

    monkeypatch.setattr(home, "find_spec", lambda _: object())
    monkeypatch.setattr(home, "_version", lambda: "99.1.0")
    home.the_interpreter.cache_clear()
    with pytest.raises(PluginBroken, match=r"triton 99\.1\.0 .* tested with 3\.6, 3\.9"):
        interpreted.launcher(object())


def test_the_word_of_the_device_is_interpreted():
    info = interpreted.as_interpreted(DeviceInfo("box", notes=("a note",)))
    assert info.to_json()["execution"] == "interpreted"
    assert info.notes == ("a note", interpreted.NOT_VERIFIED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_and_silu_agree_with_torch(kernels, dtype):
    x, w = draw(3, 100, dtype=dtype), draw(100, dtype=dtype)
    y, z = torch.empty_like(x), torch.empty(3, 50, dtype=dtype)
    norm = interpreted.launcher(kernels.rms_norm)
    norm[(3,)](x, w, y, 100, 1e-6, 0.0, IN32=True, BLOCK=128)
    interpreted.launcher(kernels.silu_and_mul)[3](x, z, 50, BLOCK=64)
    f = x.double()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6) * w.double()
    gate, up = x.double().chunk(2, -1)
    for found, expected in ((y, f), (z, torch.nn.functional.silu(gate) * up)):
        ulp = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=2 * ulp, atol=ulp)


def test_a_bf16_dot_over_pages_agrees_with_torch(kernels):
    q = draw(16, 32, dtype=torch.bfloat16)
    k, v = draw(4, 16, 32, dtype=torch.bfloat16), draw(4, 16, 32, dtype=torch.bfloat16).flip(0)
    table, out = torch.tensor([2, 0, 3], dtype=torch.int32), torch.empty_like(q)
    attend = interpreted.launcher(kernels.paged)
    attend[(1,)](q, k, v, table, out, 37, 0.2, M=16, D=32, B=16)
    keys, values = (c[table.long()].reshape(48, 32)[:37].double() for c in (k, v))
    expected = (q.double() @ keys.T * 0.2).softmax(-1) @ values
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.01)


def test_sums_and_atomics_in_bf16_itself(kernels):
    x, y = draw(64, dtype=torch.bfloat16), draw(64, dtype=torch.bfloat16).flip(0)
    out, total = torch.empty_like(x), torch.zeros(1, dtype=torch.bfloat16)
    interpreted.launcher(kernels.add_narrow)[(1,)](x, y, out, total, 64)
    assert torch.equal(out, x + y)
    expected = torch.zeros((), dtype=torch.bfloat16)
    for value in x:
        expected = expected + value
    assert torch.equal(total[0], expected)


def test_rows_of_nan_and_an_overflow_warn_of_nothing(kernels):
    x, out = torch.tensor([[torch.nan, torch.nan], [1.0, 3e38]]), torch.empty(2)
    interpreted.launcher(kernels.largest)[(1,)](x, out, 2, 2)
    assert out.isnan().tolist() == [True, False]
    assert out[1] == torch.inf
    with pytest.warns(RuntimeWarning, match="All-NaN"):  # outside of a kernel all is as before
        np.nanmax([np.nan])


def test_triton_is_left_as_it_was(kernels):
    import triton
    import triton.language as tl
    from triton.runtime import interpreter, jit

    where = (interpreter, jit.JITFunction, tl, tl.core, tl.tensor, tl.math, tl.dtype)
    before = [dict(vars(w)) for w in where]
    knobs, names = dict(vars(triton.knobs.runtime)), set(vars(kernels))
    x = draw(1, 64)
    launch = interpreted.launcher(kernels.rms_norm)[(1,)]
    launch(x, x[0], torch.empty_like(x), 64, 1e-6, 0.0, IN32=True, BLOCK=64)
    with pytest.raises(Exception, match="Error"):
        launch(x, x[0], "no tensor", 64, 1e-6, 0.0, IN32=True, BLOCK=64)
    for w, was in zip(where, before, strict=True):
        now = vars(w)
        assert {n for n in now.keys() | was.keys() if now.get(n) is not was.get(n)} == set(), w
    assert (vars(triton.knobs.runtime), set(vars(kernels))) == (knobs, names)
    assert os.environ.get("TRITON_INTERPRET") is None


def test_the_check_refuses_what_the_uncorrected_interpreter_does(kernels, monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder

    from trivet.kernels.triton.interpreted import launch, probe

    made = launch.Interpreter()
    probe.check(made)
    builder = type(made._builder)
    for name, text in (("cast_impl", "fp32 to bf16"), ("create_dot", "bf16 dot")):
        with monkeypatch.context() as patch:
            patch.setattr(builder, name, vars(InterpreterBuilder)[name])
            with pytest.raises(PluginBroken, match=text):
                probe.check(made)


def test_too_large_a_grid_and_no_kernel_are_refused(kernels):
    limited = interpreted.launcher(kernels.silu_and_mul, most_programs=4)
    with pytest.raises(PluginBroken, match="6 programs exceeds most_programs=4"):
        limited[lambda _: (3, 2)](draw(1, 4), draw(1, 2), 2, BLOCK=2)
    with pytest.raises(DomainError, match=r"not what triton\.jit returns"):
        interpreted.launcher(print)


def test_an_interpreted_rms_norm_passes_the_kit(kernels):
    from trivet_conformance import from_functions, run
    from trivet_conformance.result import BAD

    interpreted.launcher(kernels.rms_norm)
    info = interpreted.as_interpreted(DeviceInfo("tri"))
    subject = from_functions([rms_norm], "tri", info=info)
    families = ("value", "meta", "alias", "special")
    results = list(run(subject, families=families, quick=True))
    assert {r.execution for r in results} == {"interpreted"}
    bad = [(r.id, r.finding) for r in results if r.finding.status in BAD]
    assert not bad, bad[:3]
    assert {r.family for r in results if r.finding.status == "pass"} == set(families)


@implements(
    "rms_norm@1",
    name="triton",
    domain=[
        dtype("x", "float32", "bfloat16"),
        dtype("weight", "float32", "bfloat16"),
        contiguous("x"),
        contiguous("weight"),
        one_of("variance_size", 0),
    ],
)
def rms_norm(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    import triton_kernels

    y, hidden = torch.empty_like(x), x.shape[-1]
    if x.numel():
        block = 1 << (hidden - 1).bit_length()
        args = (x, weight, y, hidden, eps, weight_offset)
        launch = interpreted.launcher(triton_kernels.rms_norm)[(x.numel() // hidden,)]
        launch(*args, IN32=weight_in_float32, BLOCK=block)
    return y
