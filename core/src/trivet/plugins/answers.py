"""Says why an answer of a hook cannot be used; an empty text means that it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from trivet.contracts.device_info import DeviceInfo, Execution
from trivet.contracts.hooks import ENGINE_DEFAULTS
from trivet.plugins.describe import said, shown
from trivet.settings import near_misses

_SENTENCE: Final = 200
"""Characters of torch's own words; some of its messages list every kernel."""


def plain(answer: object) -> object:
    """A list, mapping or text as the built-in type, so that nothing foreign runs afterwards."""
    if isinstance(answer, list | tuple):
        return list(answer)
    if isinstance(answer, str):
        return str.__str__(answer)
    if isinstance(answer, Mapping):
        return {k: tuple(row) if isinstance(row, tuple) else row for k, row in answer.items()}
    return answer


def has_abilities(answer: object, *protocols: type) -> bool:
    """Whether a foreign object fits one of these protocols; no, when looking at it raises."""
    try:
        return isinstance(answer, protocols)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - foreign __getattr__; the caller names the object
        return False


def probe_problem(answer: object) -> str:
    """Checks what ``trivet_probe`` returned: True, or a reason; a bare False is tolerated."""
    if isinstance(answer, bool | str):
        return ""
    return f"trivet_probe returns {shown(answer)}, neither True nor a reason"


def devices_problem(name: str, extends: str, answer: object) -> str:
    """Checks what ``trivet_devices`` returned: devices of the plugin's own kind."""
    if extends:
        return f"trivet_devices exists, but the plugin says that it only extends {extends!r}"
    if not isinstance(answer, list):
        return f"trivet_devices returns {shown(answer)}, not a list of DeviceInfo"
    for info in answer:
        if type(info) is not DeviceInfo:  # a subclass would bring foreign code into every question
            return f"trivet_devices returns a list with {shown(info)} in it, not a DeviceInfo"
        if field := _odd_field(info):
            value = shown(getattr(info, field))
            return f"trivet_devices returns a DeviceInfo whose {field} is {value}"
        if info.kind != name:
            return f"trivet_devices returns kind {info.kind!r}, the plugin's name is {name!r}"
    if not answer:
        return "trivet_devices returns no device; trivet_probe is where to say why there is none"
    indices = [info.index for info in answer]
    if len(set(indices)) != len(indices):
        return f"trivet_devices returns indices {indices}, one of them twice"
    return next(filter(None, map(_absence, answer)), "")


def _odd_field(info: DeviceInfo) -> str:
    """The first field that is not of the built-in type that it is declared with; or nothing."""
    counts = ("cores", "subgroup_width", "shared_bytes", "memory_bytes")
    texts, lists = ("kind", "torch_type", "name"), ("arch", "notes", "features", "dtypes")
    right = {name: type(getattr(info, name)) in {int, type(None)} for name in counts}
    right |= {name: type(getattr(info, name)) is str for name in texts}
    for name in lists:
        value = getattr(info, name)
        kinds = {tuple, list, frozenset, set}
        right[name] = type(value) in kinds and all(type(v) is str for v in value)
    sizes = info.cache_bytes
    right["cache_bytes"] = type(sizes) is dict and all(
        type(k) is str and type(v) is int for k, v in sizes.items()
    )
    right["execution"] = type(info.execution) in {Execution, str}
    right["index"] = type(info.index) is int
    return next((name for name, good in right.items() if not good), "")


def _absence(info: DeviceInfo) -> str:
    """Why torch has no such device; empty when it has, as far as that is cheap to tell."""
    if info.torch_type == "cpu":
        return ""
    where = info.torch
    why = ""
    try:
        module = torch.get_device_module(where)
    except RuntimeError:  # torch has no module for that type
        module = None
    try:
        if not hasattr(module, "device_count"):
            torch.empty(0, device=where)
        # a count is enough: is_available may start the driver, and no child could use it then
        elif (number := module.device_count()) <= info.index:
            why = f"torch counts {number}" if number else f"torch.{info.torch_type} has none"
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is the reason
        why = said(error).partition("\n")[0][:_SENTENCE]
    if not why:
        return ""
    return (
        f"trivet_devices returns a device on {str(where)!r}, which this torch does not have: {why}"
    )


def operators_problem(name: str, answer: object) -> str:
    """Checks what ``trivet_operators`` returned: operators under the plugin's own name."""
    if not isinstance(answer, list):
        return f"trivet_operators returns {shown(answer)}, not a list of operators"
    from trivet.contracts.declaration import Operator  # here: most plugins bring none

    for op in answer:
        if not isinstance(op, Operator):
            return f"trivet_operators returns a list with {shown(op)} in it, not an operator"
        if not op.name.startswith(f"{name}."):
            return f"trivet_operators returns {op.name!r}, its name must start with {name + '.'!r}"
    return ""


def implementations_problem(answer: object) -> str:
    """Checks what ``trivet_implementations`` returned: a list; each member is judged later."""
    if isinstance(answer, list):
        return ""
    return f"trivet_implementations returns {shown(answer)}, not a list of functions"


def defaults_problem(answer: object) -> str:
    """Checks what ``trivet_defaults`` returned: name -> (value, reason)."""
    if not isinstance(answer, Mapping):
        return f"trivet_defaults returns {shown(answer)}, not a mapping"
    for name, row in answer.items():
        right = isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], str)
        if not isinstance(name, str) or not right:
            return f"trivet_defaults returns {shown(name)}: {shown(row)}, not (value, reason)"
    return ""


def usable_defaults(
    answer: Mapping[str, tuple[object, str]],
) -> tuple[dict[str, tuple[object, str]], list[str]]:
    """The engine defaults that an engine may be given, and remarks about the others.

    A name that this core does not know is kept: the plugin may be newer, and so may the engine.
    """
    kept: dict[str, tuple[object, str]] = {}
    remarks = []
    for name, (given, reason) in answer.items():
        value = str(given).removeprefix("torch.") if isinstance(given, torch.dtype) else given
        known = ENGINE_DEFAULTS.get(name)
        if known is not None and not known.takes(value):
            remarks.append(
                f"default {name!r} is dropped: it is {shown(given)}; "
                f"{known.kind.__name__}, {known.allowed}"
            )
            continue
        if known is None:
            near = near_misses(name, ENGINE_DEFAULTS)
            hint = (
                f"did you mean {' or '.join(map(repr, near))}?" if near else "it is kept as it is"
            )
            remarks.append(f"default {name!r} is none that this trivet knows; {hint}")
        kept[name] = value, reason
    return kept, remarks
