"""Keeps a record as a file that tests replay, and compares a finding with CUDA's own words.

UUIDs are replaced by others of the same form, alike wherever they occur; nothing else in a record
belongs to one machine alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from trivet.errors import ConfigError
from trivet_cuda.discovery.answers import Record, rows
from trivet_cuda.discovery.machine import Finding
from trivet_cuda.discovery.record import gather

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SECONDS: Final = 120
# CUDA's words for a device, in a process of their own: the asking one must not start CUDA
_ASK: Final = """
import json, torch
fields = ("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size",
          "shared_memory_per_block_optin", "warp_size")
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([{f: getattr(p, f, None) for f in fields} for p in found]))
"""


def recorded(machine: str) -> dict[str, Any]:
    """The record of this machine with its origin."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    origin = f"recorded {day} by python -m trivet_cuda.discovery --record"
    return {"origin": origin, "machine": machine, **gather()}


def save(path: str, record: object) -> None:
    """Write a record.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json.dumps(record, indent=1)
    text = _UUID.sub(lambda match: _other(match[0]), text)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the record cannot be written to {path}: {error.strerror}", fix="name another file"
        ) from error


def load(path: str) -> dict[str, Any]:
    """Read a record.

    Raises:
        ConfigError: there is none, or it is no JSON object.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no record can be read from {path}: {error}", fix="make one with --record FILE"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no record", fix="make one with --record FILE")
    return found


def ask_cuda() -> list[dict[str, Any]]:
    """What CUDA says of each device.

    Raises:
        ConfigError: the process that asks ends without an answer.
    """
    command = [sys.executable, "-c", _ASK]
    try:
        done = subprocess.run(  # noqa: S603 - our own code
            command, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
        found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise ConfigError(
            f"CUDA gives no answer: {''.join(said)}", fix="run without --verify"
        ) from error
    return found


def differences(finding: Finding, record: Record) -> list[str]:
    """Where a finding says something else than CUDA; what it leaves open is no difference.

    Raises:
        ConfigError: the record holds no answers of CUDA.
    """
    if "cuda" not in record:
        raise ConfigError(
            "the record holds no answers of CUDA", fix="make it with --record FILE --verify"
        )
    answers = rows(record, "cuda")
    wrong = []
    if len(finding.devices) != len(answers):
        wrong.append(f"{len(finding.devices)} devices, CUDA counts {len(answers)}")
    for info in finding.devices:
        if info.index >= len(answers):
            continue
        told = answers[info.index]
        pairs = {
            "name": (info.name, told.get("name")),
            "arch": (info.arch[0], f"sm{told.get('major')}{told.get('minor')}"),
            "cores": (info.cores, told.get("multi_processor_count")),
            "l2": (info.cache_bytes.get("l2"), told.get("L2_cache_size")),
            "shared_bytes": (info.shared_bytes, told.get("shared_memory_per_block_optin")),
            "subgroup_width": (info.subgroup_width, told.get("warp_size")),
        }
        for what, (ours, theirs) in pairs.items():
            if None not in (ours, theirs) and ours != theirs:
                wrong.append(f"{info.torch} {what}: {ours}, CUDA says {theirs}")
    return wrong


def _other(uuid: str) -> str:
    """A UUID that tells nothing of the machine."""
    digits = sha256(uuid.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
