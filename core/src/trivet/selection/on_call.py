"""A choice looked at for one call: which implementation runs, and why not others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trivet.contracts.names import need_names
from trivet.contracts.signature import REQUIRED
from trivet.errors import UnknownName
from trivet.selection.choose import Choice, Row
from trivet.selection.facts import Call, decide


def on_call(choice: Choice, arguments: Mapping[str, Any]) -> list[Row]:
    """The trace for one call, real or fake tensors: which arm would run, and why not others."""
    rows, taken, op = [], False, choice.operator
    defaults = {p.name: p.default for p in op.signature.parameters}
    call = Call(op, defaults | dict(arguments))
    for row in choice.rows:
        arm = next((a for a in choice.arms if a.provider == row.provider), None)
        if arm is None:
            rows.append(row)
            continue
        decisions = [(t, decide(op, t, call)) for t in arm.terms]
        reasons = [f"{t} cannot be decided" if d is None else d for t, d in decisions]
        if failed := [r for r in reasons if isinstance(r, str)]:
            rows.append(replace(row, verdict="no", reason=failed[0]))
        else:
            rows.append(replace(row, verdict="yes" if taken else "runs", reason=""))
            taken = True
    return rows


def refuse_no_call(choice: Choice, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments by name that are no call.

    Raises:
        UnknownName: an argument does not exist, or one without default is missing.
    """
    need_names(arguments, "arguments are a mapping from names", 'write {"x": x, ...}')
    op, names = choice.operator, {*choice.operator.parameters}
    names |= {"out"} if choice.form == "out" else set()
    if unknown := sorted(set(arguments) - names):
        msg = f"{op.name} has no argument {unknown[0]!r}"
        raise UnknownName(msg, fix=f"use {', '.join(op.parameters)}")
    required = {p.name for p in op.signature.parameters if p.default is REQUIRED}
    if missing := sorted(required - set(arguments)):
        msg = f"a call of {op.name} needs {', '.join(map(repr, missing))}"
        raise UnknownName(msg, fix="give every argument that has no default")
