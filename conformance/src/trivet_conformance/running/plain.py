"""A program that knows only torch and trivet: it makes calls as an engine would.

It is read as text and given to an interpreter of its own, so that nothing there tells a plugin
that it is under test. Standard input names the calls; each answer becomes a file.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Makes every call that a line asks for; a file with the answer appears when it is done."""
    first = json.loads(sys.stdin.readline())
    sys.path[:] = first["paths"]
    import torch

    import trivet

    found = {}
    device = trivet.device(first["kind"])
    for implementation in device.offer.implementations:
        key = implementation.provider, implementation.operator.name, implementation.form
        found[key] = implementation.function
    for line in sys.stdin:
        call = json.loads(line)
        key = call["provider"], call["operator"], call["form"]
        function = found.get(key) or device.operators[key[1]].reference
        given = moved(torch.load(call["given"], weights_only=False), device.torch)
        made = function(*given["positional"], **given["keyword"])
        torch.save(moved({"returned": made, "given": given}, "cpu"), call["answer"] + ".part")
        os.rename(call["answer"] + ".part", call["answer"])  # noqa: PTH104 - texts, not paths


def moved(value: Any, device: Any) -> Any:
    """The same values on a device; tensors that are there already are not copied."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: moved(v, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v, device) for v in value)
    return value


if __name__ == "__main__":
    main()
