"""What the interpreter is asked before it is trusted: casts and a dot, against torch."""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from trivet.errors import PluginBroken
from trivet.kernels.triton.interpreted.launch import Interpreter
from trivet.kernels.triton.interpreted.numerics import NARROW

if TYPE_CHECKING:
    tl: Any = None  # the kernels below get Triton's language when they are made

CASTS = 4096


def _cast(source, target, n: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    i = tl.arange(0, n)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty))


def _dot(a, b, c, n: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    at = tl.arange(0, n)[:, None] * n + tl.arange(0, n)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def check(interpreter: Interpreter) -> None:
    """Compares 4096 casts to each narrow format and one bfloat16 dot with torch.

    Raises:
        PluginBroken: a result differs; the text names what.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(CASTS, generator=generator) * torch.logspace(-9, 5, CASTS)
    values[:5] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    for name, dtype in NARROW.items():
        found = torch.empty(CASTS, dtype=dtype)
        interpreter.run(_jitted(_cast), (1,), (values, found, CASTS), {})
        wide, expected = found.float(), values.to(dtype).float()
        if not torch.equal(wide.nan_to_num(7e30), expected.nan_to_num(7e30)):
            wrong = int((wide != expected).logical_and(~expected.isnan()).sum())
            _refuse(f"fp32 to {name}: {wrong} of {CASTS} finite casts differ from torch")
    a, b = (torch.randn(16, 16, generator=generator).bfloat16() for _ in range(2))
    c = torch.empty(16, 16)
    interpreter.run(_jitted(_dot), (1,), (a, b, c, 16), {})
    error = float((c - a.float() @ b.float()).abs().max())
    if not error < 1e-4:  # sums of 16 products of order one, in float32
        _refuse(f"bf16 dot: error {error:g}")


def _jitted(function: Any) -> Any:
    space = {"tl": import_module("triton.language"), "__name__": __name__}
    made = FunctionType(function.__code__, space, function.__name__)
    made.__annotations__ = dict(function.__annotations__)
    made.__module__ = __name__
    return import_module("triton").jit(made)


def _refuse(text: str) -> None:
    msg = f"Triton's interpreter is wrong after its correction: {text}"
    raise PluginBroken(msg, fix="install a version of triton that this version of trivet names")
