"""Whether a device still works: an error may be the last thing that it does in a process."""

from __future__ import annotations

import torch


def failure(device: torch.device) -> str:
    """Why a device does nothing any more in this process; empty while it works.

    It is given a small sum, and then all of its work is waited for: a driver tells of what a call
    broke only when somebody waits.
    """
    try:
        there = torch.ones(2, device=device) + 1
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        wrong = there.tolist() != [2, 2]
    except torch.OutOfMemoryError:
        return ""  # full is not broken
    except Exception as error:  # noqa: BLE001 - a backend may raise anything; it is told
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return "one and one are no longer two" if wrong else ""
