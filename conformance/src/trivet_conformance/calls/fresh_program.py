"""A program that makes single calls, each in a process in which nothing was called before.

It is read as text and given to an interpreter of its own. It imports torch, trivet and the
plugin, and forks for every call, so that a call never sees the state of another one; where a
driver was started for that already, it makes one call itself instead. Requests and answers are
pickles behind their length in eight bytes.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO


def main() -> None:
    """Answers requests until there are no more; the first one is ``sys.path``."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what a plugin prints is no answer
    sys.path[:] = read(requests) or []
    importlib.import_module("torch")  # while nobody waits
    while (row := read(requests)) is not None:
        data = pickle.dumps(_answer(row))
        answers.write(len(data).to_bytes(8, "big") + data)
        answers.flush()


def read(source: BinaryIO) -> Any:
    """The next request; None at the end."""
    size = source.read(8)
    return pickle.loads(source.read(int.from_bytes(size, "big"))) if size else None  # noqa: S301


def _answer(row: Mapping[str, Any]) -> tuple[str, Any]:
    try:
        function = _function(row)
    except Exception as error:  # noqa: BLE001 - foreign code is imported; it is reported
        return "unknown", f"{type(error).__name__}: {error}"
    return _forked(function, row) if row["fork"] else _call(function, row)


def _forked(function: Callable[..., Any], row: Mapping[str, Any]) -> tuple[str, Any]:
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        with os.fdopen(sink, "wb") as stream:
            stream.write(pickle.dumps(_unreached(row["device"]) or _call(function, row)))
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        data = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not data or status:
        return "died", f"signal {-status}" if status < 0 else f"status {status}"
    made: tuple[str, Any] = pickle.loads(data)  # noqa: S301 - from our own child
    return made


def _unreached(device: str) -> tuple[str, Any] | None:
    """The answer of a fork that cannot use the device, for its driver was started before."""
    import torch

    try:
        torch.ones(1, device=device)
    except Exception as error:  # noqa: BLE001 - a backend may raise anything; it is told
        return "unforkable", f"{type(error).__name__}: {error}"
    return None


def _call(function: Callable[..., Any], row: Mapping[str, Any]) -> tuple[str, Any]:
    import torch

    torch.set_num_threads(row["threads"])
    carried = torch.load(io.BytesIO(row["given"]), weights_only=False)
    given = _moved(carried, row["device"])
    try:
        returned = function(*given["positional"], **given["keyword"])
    except Exception as error:  # noqa: BLE001 - foreign code; it is reported
        return "raised", f"{type(error).__name__}: {error}"
    made = io.BytesIO()
    torch.save(_moved({"returned": returned, "given": given}, "cpu"), made)
    return "made", made.getvalue()


def _moved(value: Any, device: str) -> Any:
    """The same values on a device; tensors that are there already are not copied."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: _moved(v, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(v, device) for v in value)
    return value


def _function(row: Mapping[str, Any]) -> Callable[..., Any]:
    """The implementation as discovery finds it, or else what is importable by its name."""
    key = row["provider"], row["operator"], row["form"]
    known = _discovered(row["kind"])
    if key in known:
        return known[key]
    if row["provider"] == "reference":
        from trivet.catalogue import operators

        reference: Callable[..., Any] = operators()[row["operator"]].reference
        return reference
    found: Any = importlib.import_module(row["module"])
    for part in row["name"].split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


@functools.cache
def _discovered(kind: str) -> dict[tuple[str, str, str], Callable[..., Any]]:
    import trivet
    from trivet.errors import TrivetError

    try:
        device = trivet.device(kind)
    except TrivetError:
        return {}
    own = device.offer.implementations
    return {(i.provider, i.operator.name, i.form): i.function for i in own}


if __name__ == "__main__":
    main()
