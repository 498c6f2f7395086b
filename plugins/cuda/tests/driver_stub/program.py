"""Run by a test in a process of its own: Triton's real driver over a stub of the device's library.

Prints one JSON object. No device is there; what is compared is what would have been launched.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.nvidia.driver import CudaDriver

from trivet.errors import DomainError
from trivet.kernels.triton import Kernel

STUB = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
triton.knobs.nvidia.libcuda_path = sys.argv[2]


class Launched(ctypes.Structure):
    """What the stub keeps of a launch."""

    _fields_ = (
        ("grid", ctypes.c_uint64 * 3),
        *((name, ctypes.c_uint64) for name in ("threads", "shared", "stream", "function")),
        ("cooperative", ctypes.c_uint64),
        ("parameters", ctypes.c_uint64 * 32),
    )


@triton.jit
def _add(  # type: ignore[no-untyped-def]
    x,
    y,
    BLOCK: tl.constexpr,
    out,
    n,
    rows,
    factor,
    ROUND: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sum_ = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < rows) * factor
    tl.store(out + at, (tl.floor(sum_) if ROUND else sum_).to(out.dtype.element_ty), mask=at < n)


KERNEL = Kernel(_add, x="*T", y="*T", out="*O", n="i32", rows="i64", factor="fp32")


class Tensor:
    """An address on a device."""

    def __init__(self, address: int, index: int = 0) -> None:
        self._address, self._index = address, index

    def get_device(self) -> int:
        return self._index

    def data_ptr(self) -> int:
        return self._address


def main() -> None:
    at = SimpleNamespace(index=0)
    torch._C._accelerator_getDeviceIndex = lambda: at.index
    driver = CudaDriver()
    driver.get_current_device = lambda: at.index
    driver.set_current_device = lambda index: setattr(at, "index", index)
    driver.get_current_stream = lambda index: 0x500 + index
    driver.get_device_capability = lambda _: (9, 0)
    triton.runtime.driver.set_active(driver)
    launch = KERNEL.launch(
        torch.device("cuda", 0), {"T": torch.bfloat16, "O": torch.float32},
        {"BLOCK": 1024, "ROUND": False}, divisible={"x": 16, "n": 8}, num_warps=8,
    )  # fmt: skip
    ctypes.c_int.in_dll(STUB, "parameters").value = 6
    x, y, out = Tensor(1 << 40), Tensor((1 << 41) + 16), Tensor(1 << 42)
    found: dict[str, Any] = {"triton": triton.__version__, "route": launch.route}
    launch(7, 2, 3, x, y, out, -5, 1 << 33, 0.5)
    found["first"] = launched()
    there = [Tensor(t.data_ptr() + 8, 1) for t in (x, y, out)]
    launch(1, 1, 1, *there, 4, 4, 2.0)
    found["other device"], found["current after"] = launched(), at.index
    found["launches before an empty grid"] = counted("launches")
    launch(0, 1, 1, x, y, out, 4, 4, 2.0)
    found["launches after"] = counted("launches")
    try:
        launch(1, 1, 1, Tensor(0, -1), y, out, 4, 4, 2.0)
    except DomainError as error:
        found["on the CPU"] = str(error)
    found["queries of addresses"] = counted("queries")
    found["host"] = host(launch, (x, y, out, 4, 4, 2.0))
    print(json.dumps(found))


def host(launch: Any, given: tuple[Any, ...]) -> dict[str, float]:
    """Microseconds of one launch, here and through Triton's own dispatch; the driver does nothing.

    CPU time of one thread, the least of several; on a device its driver's time is added to both.
    """
    real = [torch.empty(64, dtype=d) for d in (torch.bfloat16, torch.bfloat16, torch.float32)]
    compiled = launch.variant.compile(triton.runtime.driver.active.get_current_target())
    runner = compiled[(7, 2, 3)]
    whole = (*real[:2], 1024, real[2], 4, 4, 2.0, False)

    def dispatched() -> None:
        _add[(7, 2, 3)](*real[:2], 1024, real[2], 4, 4, 2.0, False, num_warps=8)

    routes = {
        "direct": lambda: launch(7, 2, 3, *given),
        "compiled": lambda: runner(*whole),
        "dispatched": dispatched,
    }
    best = dict.fromkeys(routes, float("inf"))
    for _ in range(15):
        for name, call in routes.items():
            call()
            start = time.thread_time_ns()
            for _ in range(200):
                call()
            best[name] = min(best[name], (time.thread_time_ns() - start) / 200e3)
    return best


def counted(name: str) -> int:
    return ctypes.c_int.in_dll(STUB, name).value


def launched() -> dict[str, Any]:
    got = Launched.in_dll(STUB, "last_launch")
    words = list(got.parameters)[:6]
    low = [w & 0xFFFF_FFFF for w in words]
    return {
        "grid": list(got.grid), "threads": got.threads, "stream": got.stream,
        "function": got.function, "pointers": words[:3],
        "n": struct.unpack("<i", struct.pack("<I", low[3]))[0], "rows": words[4],
        "factor": struct.unpack("<f", struct.pack("<I", low[5]))[0],
    }  # fmt: skip


main()
