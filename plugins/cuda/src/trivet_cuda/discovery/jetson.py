"""The GPU of a Jetson, whose older drivers have no NVML: what the board's model says of it."""

from __future__ import annotations

from typing import Any, Final

from trivet_cuda.discovery.answers import Record, amount, error, rows, section, text
from trivet_cuda.discovery.obstacle import Absence, Obstacle

# part of the model -> compute capability; Thor's number depends on the version of CUDA
_BOARDS: Final = {"Orin": (8, 7), "Xavier": (7, 2), "TX2": (6, 2), "Nano": (5, 3)}


def is_jetson(record: Record) -> bool:
    """Whether the system says that it is one."""
    host = section(record, "host")
    return bool(text(host, "tegra_release")) or "Jetson" in text(host, "model")


def jetson_gpus(record: Record) -> list[Record] | Absence:
    """The one GPU: NVML's answers where there are some, the board's where NVML says nothing."""
    host = section(record, "host")
    model = text(host, "model")
    known = next((c for part, c in _BOARDS.items() if part in model), None)
    told = (rows(section(record, "nvml"), "devices") or [{}])[0]
    answered = {k: v for k, v in told.items() if k != "error" and not error(told, k)}
    board: dict[str, Any] = {"name": model, "memory_bytes": amount(host, "memory_bytes")}
    if known is not None:
        board["capability"] = known
    if "capability" not in board | answered:
        return Absence(
            Obstacle.UNKNOWN_JETSON,
            f"this is a Jetson ({model or 'of unknown model'}) whose driver has no NVML, and the "
            "compute capability of that model is not known here: tell who makes trivet-cuda",
        )
    return [board | answered]
