"""What names mean: the target of an implementation or a bind, and the path of a term or a fact."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trivet.contracts.declaration import Operator
from trivet.errors import DeclarationError, UnknownName

_ATTRIBUTES = ("dtype", "rank", "contiguous", "rows", "offset_aligned")
_VERSION = re.compile(r"[0-9]{1,9}")


def need_names(given: object, what: str, fix: str, keys: type = str) -> None:
    """Refuses what is no mapping from names; not every caller is checked.

    Raises:
        UnknownName: says what it should be.
    """
    if not isinstance(given, Mapping) or not all(isinstance(k, keys) for k in given):
        raise UnknownName(f"{what}, not {given!r}", fix=fix)


def split_target(target: str, known: Mapping[str, Operator]) -> tuple[str, str, int | None]:
    """Splits ``"rms_norm_out@1"`` into operator name, form and version (None when not given)."""
    full, at, version = target.partition("@")
    number = int(version) if _VERSION.fullmatch(version) else (-1 if at else None)
    if full in known:
        return full, "inplace" if known[full].inplace_only else "functional", number
    for suffix, form in (("_out", "out"), ("_", "inplace")):
        base = full.removesuffix(suffix)
        if base != full and base in known:
            return base, form, number
    return full, "", number


def missing_form(op: Operator, form: str) -> str:
    """Why an operator has no such form; empty when it has."""
    if form == "inplace" and not op.written("inplace"):
        return f"{op.name} has no in-place form"
    if form != "inplace" and op.inplace_only:
        return f"{op.name} has no {form} form, it writes its arguments"
    return ""


def check_path(op: Operator, path: str, who: str, *, out: bool = False) -> None:
    """Refuses a path that names no dim, argument or attribute of the operator.

    Raises:
        DeclarationError: with the names that would be right.
    """
    head, dot, attribute = path.partition(".")
    tensors = (*op.tensors, "out") if out and op.signature.packing == "one" else op.tensors
    if (head in tensors and attribute in _ATTRIBUTES) if dot else (
        head in op.where or head in op.parameters or head in tensors
    ):  # fmt: skip
        return
    msg = f"{who}: {path!r} is no dim, argument or attribute of {op.name}"
    names = [*op.where, *op.parameters, *(f"{t}.{a}" for t in tensors[:1] for a in _ATTRIBUTES)]
    raise DeclarationError(msg, fix=f"use one of {', '.join(names)}")
