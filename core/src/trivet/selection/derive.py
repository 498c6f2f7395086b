"""Forms of an operator derived from the one that a vendor supplies, as generated functions.

Derived functions are interned by (function, form), so that equal binds are one object. A derived
form that copies says how often; copies are counted here, never at run time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivet.contracts.declaration import Operator, Output
from trivet.contracts.names import missing_form
from trivet.selection.forms import function_name
from trivet.selection.texts import compile_function

_made: dict[tuple[object, Operator, str, str], Callable[..., Any]] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Derived:
    """A function of the wanted form, and its copies per call."""

    function: Callable[..., Any]
    copies: int


def derive(op: Operator, have: str, want: str, function: Callable[..., Any]) -> Derived | str:
    """Makes a form from another one, or says why that cannot be.

    ``functional`` clones what an in-place function writes or allocates for an ``out`` function;
    ``inplace`` and ``out`` copy a functional result.
    """
    if have == want:
        return Derived(function, 0)
    if problem := missing_form(op, want):
        return problem
    copies = 0
    for a, b in itertools.pairwise(dict.fromkeys([have, "functional", want])):
        function = _make(op, a, b, function)
        copies += 0 if a == "out" else len(op.outputs)
    return Derived(function, copies)


def _make(op: Operator, have: str, want: str, function: Callable[..., Any]) -> Callable[..., Any]:
    key = (function, op, have, want)
    with _lock:
        if key not in _made:
            body = {
                ("inplace", "functional"): _functional_from_inplace,
                ("out", "functional"): _functional_from_out,
                ("functional", "inplace"): _inplace_from_functional,
                ("functional", "out"): _out_from_functional,
            }[have, want](op)
            name = function_name(op, want)
            head = f"def {name}({op.signature.text(out=want == 'out')}):\n"
            text = head + "".join(f"    {line}\n" for line in body)
            _made[key] = compile_function(
                name, f"{op.name} {want} from {have}", text, {"_f": function}
            )
        return _made[key]


def _call(op: Operator, extra: str = "") -> str:
    return f"_f({', '.join([*op.signature.names(), *([extra] if extra else [])])})"


def _functional_from_inplace(op: Operator) -> list[str]:
    lines = []
    for arg in op.inplace:
        clone = f"{arg}.clone(memory_format=_cf)"
        guard = f"None if {arg} is None else " if op.parameters[arg].optional else ""
        lines.append(f"{arg} = {guard}{clone}")
    lines.append(_call(op))
    by_output = sorted(op.inplace, key=op.inplace.__getitem__)
    return [*lines, f"return {_packed(op, by_output)}"]


def _functional_from_out(op: Operator) -> list[str]:
    names = [f"_o{position}" for position in range(len(op.outputs))]
    lines = [f"{n} = {allocation(op, o)}" for n, o in zip(names, op.outputs, strict=True)]
    if op.signature.packing == "one":
        return [*lines, _call(op, f"out={names[0]}"), f"return {names[0]}"]
    present = _listed(names, optional=any(_maybe(op, o) for o in op.outputs))
    packed = "_o" if op.signature.packing == "list" else "tuple(_o)"
    return [*lines, f"_o = {present}", _call(op, "out=_o"), f"return {packed}"]


def _inplace_from_functional(op: Operator) -> list[str]:
    lines = [f"_r = {_call(op)}"]
    if op.signature.packing == "one":
        return [*lines, f"{next(iter(op.inplace))}.copy_(_r)"]
    lines.append("_r = iter(_r)")
    for arg in sorted(op.inplace, key=op.inplace.__getitem__):
        guard = f"if {arg} is not None: " if op.parameters[arg].optional else ""
        lines.append(f"{guard}{arg}.copy_(next(_r))")
    return lines


def _out_from_functional(op: Operator) -> list[str]:
    if op.signature.packing == "one":
        return [f"out.copy_({_call(op)})"]
    return [f"for _t, _s in zip(out, {_call(op)}, strict=True): _t.copy_(_s)"]


def _packed(op: Operator, names: list[str]) -> str:
    if op.signature.packing == "one":
        return names[0]
    if op.signature.packing == "tuple":
        return ", ".join(names)
    return _listed(names, optional=any(op.parameters[n].optional for n in names))


def _listed(names: list[str], *, optional: bool) -> str:
    """A list of the results, of those that are there where some may not be."""
    text = ", ".join(names)
    return f"[_t for _t in ({text},) if _t is not None]" if optional else f"[{text}]"


def _maybe(op: Operator, output: Output) -> bool:
    return output.like in op.parameters and op.parameters[output.like].optional


def allocation(op: Operator, output: Output) -> str:
    """Text that allocates one fresh, contiguous result."""
    like = output.like
    guard = f"None if {like} is None else " if _maybe(op, output) else ""
    if like in op.shapes and op.shapes[like].text == output.shape.text:
        return f"{guard}_empty_like({like}, memory_format=_cf)"
    sizes = []
    for dim in output.shape.dims:
        if dim.star:
            arg = op.stars[dim.name]
            inner = len(op.shapes[arg].inner)
            sizes.append(f"*{arg}.shape[:{-inner}]" if inner else f"*{arg}.shape")
        elif dim.name in op.parameters:
            sizes.append(dim.size_text(dim.name))
        else:
            place = op.where[dim.name]
            value = place.dim.value_text(f"{place.arg}.shape[{place.index}]")
            sizes.append(dim.size_text(value if dim.form == "plain" else f"({value})"))
    base = like if like in op.parameters else op.tensors[0]
    dtype = "" if like in op.parameters else f", dtype=_{like}"
    return f"{guard}{base}.new_empty(({', '.join(sizes)},){dtype})"
