"""A kernel: a jitted function, the types of its arguments, and variants with fixed constants."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from trivet.errors import DeclarationError, OrderError, PluginBroken

Launch = Callable[..., None]
"""``launch(grid_x, grid_y, grid_z, *arguments)``: every run-time argument, in kernel order."""

TYPES: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {
        torch.float64: "fp64",
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.float8_e4m3fn: "fp8e4nv",
        torch.float8_e5m2: "fp8e5",
        torch.float8_e4m3fnuz: "fp8e4b8",
        torch.float8_e5m2fnuz: "fp8e5b16",
        torch.int64: "i64",
        torch.int32: "i32",
        torch.int16: "i16",
        torch.int8: "i8",
        torch.uint8: "u8",
        torch.bool: "i1",
    }
)
"""Triton's name of each dtype, as signatures have it."""

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Settled(NamedTuple):
    """What the target decides about a kernel.

    Args:
        constants: values of ``tl.constexpr`` arguments.
        options: of Triton's compiler.
    """

    constants: Mapping[str, Any] = _NONE
    options: Mapping[str, Any] = _NONE


Settle = Callable[[Any], Settled]
"""``settle(target)``, with None where the kernel is interpreted."""


def _nothing(target: Any) -> Settled:
    del target
    return Settled()


_NAMES: Final = frozenset(TYPES.values())
_TYPE: Final = re.compile(r"\*?([A-Za-z][A-Za-z0-9]*)")


class Kernel:
    """A function of ``triton.jit`` and the type of each of its run-time arguments.

    ``Kernel(f, x="*T", rows="i64", eps="fp32")``: a leading ``*`` is a pointer. A name that is
    no type of Triton's is a dtype variable, which each variant fixes. Arguments that are
    ``tl.constexpr`` are not listed: they are the constants of a variant. ``settle`` gives those of
    them that the target decides; it is asked with None where the kernel is interpreted.

    Raises:
        DeclarationError: the types do not name the function's run-time arguments, all of them.
    """

    def __init__(self, function: Any, /, *, settle: Settle = _nothing, **types: str) -> None:
        plain = getattr(function, "fn", None)
        if not inspect.isfunction(plain):
            msg = f"{function!r} is not what triton.jit returns"
            raise DeclarationError(msg, fix="Kernel(jitted_function, x='*T', ...)")
        self.function, self.name = function, plain.__name__
        parameters = inspect.signature(plain).parameters.values()
        fixed = [p.name for p in parameters if "constexpr" in str(p.annotation)]
        self.order = tuple(p.name for p in parameters)
        self.settle, self.settled = settle, dict(settle(None).constants)
        self._same("settled constants", set(self.settled) - set(fixed), frozenset())
        self.constants = frozenset(fixed) - set(self.settled)
        self.arguments = tuple(n for n in self.order if n not in fixed)
        if set(types) != set(self.arguments):
            odd = ", ".join(sorted(set(types) ^ set(self.arguments)))
            msg = f"kernel {self.name}: types and run-time arguments differ in {odd}"
            raise DeclarationError(msg, fix="give a type for each argument that is no constexpr")
        for name, text in types.items():
            if not _TYPE.fullmatch(text):
                msg = f"kernel {self.name}: {name} has the type {text!r}"
                raise DeclarationError(msg, fix="such as '*T', '*fp32', 'i64' or 'fp32'")
        self.types: Mapping[str, str] = MappingProxyType({n: types[n] for n in self.arguments})
        self.pointers = tuple(n for n in self.arguments if types[n].startswith("*"))
        if not self.pointers:
            raise DeclarationError(f"kernel {self.name}: no argument is a pointer")
        self.variables = frozenset(t.lstrip("*") for t in types.values()) - _NAMES

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(f'{n}: {t}' for n, t in self.types.items())})>"

    def variant(
        self,
        dtypes: Mapping[str, torch.dtype] = _NONE,
        constants: Mapping[str, Any] = _NONE,
        *,
        divisible: Mapping[str, int] = _NONE,
        **options: Any,
    ) -> Variant:
        """Fixes everything that is compiled in.

        Args:
            dtypes: dtype variable -> dtype.
            constants: every ``tl.constexpr`` argument.
            divisible: argument -> power of two that divides it always: bytes of an address,
                units of an integer. Wide loads need it.
            options: of Triton's compiler: ``num_warps``, ``num_stages``, ...

        Raises:
            DeclarationError: names are missing or unknown; a divisor is no power of two.
        """
        self._same("dtype variables", set(dtypes), self.variables)
        self._same("constants", set(constants), self.constants)
        if unknown := set(divisible) - set(self.arguments):
            self._same("divisible arguments", unknown, frozenset())
        for name, by in divisible.items():
            if type(by) is not int or by < 1 or by & (by - 1):
                msg = f"kernel {self.name}: {name} divisible by {by!r}"
                raise DeclarationError(msg, fix="a power of two")
        types = {n: self._type(t, dtypes) for n, t in self.types.items()}
        return Variant(
            self,
            tuple(types.items()),
            tuple((n, constants[n]) for n in self.order if n in self.constants),
            tuple((n, divisible[n]) for n in self.arguments if divisible.get(n, 1) > 1),
            tuple(sorted(options.items())),
        )

    def launch(
        self,
        device: torch.device,
        dtypes: Mapping[str, torch.dtype] = _NONE,
        constants: Mapping[str, Any] = _NONE,
        *,
        divisible: Mapping[str, int] = _NONE,
        **options: Any,
    ) -> Launch:
        """What runs a variant on a kind of device: ``self.variant(...).on(device)``.

        It takes time (it may compile): keep it, by dtypes, sizes and flags.
        """
        return self.variant(dtypes, constants, divisible=divisible, **options).on(device)

    def _same(self, what: str, given: set[str], wanted: frozenset[str]) -> None:
        if given != wanted:
            odd = ", ".join(sorted(given ^ wanted))
            msg = f"kernel {self.name}: {what} given and expected differ in {odd}"
            raise DeclarationError(msg, fix=f"it has {', '.join(sorted(wanted)) or 'none'}")

    def _type(self, text: str, dtypes: Mapping[str, torch.dtype]) -> str:
        star, name = "*" * text.startswith("*"), text.lstrip("*")
        if name not in self.variables:
            return text
        found = TYPES.get(dtypes[name])
        if found is None:
            msg = f"kernel {self.name}: Triton has no type for {dtypes[name]}"
            raise DeclarationError(msg, fix=f"one of {', '.join(map(str, TYPES))}")
        return star + found


@dataclass(frozen=True)
class Variant:
    """A kernel with its types, constants, divisors and compiler options; equal ones are one."""

    kernel: Kernel
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, Any], ...]

    def source(self, target: Any) -> Any:
        """What Triton's compiler takes for a target."""
        kernel = self.kernel
        constants = {**dict(self.constants), **kernel.settle(target).constants}
        if not hasattr(kernel.function, "cache_key"):
            msg = f"kernel {kernel.name} was decorated under TRITON_INTERPRET=1: it cannot compile"
            raise OrderError(msg, fix="unset TRITON_INTERPRET and start again")
        at = {name: (i,) for i, name in enumerate(kernel.order)}
        types = dict(self.types)
        return import_module("triton.compiler").ASTSource(
            fn=kernel.function,
            signature={n: types.get(n, "constexpr") for n in kernel.order},
            constexprs={at[n]: value for n, value in constants.items()},
            attrs={at[n]: [["tt.divisibility", by]] for n, by in self.divisible},
        )

    def compile(self, target: Any = None) -> Any:
        """Compiles it; Triton keeps the result on disk.

        Args:
            target: a ``triton.backends.compiler.GPUTarget``; None for the device of this process.

        Returns:
            Triton's ``CompiledKernel``.

        Raises:
            PluginBroken: the compiler refuses; its words are in the text.
        """
        if target is None:
            target = import_module("triton.runtime").driver.active.get_current_target()
        settled = self.kernel.settle(target).options
        options = {"enable_fp_fusion": True, **settled, **dict(self.options)}
        try:
            source = self.source(target)
            return import_module("triton").compile(source, target=target, options=options)
        except (RuntimeError, ValueError, TypeError, import_module("triton").TritonError) as error:
            words = " ".join(str(error).split())[:600]
            msg = f"kernel {self.kernel.name} does not compile for {target}: {words}"
            raise PluginBroken(msg, fix=f"constants {dict(self.constants)}, {options}") from error

    def on(self, device: torch.device) -> Launch:
        """What runs it on tensors of a kind of device; on the CPU it is interpreted."""
        where = "interpreted.running" if device.type == "cpu" else "direct"
        made: Launch = import_module(f"trivet.kernels.triton.{where}").launch_of(self, device)
        return made
