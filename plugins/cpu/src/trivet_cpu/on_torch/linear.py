"""linear and linear_packed: torch's product, and oneDNN's over a weight reordered once.

Which of them runs for how many rows is a measured fact (``linear_facts``). Neither product is batch
invariant: both choose a kernel by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from trivet.contracts import Term, between, dtype, equal, feature, implements
from trivet.errors import DomainError
from trivet_cpu.kernel_library import BIND, library, op, refuse, sources
from trivet_cpu.machine import this_machine
from trivet_cpu.on_torch import grid
from trivet_cpu.on_torch.linear_facts import Rows, facts_for

FACTS: Final = facts_for(this_machine().features)
"""What was measured for the processor that runs this process."""

ONEDNN: Final[bool] = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether this torch was built with oneDNN."""

# torch's own names for what its compiler calls; stable since 1.13, and tested
_reorder_weight: Any = torch.ops.mkldnn._reorder_linear_weight.default if ONEDNN else None  # noqa: SLF001
_pointwise: Any = torch.ops.mkldnn._linear_pointwise.default if ONEDNN else None  # noqa: SLF001

_grid_product: Any = None if library().reason else op("grid_linear")
_ON_A_GRID: Final = 3  # tensors of a float32 pack: the one of oneDNN, then numbers and scales

_PACKED_FOR_ROWS: Final = 64  # oneDNN lays the weight out for this many rows; right for any
ANY_ROWS: Final[Rows] = (0, None)
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
    graph_safe=True,
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies with torch."""
    return _product(x, weight, bias)


@implements(
    "linear_packed@1",
    name="torch",
    domain=[dtype("x", *_FLOATS), equal("bias.dtype", "x.dtype")],
    graph_safe=True,
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


def _reorder_float32(facts: Mapping[str, Any], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The layout of oneDNN; then numbers and scales of a weight on a grid, else the weight."""
    return [*_reorder(facts, weight, bias), *(grid.pack(weight) or [weight])]


def _restore(packed: list[Tensor]) -> Tensor:
    """Gives the weight back, bit by bit."""
    return packed[0].to_dense()


def _onednn(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None, wanted: torch.dtype
) -> Tensor:
    if x.dtype is not wanted:
        msg = f"linear_packed: x is {x.dtype}, this product is for {wanted}"
        raise DomainError(msg, operator="linear_packed", fix=BIND)
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


def _within(x: Tensor, rows: Rows) -> None:
    """Refuses a number of rows for which another product was measured to be faster."""
    low, high = rows
    width = x.shape[-1]
    if x.numel() < low * width or (high is not None and x.numel() > high * width):
        limits = f"from {low} rows" if high is None else f"{low} to {high} rows"
        msg = f"linear_packed: shape {list(x.shape)} is outside of {limits}"
        raise DomainError(msg, fix="bind the operator: it takes another product there")


def _domain(name: str, rows: Rows | None) -> list[Term]:
    terms: list[Term] = [dtype("x", name), equal("bias.dtype", "x.dtype")]
    if rows is not None and rows != ANY_ROWS:
        terms.append(between("tokens", *rows))
    return terms


@implements(
    "linear_packed@1",
    name="grid",
    domain=_domain("float32", FACTS.grid),
    sources=("grid.py", *sources("grid.h", "grid_op.h")),
    prepare=_reorder_float32,
    unpack=_restore,
    opaque=True,
    graph_safe=True,
)
def linear_packed_grid(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies few float32 rows with a weight that is read as the few bits it was made of.

    A weight on no grid is multiplied by the faster of torch and oneDNN, from the same pack.
    """
    _within(x, FACTS.grid or ANY_ROWS)
    if len(packed) != _ON_A_GRID:
        few = x.numel() < (FACTS.float32 or ANY_ROWS)[0] * x.shape[-1]
        if few and len(packed) > 1:
            return linear_packed(x, packed[1:], out_features, bias)
        return _onednn(x, packed, out_features, bias, torch.float32)
    _, numbers, scales = packed
    if numbers.shape[0] != out_features:
        _refuse_pack("oneDNN", x, packed, out_features)
    try:
        result: Tensor = _grid_product(
            x, numbers, scales, scales if bias is None else bias, bias is not None
        )
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "linear_packed@1",
    name="onednn",
    domain=_domain("float32", FACTS.float32),
    prepare=_reorder_float32,
    unpack=_restore,
    opaque=True,
    graph_safe=True,
)
def linear_packed_float32(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies float32 rows with oneDNN over a reordered weight."""
    _within(x, FACTS.float32 or ANY_ROWS)
    return _onednn(x, packed, out_features, bias, torch.float32)


@implements(
    "linear_packed@1",
    name="onednn-bf16",
    domain=_domain("bfloat16", FACTS.bfloat16),
    requires=[feature("avx512_bf16")],
    prepare=_reorder,
    unpack=_restore,
    opaque=True,
    graph_safe=True,
)
def linear_packed_bfloat16(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies bfloat16 rows with oneDNN over a reordered weight, accumulating in float32."""
    _within(x, FACTS.bfloat16 or ANY_ROWS)
    return _onednn(x, packed, out_features, bias, torch.bfloat16)


def _widen(facts: Mapping[str, Any], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Lays a bfloat16 weight out as oneDNN reads float32: twice its bytes."""
    return _reorder(facts, weight.detach().float(), bias)


def _narrow(packed: list[Tensor]) -> Tensor:
    """Gives the bfloat16 weight back, bit by bit."""
    return _restore(packed).bfloat16()


@implements(
    "linear_packed@1",
    name="onednn-widened",
    domain=_domain("bfloat16", FACTS.widened),
    prepare=_widen,
    unpack=_narrow,
    opaque=True,
    graph_safe=True,
)
def linear_packed_widened(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies bfloat16 rows in float32, on processors that are slower in bfloat16."""
    if x.dtype is not torch.bfloat16:
        msg = f"linear_packed: x is {x.dtype}, this product is for torch.bfloat16"
        raise DomainError(msg, operator="linear_packed", fix=BIND)
    _within(x, FACTS.widened or ANY_ROWS)
    wide = None if bias is None else bias.float()
    return _onednn(x.float(), packed, out_features, wide, torch.float32).bfloat16()


def measured() -> list[Callable[..., Any]]:
    """What was measured to be the fastest for some rows here, then torch for the rest."""
    offered: list[tuple[Rows | None, Callable[..., Any]]] = [
        (FACTS.grid if _grid_product else None, linear_packed_grid),
        (FACTS.float32, linear_packed_float32),
        (FACTS.bfloat16, linear_packed_bfloat16),
        (FACTS.widened, linear_packed_widened),
    ]
    fast = [product for rows, product in offered if ONEDNN and rows is not None]
    return [*fast, linear_packed, linear]
