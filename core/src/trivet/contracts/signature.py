"""The signature of an operator as data: parameters, their kinds and defaults."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from trivet.errors import DeclarationError

_SCALARS: Final = {int: "int", float: "float", bool: "bool", str: "str", torch.dtype: "dtype"}
_KINDS: Final = {Tensor: "Tensor", **_SCALARS}
_DEFAULTS: Final = {types.NoneType: "Tensor?", **_SCALARS}
_PACKINGS: Final = {None: "none", Tensor: "one", tuple: "tuple", list: "list"}
REQUIRED: Final = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, kind (``"Tensor?"``, ``"int"``, …) and default."""

    name: str
    kind: str
    default: Any = REQUIRED

    @property
    def optional(self) -> bool:
        """Whether it is a tensor that may be absent."""
        return self.kind == "Tensor?"

    @property
    def tensor(self) -> bool:
        """Whether it is one tensor, present or not."""
        return self.kind in ("Tensor", "Tensor?")

    @property
    def scalar(self) -> bool:
        """Whether it is neither a tensor nor a list of them."""
        return not self.kind.startswith("Tensor")

    def text(self) -> str:
        """The parameter as source text, without annotation."""
        return self.name if self.default is REQUIRED else f"{self.name}={self.default!r}"


def _kind(annotation: object) -> str:
    if isinstance(annotation, type) and annotation in _KINDS:
        return _KINDS[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list and args == (Tensor,):
        return "Tensor[]"
    if origin in (types.UnionType, typing.Union) and set(args) == {Tensor, type(None)}:
        return "Tensor?"
    msg = (
        f"{annotation!r} is not a type of an operator signature; allowed: Tensor, Tensor | None, "
        "list[Tensor], int, float, bool, str, torch.dtype"
    )
    raise DeclarationError(msg)


@dataclass(frozen=True)
class Signature:
    """Parameters in order, and how results are packed: ``none``, ``one``, ``tuple`` or ``list``."""

    parameters: tuple[Parameter, ...]
    packing: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """Reads a typed function.

        Raises:
            DeclarationError: a type is not allowed, or a parameter is keyword-only or variadic.
        """
        read = inspect.signature(function, eval_str=True)
        parameters = []
        for p in read.parameters.values():
            if p.kind is not p.POSITIONAL_OR_KEYWORD:
                msg = f"{function.__name__}: parameter {p.name!r} must be an ordinary one"
                raise DeclarationError(msg)
            kind = _kind(p.annotation)
            if p.default is not REQUIRED and _DEFAULTS.get(type(p.default)) != kind:
                msg = f"{function.__name__}: {p.name!r} is {kind}, its default is {p.default!r}"
                raise DeclarationError(msg)
            parameters.append(Parameter(p.name, kind, p.default))
        result = read.return_annotation
        packing = _PACKINGS.get(typing.get_origin(result) or result)
        if packing is None:
            msg = f"{function.__name__}: returns {result!r}, not Tensor, a tuple or a list of them"
            raise DeclarationError(msg)
        return cls(tuple(parameters), packing)

    def text(self, *, out: bool = False) -> str:
        """Parameters as source text; with ``out``, the keyword-only one of the out form."""
        parts = [p.text() for p in self.parameters]
        return ", ".join([*parts, "*", "out"] if out else parts)

    def names(self) -> tuple[str, ...]:
        """Parameter names in order."""
        return tuple(p.name for p in self.parameters)
