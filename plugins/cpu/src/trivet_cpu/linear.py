"""linear and linear_packed: torch's product, and oneDNN's over a weight reordered once.

Measured on one core of a Xeon with AVX-512 and AMX (torch 2.13, oneDNN 3.12), 5 weights from
576x960 to 576x49152, time of torch's product over time of oneDNN's with a reordered weight:

======== ========== ========= =========== =========== =========
dtype    1-2 rows   4 rows    8-64 rows   128-256     512 rows
======== ========== ========= =========== =========== =========
float32  0.6-1.1    1.0-2.1   1.0-2.9     0.95-1.1    0.87-1.0
bfloat16 1.2-1.8    1.4-1.7   1.3-1.7     1.3-1.4     1.1-1.3
======== ========== ========= =========== =========== =========

So float32 goes to oneDNN from 4 to 256 rows, and bfloat16 always where the processor multiplies
bfloat16 matrices. Neither product is batch invariant: both choose a kernel by the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from trivet.contracts import Term, between, dtype, equal, feature, implements
from trivet.errors import DomainError

ONEDNN: Final[bool] = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether this torch was built with oneDNN."""

# torch's own names for what its compiler calls; stable since 1.13, and tested
_reorder_weight: Any = torch.ops.mkldnn._reorder_linear_weight.default if ONEDNN else None  # noqa: SLF001
_pointwise: Any = torch.ops.mkldnn._linear_pointwise.default if ONEDNN else None  # noqa: SLF001

_PACKED_FOR_ROWS: Final = 64  # oneDNN lays the weight out for this many rows; right for any
_FLOATS: Final = ("float32", "bfloat16", "float16", "float64")


def _refuse_pack(provider: str, x: Tensor, packed: list[Tensor], out_features: int) -> NoReturn:
    """Says what is wrong with a pack."""
    pack = packed[0]
    maker = "oneDNN's prepare" if pack.is_mkldnn else "torch's prepare"
    if pack.is_mkldnn is not (provider == "oneDNN"):
        what = f"the pack was made by {maker}, the product is {provider}'s"
    elif pack.dtype is not x.dtype:
        what = f"x is {x.dtype}, the pack holds {pack.dtype}"
    else:
        what = f"out_features is {out_features}, the pack holds a weight {list(pack.shape)}"
    msg = f"linear_packed: {what}"
    raise DomainError(msg, fix="prepare the weight at this site: plan.prepare(site, weight)")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_autocast_enabled("cpu"):  # autocast must not change an operator's meaning
        with torch.autocast("cpu", enabled=False):
            return torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias)


@implements(
    "linear@1",
    name="torch",
    domain=[dtype("x", *_FLOATS), equal("weight.dtype", "x.dtype"), equal("bias.dtype", "x.dtype")],
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies with torch."""
    return _product(x, weight, bias)


@implements(
    "linear_packed@1",
    name="torch",
    domain=[dtype("x", *_FLOATS), equal("bias.dtype", "x.dtype")],
)
def linear_packed(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies with torch; the pack is the weight as it came."""
    weight = packed[0]
    if weight.is_mkldnn or weight.dtype is not x.dtype or weight.shape[0] != out_features:
        _refuse_pack("torch", x, packed, out_features)
    return _product(x, weight, bias)


def _reorder(facts: Mapping[str, Any], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Lays a weight ``[out_features, in_features]`` out as oneDNN reads it."""
    del facts, bias
    return [_reorder_weight(weight.detach().contiguous(), _PACKED_FOR_ROWS)]


def _restore(packed: list[Tensor]) -> Tensor:
    """Gives the weight back, bit by bit."""
    return packed[0].to_dense()


def _onednn(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None, wanted: torch.dtype
) -> Tensor:
    if x.dtype is not wanted:
        msg = f"linear_packed: x is {x.dtype}, this product is for {wanted}"
        raise DomainError(msg, fix="bind the operator instead of calling this function")
    pack = packed[0]
    if not pack.is_mkldnn or pack.dtype is not wanted or pack.shape[0] != out_features:
        _refuse_pack("oneDNN", x, packed, out_features)
    if bias is not None:
        if bias.shape != (out_features,):  # oneDNN would leave it out without a word
            msg = f"linear_packed: bias has shape {list(bias.shape)}, not [{out_features}]"
            raise DomainError(msg, fix="pass one number for each output feature")
        bias = bias.contiguous()  # torch 2.13 hands oneDNN the address and forgets the stride
    if torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            plain: Tensor = _pointwise(x, pack, bias, "none", [], "")
        return plain
    result: Tensor = _pointwise(x, pack, bias, "none", [], "")
    return result


_ROWS: Final = (4, 256)
_BFLOAT16: Final[list[Term]] = [dtype("x", "bfloat16"), equal("bias.dtype", "x.dtype")]
_FLOAT32: Final[list[Term]] = [
    dtype("x", "float32"),
    equal("bias.dtype", "x.dtype"),
    between("tokens", *_ROWS),
]


@implements(
    "linear_packed@1",
    name="onednn",
    domain=_FLOAT32,
    prepare=_reorder,
    unpack=_restore,
    opaque=True,
)
def linear_packed_float32(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies float32 rows with oneDNN over a reordered weight."""
    low, high = _ROWS
    if not low * x.shape[-1] <= x.numel() <= high * x.shape[-1]:
        msg = f"linear_packed: shape {list(x.shape)} has not {low} to {high} rows"
        raise DomainError(msg, fix="bind the operator: it takes torch's product elsewhere")
    return _onednn(x, packed, out_features, bias, torch.float32)


@implements(
    "linear_packed@1",
    name="onednn-bf16",
    domain=_BFLOAT16,
    requires=[feature("amx_bf16")],
    prepare=_reorder,
    unpack=_restore,
    opaque=True,
)
def linear_packed_bfloat16(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies bfloat16 rows with oneDNN over a reordered weight, accumulating in float32."""
    return _onednn(x, packed, out_features, bias, torch.bfloat16)
