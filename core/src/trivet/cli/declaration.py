"""The declaration of one operator, and of those who implement it, as plain values."""

from __future__ import annotations

from typing import Any

import torch

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED, Parameter
from trivet.devices import Device
from trivet.plugins.verification import REFERENCE, Implementation, reference


def forms(op: Operator) -> list[str]:
    """The names by which an operator is asked for, one for each form."""
    if op.inplace_only:
        return [op.name]
    inplace = set(op.inplace.values()) == set(range(len(op.outputs)))
    return [op.name, *([f"{op.name}_"] if inplace else []), f"{op.name}_out"]


def signatures(op: Operator) -> list[str]:
    """How each form is called, as text."""
    results = {"one": "Tensor", "none": "None", "list": "list[Tensor]",
               "tuple": f"tuple[{', '.join(['Tensor'] * len(op.outputs))}]"}  # fmt: skip
    told = []
    for name in forms(op):
        out = not op.inplace_only and name.endswith("_out")
        result = results[op.signature.packing] if name == op.name else "None"
        told.append(f"{name}({op.signature.text(out=out)}) -> {result}")
    return told


def effective_order(dev: Device, name: str) -> list[str]:
    """Providers of an operator and ``reference``, in the order that lists now give them.

    Raises:
        ConfigError: the settings are not understood, or force and forbid a provider.
        UnknownName: an order list names what does not exist.
    """
    return dev.binder.policy().rank(name, [*dev.providers()[name], REFERENCE])[0]


def describe(dev: Device, op: Operator) -> dict[str, Any]:
    """Everything that is declared about an operator, and its providers on a device."""
    return {
        "operator": op.name,
        "version": op.version,
        "doc": op.doc,
        "forms": forms(op),
        "dims": list(op.where),
        "signature": f"{op.name}({op.signature.text()})",
        "signatures": signatures(op),
        "arguments": [_argument(op, p) for p in op.signature.parameters],
        "results": [{"shape": o.shape.text, "like": o.like} for o in op.outputs],
        "inplace": dict(op.inplace),
        "writes": list(op.writes),
        "properties": sorted(reference(op).claim.properties),
        "traceable": op.traceable,
        "moved": [{"dims": " * ".join(d.text.lstrip("*") for d in s.dims), "like": like}
                  for s, like in op.moved],
        "budget": {"kind": op.budget.kind, "factor": op.budget.factor, "text": _budget(op)},
        "prepared": op.prepare is not None,
        "schema": op.schema,
        "source": op.source,
        "providers": [
            *(_provider(i, "") for i in dev.offer.implementations if i.operator is op),
            _provider(reference(op), ""),
            *(_provider(u.implementation, u.reason) for u in dev.offer.unmet
              if u.implementation.operator is op),
        ],
    }  # fmt: skip


def _argument(op: Operator, p: Parameter) -> dict[str, Any]:
    shape = op.shapes.get(p.name)
    return {
        "name": p.name,
        "kind": p.kind,
        "shape": shape.text if shape else "",
        "dtype": _dtype(op, p.name),
        "default": "" if p.default is REQUIRED else repr(p.default),
        "choices": list(op.choices.get(p.name, ())),
    }


def _dtype(op: Operator, name: str) -> str:
    """A dtype, or a dtype variable; the activations' is called by its name in facts."""
    declared = op.dtypes.get(name, "")
    if not declared or isinstance(getattr(torch, declared, None), torch.dtype):
        return declared
    return "dtype" if declared == ACTIVATION else f"{declared} (free)"


def _budget(op: Operator) -> str:
    return {
        "statistical": f"errors against fp64 at most {op.budget.factor:g} times the reference's",
        "exact": "bit-equal to the oracle",
        "choice": "equal to the oracle, unless its scores tie",
    }.get(op.budget.kind, op.budget.kind)


def _provider(i: Implementation, unmet: str) -> dict[str, Any]:
    return {
        "provider": i.provider,
        "form": i.form,
        "domain": [str(term) for term in i.domain],
        "properties": sorted(i.claim.properties),
        "accumulates_in": i.claim.accumulates_in,
        "digest": i.digest,
        "unmet": unmet,
    }
