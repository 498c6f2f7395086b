"""Forms of an operator: their names, and from which other form each is best made."""

from __future__ import annotations

from trivet.contracts.declaration import Operator

NEAREST = {
    "functional": ("functional", "out", "inplace"),
    "inplace": ("inplace", "out", "functional"),
    "out": ("out", "functional", "inplace"),
}
"""For each form, from which ones it is made, the best first."""

SUFFIX = {"functional": "", "inplace": "_", "out": "_out"}


def function_name(op: Operator, form: str) -> str:
    """The name of a form's function; an operator with one form keeps its plain name."""
    return op.name.rpartition(".")[2] + ("" if op.inplace_only else SUFFIX[form])
