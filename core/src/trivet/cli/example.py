"""One call of an operator, made from what was said about it on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import click
import torch
from torch import Tensor

from trivet.binding.example_calls import arguments, resolve_dtype
from trivet.cli.values import known, shown
from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED
from trivet.contracts.terms import PRESENT, UNKNOWN, Interval
from trivet.contracts.terms.term import inside
from trivet.errors import TrivetError
from trivet.selection.facts import Call, normalise


def example(
    op: Operator,
    form: str,
    facts: Mapping[str, Any],
    *,
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    dtypes: Mapping[str, torch.dtype],
    strides: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The arguments of a call with these shapes, sizes and dtypes, by name.

    Where the operator draws no index tables the tensors are meta tensors: only shapes, strides
    and dtypes decide which implementation runs.

    Args:
        op: the operator.
        form: the form that is called.
        facts: facts as typed; sizes, dtypes and scalars among them hold for the example too.
        shapes: shape of an argument.
        sizes: value of a dim.
        dtypes: dtype of the activations (empty name) and of dtype variables.
        strides: strides of an argument, in elements; without, it is contiguous.

    Raises:
        click.UsageError: a size is missing, or the example contradicts a fact.
        DeclarationError: two shapes give one dim different values.
    """
    known("argument with a shape", shapes, op.tensors)
    known("argument with strides", strides, op.tensors)
    known("size", sizes, size_names(op))
    known("dtype variable", [n for n in dtypes if n], _variables(op))
    promised = normalise(op, facts).values
    given = {n: v for n, v in promised.items() if type(v) is int and "." not in n} | dict(sizes)
    with makeable():
        shaped = {n: torch.empty(s, device="meta") for n, s in shapes.items()}
    dims = given | op.dims(given | shaped)
    absent = {n for n in op.tensors if promised.get(n, UNKNOWN) is None}
    _refuse_missing(op, dims, absent)
    scalars = {n: promised[n] for n in op.scalars if _is_plain(promised.get(n, UNKNOWN))}
    with makeable():
        made = _arguments(op, dims, scalars, _dtypes(op, promised, dtypes)) | dict.fromkeys(absent)
        for name, size in shapes.items():
            if made[name] is not None:
                made[name] = made[name].reshape(size)
        for name, steps in strides.items():
            made[name] = _strided(name, made.get(name), steps)
    if missing := [name for name, value in made.items() if value is REQUIRED]:
        raise click.UsageError(f"the example needs a value: --fact {missing[0]}=VALUE")
    if form == "out":
        results = [torch.empty(s, dtype=d, device="meta") for s, d in op.result_meta(made)]
        made["out"] = results[0] if op.signature.packing == "one" else results
    _refuse_contradiction(op, promised, made)
    return made


@contextmanager
def makeable() -> Iterator[None]:
    """Says that no such tensors can be made, where torch or a generator refuses.

    Raises:
        click.UsageError: with torch's own reason.
    """
    try:
        yield
    except TrivetError:
        raise
    except (RuntimeError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        why = str(error).partition("\n")[0]
        raise click.UsageError(f"such tensors cannot be made: {why}") from error


def _strided(name: str, tensor: Tensor | None, strides: tuple[int, ...]) -> Tensor:
    """A tensor of that shape and dtype with other strides; no memory is taken for it."""
    if tensor is None:
        raise click.UsageError(f"{name} is absent in the example, it has no strides")
    if len(strides) != tensor.dim():
        have = f"{len(strides)} strides for a shape of {tensor.dim()} dims"
        raise click.UsageError(f"{name}: {have}, {list(tensor.shape)}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="meta")


def size_names(op: Operator) -> list[str]:
    """What may be given as a size: dims, and integer arguments."""
    return [*op.where, *(n for n in op.scalars if op.parameters[n].kind == "int")]


def _variables(op: Operator) -> set[str]:
    """Names of the operator's dtype variables, without the dtypes that are fixed."""
    return {v for v in op.dtypes.values() if not isinstance(getattr(torch, v, None), torch.dtype)}


def _dtypes(
    op: Operator, promised: Mapping[str, Any], given: Mapping[str, torch.dtype]
) -> dict[str, torch.dtype]:
    """A dtype for each variable: as given, else as promised, else that of the activations."""
    found: dict[str, torch.dtype] = {}
    for arg, variable in op.dtypes.items():
        if variable in _variables(op) and (promise := promised.get(f"{arg}.dtype")):
            found.setdefault(variable, promise)
    found |= {name or ACTIVATION: dtype for name, dtype in given.items()}
    found.setdefault(ACTIVATION, torch.float32)
    return found


def _arguments(
    op: Operator,
    dims: Mapping[str, int],
    scalars: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype],
) -> dict[str, Any]:
    if op.cases.inputs is not None:
        rng = torch.Generator().manual_seed(0)
        try:
            return arguments(op, dims, dtypes[ACTIVATION], rng, scalars=scalars, dtypes=dtypes)
        except KeyError as error:  # a generator wants a size that no shape names
            raise _missing(op, str(error.args[0])) from error
    made: dict[str, Any] = {}
    for p in op.signature.parameters:
        if p.tensor:
            made[p.name] = _meta(op, p.name, dims, dtypes)
        else:
            made[p.name] = scalars.get(p.name, dims.get(p.name, p.default))
    return made


def _meta(
    op: Operator, arg: str, dims: Mapping[str, int], dtypes: Mapping[str, torch.dtype]
) -> Tensor | None:
    entries = op.shapes[arg].dims
    if any(d.name not in dims for d in entries):
        return None
    dtype = resolve_dtype(op, arg, dtypes[ACTIVATION], dtypes)
    return torch.empty([d.size(dims) for d in entries], dtype=dtype, device="meta")


def _missing(op: Operator, dim: str, hint: str = "") -> click.UsageError:
    return click.UsageError(
        f"the example of {op.name} needs the size {dim!r}: --size {dim}=N{hint}"
    )


def _refuse_missing(op: Operator, dims: Mapping[str, int], absent: set[str]) -> None:
    for arg, shape in op.shapes.items():
        for dim in shape.dims if not op.parameters[arg].optional and arg not in absent else ():
            if dim.name not in dims:
                raise _missing(op, dim.name, f", or --shape {arg}=AxB for [{shape.text}]")


def _is_plain(value: object) -> bool:
    return value is not UNKNOWN and not isinstance(value, Interval)


def _refuse_contradiction(
    op: Operator, promised: Mapping[str, Any], made: Mapping[str, Any]
) -> None:
    """Refuses an example that breaks a promise: what would run is undefined."""
    call = Call(op, made)
    for name in (n for n in op.tensors if promised.get(f"{n}.contiguous") and made[n] is not None):
        if not made[name].is_contiguous():
            have = f"strides {list(made[name].stride())}"
            raise click.UsageError(f"the example contradicts the fact {name}.contiguous: {have}")
    for path, promise in promised.items():
        have = call.value(path)
        if have is UNKNOWN or promise == PRESENT:
            continue
        good = inside(have, promise) if isinstance(promise, Interval) else have == promise
        if not good:
            raise click.UsageError(
                f"the example contradicts the fact {path}={shown(promise)}: it has {shown(have)}"
            )
