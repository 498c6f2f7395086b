"""Launches a compiled variant without Triton's dispatch: about a third of its cost on the host.

Triton's own launcher ends in one call of a C function. What it passes there is learnt once, by
calling the launcher with marked arguments and looking where they arrive; the text of a function
is made of that, which makes the same call straight away. So it holds for each version and back
end of Triton whose launcher has this shape; where it has not, the launcher itself is called.
Hooks of Triton's around launches (its profiler's) are not called.
"""

from __future__ import annotations

import linecache
import os
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from typing import Any, Final

import torch

from trivet.errors import DomainError, OrderError
from trivet.kernels.triton.kernel import Launch, Variant

_GRID: Final = ("grid_x", "grid_y", "grid_z")
_lock = threading.RLock()
_made: dict[tuple[Variant, str], Launch] = {}
_number = count()


def launch_of(variant: Variant, device: torch.device) -> Launch:
    """What launches a variant on the current stream of the device of its first pointer.

    It is compiled and loaded on ``device`` now, on other devices of that kind at the first launch
    there. The function's attribute ``route`` is ``"direct"`` or ``"launcher"``.

    Raises:
        PluginBroken: it does not compile for the device.
    """
    key = (variant, device.type)
    with _lock:
        if key not in _made:
            index: int | None = device.index
            _made[key] = _written(variant, _current() if index is None else index)
        return _made[key]


def _current() -> int:
    index: int = torch._C._accelerator_getDeviceIndex()  # noqa: SLF001  # no public name is as cheap
    return index


class _Functions(dict[int, int]):
    """Device index -> handle of a variant's function there, loaded when first asked for."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.compiled: dict[int, Any] = {}

    def __missing__(self, index: int) -> int:
        with _lock, _device(index) as driver:
            self.compiled[index] = made = self.variant.compile(driver.get_current_target())
            made._init_handles()  # noqa: SLF001  # loads it on the current device
            self[index] = int(made.function)
        return self[index]


class _device:  # noqa: N801  # used as a function
    """Makes a device the current one for a block, which gets Triton's driver."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> Any:
        self._driver = import_module("triton.runtime").driver.active
        self._before = _current()
        if self._before != self._index:
            self._driver.set_current_device(self._index)
        return self._driver

    def __exit__(self, *_: object) -> None:
        if self._before != self._index:
            self._driver.set_current_device(self._before)


def _written(variant: Variant, index: int) -> Launch:
    functions = _Functions(variant)
    _ = functions[index]
    compiled, kernel = functions.compiled[index], variant.kernel
    raw, passed, route = _learnt(variant, compiled)
    space: dict[str, Any] = {
        "current": torch._C._accelerator_getDeviceIndex,  # noqa: SLF001
        "stream": import_module("triton.runtime").driver.active.get_current_stream,
        "functions": functions,
        "raw": raw,
    }
    given = ", ".join((*_GRID, *kernel.arguments))
    name, first = kernel.name.lstrip("_"), kernel.pointers[0]
    text = (
        f"def {name}({given}):\n"
        f"    index = {first}.get_device()\n"
        f"    if index != current():\n"
        f"        return elsewhere(index, {given})\n"
        f"    raw({', '.join(_expressions(passed, kernel.pointers, space))})\n"
    )
    file = f"<trivet launch {next(_number)} of {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), space)  # noqa: S102  # text made above, of checked names
    launch: Launch = space[name]

    def elsewhere(index: int, *arguments: Any) -> None:
        if index < 0:
            msg = f"kernel {kernel.name} was compiled for a device, its tensors are on the CPU"
            raise DomainError(msg, fix="move the tensors, or make the launch for their device")
        with _device(index):
            launch(*arguments)

    space["elsewhere"] = elsewhere
    launch.route = route  # type: ignore[attr-defined]
    launch.variant = variant  # type: ignore[attr-defined]
    return launch


class _Mark:
    """Stands for an argument while the launcher is watched."""

    def __init__(self, text: str) -> None:
        self.text = text


def _learnt(variant: Variant, compiled: Any) -> tuple[Callable[..., Any], tuple[Any, ...], str]:
    """The function at the end of Triton's launcher, and what it is given, in marks and constants.

    Raises:
        OrderError: an argument of the kernel got lost on the way; nothing would be launched right.
    """
    launcher, kernel, seen = compiled.run, variant.kernel, []
    grid = [_Mark(n) for n in _GRID]
    where = [_Mark("stream(index)"), _Mark("functions[index]")]
    own = [_Mark(n) if n in kernel.arguments else None for n in kernel.order]
    whole = (*grid, *where, compiled.packed_metadata, None, None, None, *own)
    marks = {m.text for m in whole if isinstance(m, _Mark)}
    raw = getattr(launcher, "launch", None)
    if raw is None or _scratch(compiled.metadata):
        return launcher, whole, "launcher"
    launcher.launch = lambda *passed: seen.append(passed)
    try:
        launcher(*whole)
    finally:
        launcher.launch = raw
    found = [m.text for m in _marks(seen[0])] if len(seen) == 1 else []
    if sorted(found) != sorted(marks):
        odd = ", ".join(sorted(marks.symmetric_difference(found)))
        msg = f"kernel {kernel.name}: Triton's launcher does not pass on {odd}"
        raise OrderError(msg, fix="install a version of triton that this version of trivet names")
    return raw, seen[0], "direct"


def _scratch(metadata: Any) -> bool:
    """Whether memory must be found at each launch, which is the launcher's business."""
    names = ("global_scratch_size", "profile_scratch_size")
    return any(getattr(metadata, name, 0) for name in names)


def _marks(passed: tuple[Any, ...]) -> Iterator[_Mark]:
    for one in passed:
        if isinstance(one, tuple):
            yield from _marks(one)
        elif isinstance(one, _Mark):
            yield one


def _expressions(
    passed: tuple[Any, ...], pointers: tuple[str, ...], space: dict[str, Any]
) -> Iterator[str]:
    """What is passed as text; constants get names in the function's globals."""
    for one in passed:
        if isinstance(one, _Mark):
            # an address as a number spares the launcher a method call and a query of the driver
            yield f"{one.text}.data_ptr()" if one.text in pointers else one.text
        elif isinstance(one, tuple) and any(_marks(one)):
            yield f"({', '.join(_expressions(one, pointers, space))},)"
        elif one is None or isinstance(one, bool):
            yield str(one)
        else:
            name = f"constant_{len(space)}"
            space[name] = one
            yield name


def _forget() -> None:
    """In a child of a fork no handle of the parent is valid."""
    _made.clear()


os.register_at_fork(after_in_child=_forget)
