"""Valid calls of an operator, made from its declaration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED, Parameter
from trivet.errors import DeclarationError


def arguments(
    op: Operator,
    dims: Mapping[str, int],
    dtype: torch.dtype,
    rng: torch.Generator,
    *,
    scalars: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> dict[str, Any]:
    """Makes the arguments of one call, in order of the signature, on the CPU.

    Args:
        op: the operator.
        dims: a value for each dim; optional tensors whose dims are missing stay absent.
        dtype: the activations' dtype.
        rng: source of all randomness.
        scalars: scalar arguments that differ from the defaults; one without a default is taken
            from the declared sets when it is not here.
        dtypes: dtype of other dtype variables (``{"W": torch.float32}``); default ``dtype``.

    Raises:
        DeclarationError: the cases give a scalar without default no value.
    """
    made = dict(op.cases.inputs(dims, dtype, rng)) if op.cases.inputs else {}
    made.update(scalars or {})
    for p in op.signature.parameters:
        if p.name in made:
            continue
        if p.tensor:
            made[p.name] = _draw(op, p.name, dims, dtype, rng, dtypes or {})
        elif p.kind == "Tensor[]":
            made[p.name] = []
        elif p.name in dims:
            made[p.name] = dims[p.name]
        else:
            made[p.name] = p.default if p.default is not REQUIRED else _declared(op, p)
    return {p.name: made[p.name] for p in op.signature.parameters}


def _declared(op: Operator, scalar: Parameter) -> Any:
    """The value of a scalar without default, from the first declared set that has one."""
    for scalars in op.cases.scalars:
        if scalar.name in scalars:
            return scalars[scalar.name]
    raise DeclarationError(
        f"{op.name} ({op.source}): {scalar.name} has no default, and no case gives it a value",
        fix=f"give {scalar.name} in Cases(inputs=...) or in every set of Cases(scalars=...)",
    )


def resolve_dtype(
    op: Operator, arg: str, dtype: torch.dtype, dtypes: Mapping[str, torch.dtype]
) -> torch.dtype:
    """The dtype that an argument has for given dtype variables."""
    declared = op.dtypes[arg]
    if declared == ACTIVATION:
        return dtype
    fixed = getattr(torch, declared, None)
    return fixed if isinstance(fixed, torch.dtype) else dtypes.get(declared, dtype)


def _draw(
    op: Operator,
    arg: str,
    dims: Mapping[str, int],
    dtype: torch.dtype,
    rng: torch.Generator,
    dtypes: Mapping[str, torch.dtype],
) -> torch.Tensor | None:
    shape = op.shapes[arg]
    if op.parameters[arg].optional and any(d.name not in dims for d in shape.dims):
        return None
    size = [d.size(dims) for d in shape.dims]
    want = resolve_dtype(op, arg, dtype, dtypes)
    return torch.randn(size, generator=rng).to(want)
