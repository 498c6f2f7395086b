"""From a choice to the callable that an engine holds.

Where facts prove the domain this is the vendor's own function; otherwise a generated guard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, NoReturn

from trivet.binding.guard import make_guard
from trivet.contracts.terms import Term
from trivet.errors import GradUnsupported, NoImplementation
from trivet.plugins.verification import REFERENCE
from trivet.selection.choose import Arm, Choice

Wrap = Callable[[Arm], Callable[..., Any]]

_built: dict[Hashable, Callable[..., Any]] = {}
_lock = threading.Lock()


def build(
    choice: Choice,
    *,
    grad: bool = False,
    wrap: Wrap | None = None,
    wrapped: Hashable = None,
) -> Callable[..., Any]:
    """The callable of a choice; equal choices give one object, which compilers guard on.

    Args:
        choice: arms in order.
        grad: whether inputs that require grad are sent to the reference (or refused in strict
            mode), for binds that promise nothing.
        wrap: what to hold instead of an arm's function, for checks and observed plans.
        wrapped: what the wrapping depends on; None where every bind is wrapped anew.
    """
    vendor = any(not arm.implementation.is_reference for arm in choice.arms)
    if choice.settled and wrap is None and not (grad and vendor):
        return resolved(choice.arms[0], choice)
    if wrap is not None and wrapped is None:
        return _make(choice, wrap, grad=grad and vendor)
    key = (
        (choice.operator, choice.form, choice.facts.key, grad and vendor, wrapped),
        tuple((arm.provider, arm.function, arm.terms) for arm in choice.arms),
        _reference_allowed(choice) if _accepts_all(choice) else choice.rows,
    )
    with _lock:
        if key not in _built:
            _built[key] = _make(choice, wrap, grad=grad and vendor)
        return _built[key]


def _accepts_all(choice: Choice) -> bool:
    """Whether some arm takes what no earlier one takes; in strict mode there may be none."""
    return bool(choice.arms) and not choice.arms[-1].terms


def resolved(arm: Arm, choice: Choice) -> Callable[..., Any]:
    """The function that the vendor makes of the facts of a site, or the one it gave."""
    resolve = arm.implementation.claim.resolve
    if resolve is None or arm.implementation.form != choice.form:
        return arm.function
    made: Callable[..., Any] | None = resolve(choice.facts.values)
    return made or arm.function


def _make(choice: Choice, wrap: Wrap | None, *, grad: bool) -> Callable[..., Any]:
    arms: list[tuple[Callable[..., Any], tuple[Term, ...]]] = [
        (wrap(arm) if wrap else resolved(arm, choice), arm.terms) for arm in choice.arms
    ]
    if choice.settled and not grad:
        return arms[0][0]
    if not _accepts_all(choice):
        arms.append((_refusal(choice), ()))
    return make_guard(
        choice.operator,
        choice.form,
        choice.facts,
        arms,
        grad=_grad_arm(choice) if grad else None,
    )


def _refusal(choice: Choice) -> Callable[..., NoReturn]:
    """The last arm where nothing accepts everything: it says why, for these arguments."""
    op = choice.operator

    def refuse(*values: Any, out: Any = None) -> NoReturn:
        arguments = dict(zip(op.signature.names(), values, strict=True)) | {"out": out}
        msg = f"no implementation of {op.name} accepts this call"
        from trivet.selection.on_call import on_call  # only where a call is refused

        trace = on_call(choice, arguments)
        raise NoImplementation(msg, trace=trace, operator=op.name, fix="see the reasons above")

    return refuse


def _grad_arm(choice: Choice) -> Callable[..., Any]:
    """Where a call goes whose inputs require grad: to the reference, if it may run at all."""
    op = choice.operator
    if choice.form == "functional" and not op.inplace_only and _reference_allowed(choice):
        return op.reference

    def refuse(*values: Any, out: Any = None) -> NoReturn:
        del values, out
        providers = ", ".join(arm.provider for arm in choice.arms)
        msg = f"{op.name}: an input requires grad, and {providers} are forward only"
        raise GradUnsupported(msg, fix="call it under torch.no_grad() or torch.inference_mode()")

    return refuse


def _reference_allowed(choice: Choice) -> bool:
    return all(r.verdict != "no" for r in choice.rows if r.provider == REFERENCE)
