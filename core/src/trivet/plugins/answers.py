"""Says why an answer of a hook cannot be used; an empty text means that it can."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.contracts.device_info import DeviceInfo


def probe_problem(answer: object) -> str:
    """Checks what ``trivet_probe`` returned: True, or a reason; a bare False is tolerated."""
    if isinstance(answer, bool | str):
        return ""
    return f"trivet_probe returns {answer!r}, neither True nor a reason"


def devices_problem(name: str, extends: str, answer: object) -> str:
    """Checks what ``trivet_devices`` returned: devices of the plugin's own kind."""
    if extends:
        return f"trivet_devices exists, but the plugin says that it only extends {extends!r}"
    if not isinstance(answer, list | tuple):
        return f"trivet_devices returns {answer!r}, not a list of DeviceInfo"
    for info in answer:
        if not isinstance(info, DeviceInfo):
            return f"trivet_devices returns a list with {info!r} in it, not a DeviceInfo"
        if info.kind != name:
            return f"trivet_devices returns kind {info.kind!r}, the plugin's name is {name!r}"
    indices = [info.index for info in answer]
    if len(set(indices)) != len(indices):
        return f"trivet_devices returns indices {indices}, one of them twice"
    return ""


def operators_problem(name: str, answer: object) -> str:
    """Checks what ``trivet_operators`` returned: operators under the plugin's own name."""
    if not isinstance(answer, list | tuple):
        return f"trivet_operators returns {answer!r}, not a list of operators"
    from trivet.contracts.declaration import Operator  # here: most plugins bring none

    for op in answer:
        if not isinstance(op, Operator):
            return f"trivet_operators returns a list with {op!r} in it, not an operator"
        if not op.name.startswith(f"{name}."):
            return f"trivet_operators returns {op.name!r}, its name must start with {name + '.'!r}"
    return ""


def implementations_problem(answer: object) -> str:
    """Checks what ``trivet_implementations`` returned: a list; each member is judged later."""
    if isinstance(answer, list | tuple):
        return ""
    return f"trivet_implementations returns {answer!r}, not a list of functions"


def defaults_problem(answer: object) -> str:
    """Checks what ``trivet_defaults`` returned: name -> (value, reason)."""
    if not isinstance(answer, Mapping):
        return f"trivet_defaults returns {answer!r}, not a mapping"
    for name, row in answer.items():
        right = isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], str)
        if not isinstance(name, str) or not right:
            return f"trivet_defaults returns {name!r}: {row!r}, not (value, reason)"
    return ""
