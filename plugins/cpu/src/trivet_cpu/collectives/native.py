"""The functions of ``kernels/collectives.cpp``, and the numbers that they know things by."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

from trivet.contracts.collectives import REDUCTIONS
from trivet_cpu.kernel_library import library

DTYPES: Final = {
    name: number
    for number, name in enumerate((
        torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
        torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
        torch.complex32,
    ))
}  # fmt: skip
_ORDER: Final = ("sum", "prod", "max", "min", "band", "bor", "bxor")
REDUCING: Final = {name: _ORDER.index(name) for name in REDUCTIONS}
OPERATIONS: Final = (
    "", "barrier", "all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "gather",
    "scatter", "all_to_all",
)  # fmt: skip
MAX_RANKS: Final = 48

DONE: Final = 0
PENDING: Final = 1
TIMED_OUT: Final = 2
PEER_LOST: Final = 3
ABORTED: Final = 4
MISMATCH: Final = 5
INTERRUPTED: Final = 6
REFUSED: Final = 7

_P, _N, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_PROTOTYPES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "ranks_bytes": (_N, (_I, _N, _N)),
    "ranks_open": (_P, (_P, _I, _I, _N, _N, _N, _N, _P)),
    "ranks_see": (None, (_P,)),
    "ranks_leave": (_I, (_P,)),
    "ranks_free": (None, (_P,)),
    "ranks_abort": (None, (_P,)),
    "ranks_failure": (None, (_P, _P)),
    "ranks_mismatch": (None, (_P, _P, _P)),
    "ranks_state": (_I, (_P, _I, _P)),
    "ranks_share": (_I, (_P, _P, _N)),
    "ranks_unshare": (None, (_P, _I)),
    "barrier": (_I, (_P,)),
    "all_reduce": (_I, (_P, _P, _P, _N, _I, _I)),
    "reduce_scatter": (_I, (_P, _P, _P, _N, _I, _I)),
    "reduce": (_I, (_P, _P, _P, _N, _I, _I, _I)),
    "all_gather": (_I, (_P, _P, _P, _N)),
    "gather": (_I, (_P, _P, _P, _N, _I)),
    "broadcast": (_I, (_P, _P, _N, _I)),
    "scatter": (_I, (_P, _P, _P, _N, _I)),
    "all_to_all": (_I, (_P, _P, _P, _P, _P)),
    "all_to_all_even": (_I, (_P, _P, _P, _N)),
    "message_start": (_P, (_P, _P, _N, _I, _I)),
    "message_test": (_I, (_P, _P)),
    "message_wait": (_I, (_P, _P, _N)),
    "message_said": (_N, (_P,)),
    "message_end": (None, (_P, _P)),
}


class _Interpreter(ctypes.Structure):
    """How C gives the interpreter to other threads, takes it back and runs handlers of signals."""

    _fields_ = (("save", _P), ("restore", _P), ("check_signals", _P))


@cache
def interpreter() -> _Interpreter:
    """The three functions of this interpreter."""
    names = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_CheckSignals")
    return _Interpreter(*(ctypes.cast(getattr(ctypes.pythonapi, n), _P).value for n in names))


@cache
def _loaded() -> ctypes.PyDLL:
    # The calls keep the interpreter, and give it away themselves where they sleep or work for long;
    # what a handler of a signal raises meanwhile, they raise.
    return ctypes.PyDLL(str(library().path))


@cache
def native(name: str) -> Callable[..., Any]:
    """A function of the library, which has to be there."""
    function = getattr(_loaded(), f"trivet_{name}")
    function.restype, function.argtypes = _PROTOTYPES[name]
    return function  # type: ignore[no-any-return]
