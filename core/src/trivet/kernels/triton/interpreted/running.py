"""A variant on CPU tensors: what it promised is checked, then the interpreter runs it."""

from __future__ import annotations

from typing import Any

import torch

from trivet.errors import DomainError
from trivet.kernels.triton.interpreted import MOST_PROGRAMS, limited, the_interpreter
from trivet.kernels.triton.kernel import TYPES, Launch, Variant


def launch_of(variant: Variant, device: torch.device) -> Launch:
    """Runs a variant as ``launch(grid_x, grid_y, grid_z, *arguments)``; milliseconds a program."""
    del device
    interpreter, kernel = the_interpreter(), variant.kernel
    types = dict(variant.types)
    constants = {**dict(variant.constants), **variant.kernel.settled}

    def launch(grid_x: int, grid_y: int, grid_z: int, *arguments: Any) -> None:
        given = dict(zip(kernel.arguments, arguments, strict=True))
        for name, value in given.items():
            _refuse_type(kernel.name, name, value, types[name])
        for name, by in variant.divisible:
            value = given[name]
            number = value.data_ptr() if isinstance(value, torch.Tensor) else value
            if number % by:
                msg = f"kernel {kernel.name}: {name} is {number}, promised to be a multiple of {by}"
                raise DomainError(msg, fix="state the alignment in the domain")
        grid = limited((grid_x, grid_y, grid_z), MOST_PROGRAMS)
        if grid_x * grid_y * grid_z:
            interpreter.run(kernel.function, grid, (), given | constants)

    return launch


def _refuse_type(kernel: str, name: str, value: Any, wanted: str) -> None:
    """Refuses what the compiled kernel would read as something else."""
    if wanted.startswith("*"):
        dtype = value.dtype if isinstance(value, torch.Tensor) else None
        fits = dtype is not None and TYPES.get(dtype) == wanted[1:]
        found = str(dtype or type(value).__name__)
    elif wanted.startswith(("fp", "bf")):
        fits, found = isinstance(value, (int, float)), type(value).__name__
    else:
        bits, signed = int(wanted[1:]), wanted[0] == "i"
        low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        fits = isinstance(value, int) and low <= value < high
        found = str(value)
    if not fits:
        msg = f"kernel {kernel}: {name} is {found}, compiled for {wanted}"
        raise DomainError(msg, fix="make the variant for the arguments that it gets")
