"""Vendor functions as nodes that ``torch.compile`` keeps: what a plan of mode ``compiled`` holds.

A tracer cannot follow a function that hands addresses to a kernel. Here each becomes an operator
of torch, registered when the first plan needs it, whose shapes come from the declaration. Its name
carries the digest of the implementation, so a compiler's cache never mixes two of them up. The
reference stays what it is: a tracer follows it, and a compiler fuses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from trivet.contracts.declaration import Operator
from trivet.errors import GradUnsupported
from trivet.selection.choose import Arm
from trivet.selection.derive import allocation
from trivet.selection.forms import function_name
from trivet.selection.texts import compile_function

_nodes: dict[tuple[Callable[..., Any], str], Callable[..., Any]] = {}
_names: list[str] = []
_libraries: Final[dict[str, Any]] = {}
_lock = threading.Lock()


def node(arm: Arm, form: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an arm as a call of a torch operator; equal arms give one function.

    Args:
        arm: what was chosen; the reference is returned as it is.
        form: the form of the site; ``out`` stays as it is, a compiler allocates itself.
        function: what the site would hold.
    """
    if arm.implementation.is_reference or form == "out":
        return function
    with _lock:
        if (function, form) not in _nodes:
            _nodes[function, form] = _made(arm, form, function)
        return _nodes[function, form]


def _made(arm: Arm, form: str, function: Callable[..., Any]) -> Callable[..., Any]:
    implementation, op = arm.implementation, arm.implementation.operator
    plugin = implementation.provider.partition("/")[0]
    number = sum(f"__{implementation.digest}" in n for n in _names)
    name = f"{function_name(op, form)}__{implementation.digest}{f'_{number}' if number else ''}"
    _names.append(name)
    space = f"trivet_{plugin}"
    make: Callable[..., Any] = torch.library.Library
    library = _libraries.setdefault(space, make(space, "FRAGMENT"))
    writes = op.written(form)
    library.define(name + _schema(op, writes))
    library.impl(name, function, "CompositeExplicitAutograd")
    overload = getattr(getattr(torch.ops, space), name).default
    library.impl(name, _without_grad(op, arm.provider, overload), "Autograd")
    torch.library.register_fake(f"{space}::{name}", _fake(op, writes), lib=library)
    arguments = ", ".join(op.signature.names())
    own = function_name(op, form)
    text = f"def {own}({op.signature.text()}):\n    return _op({arguments})\n"
    return compile_function(own, f"node {space}::{name}", text, {"_op": overload})


def _schema(op: Operator, writes: tuple[str, ...]) -> str:
    """The operator's schema; a form that writes marks its arguments and returns nothing."""
    text = op.schema
    if set(writes) == set(op.writes):
        return text
    head = text.rpartition(" -> ")[0]
    for position, name in enumerate(writes):
        mark = f"Tensor(a{position}!)"
        for kind in ("Tensor?", "Tensor"):
            marked = mark + ("?" if kind.endswith("?") else "")
            head = head.replace(f"({kind} {name},", f"({marked} {name},")
            head = head.replace(f", {kind} {name}", f", {marked} {name}")
    return f"{head} -> ()"


def _fake(op: Operator, writes: tuple[str, ...]) -> Callable[..., Any]:
    """What a tracer runs instead: fresh results of the declared shapes, or nothing."""
    if writes:
        return lambda *_args, **_kwargs: None
    lines = [f"    _o{i} = {allocation(op, output)}" for i, output in enumerate(op.outputs)]
    names = [f"_o{i}" for i in range(len(op.outputs))]
    packed = {
        "one": names[0],
        "tuple": f"({', '.join(names)},)",
        "list": f"[_t for _t in ({', '.join(names)},) if _t is not None]",
    }[op.signature.packing]
    text = "\n".join([f"def fake({op.signature.text()}):", *lines, f"    return {packed}"])
    return compile_function("fake", f"shapes of {op.name}", text + "\n", {"_": None})


def _without_grad(op: Operator, provider: str, overload: Any) -> Callable[..., Any]:
    """Refuses what requires grad, where the loss of a gradient would go unseen."""

    def refuse(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and any(_requires_grad(a) for a in arguments):
            msg = f"{op.name}: an input requires grad, and {provider} is forward only"
            raise GradUnsupported(msg, fix="call it under torch.no_grad()")
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001  # as torch's own kernels do
            return overload(*arguments)

    return refuse


def _requires_grad(argument: object) -> bool:
    if isinstance(argument, list):
        return any(map(_requires_grad, argument))
    return isinstance(argument, torch.Tensor) and argument.requires_grad
