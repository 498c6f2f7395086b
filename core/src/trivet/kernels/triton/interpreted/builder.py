"""Triton's interpreter with corrected arithmetic of the narrow formats.

As Triton ships it, the interpreter truncates float32 to bfloat16, multiplies and adds the *bits*
of bfloat16, and does not saturate 8-bit formats. Here every such operation goes through float32
and is rounded once. Other operations are Triton's own.
"""

from __future__ import annotations

from typing import Any

from trivet.kernels.triton.interpreted.numerics import NARROW, convert, truncated


class _Formats:
    """Values of the narrow formats, up to float32 and down again."""

    def __init__(self, interpreter: Any, language: Any) -> None:
        self.handle, self._f32 = interpreter.TensorHandle, language.float32

    def narrow(self, value: Any) -> bool:
        """Whether numpy has no type for its format."""
        return value.dtype.scalar.name in NARROW

    def up(self, value: Any) -> Any:
        """As float32 where it is narrow; itself otherwise."""
        return self.down(value, self._f32) if self.narrow(value) else value

    def down(self, value: Any, dtype: Any) -> Any:
        """Rounded once to another format."""
        return self.handle(convert(value.data, value.dtype.scalar.name, dtype.name), dtype)


def corrected(interpreter: Any, language: Any, ir: Any) -> Any:
    """An object that stands in for Triton's ``InterpreterBuilder``.

    Args:
        interpreter: the module ``triton.runtime.interpreter``.
        language: the module ``triton.language``.
        ir: Triton's enumerations of rounding modes and atomic operations.
    """
    f = _Formats(interpreter, language)
    casts = _casts(interpreter.InterpreterBuilder, f, language, ir)
    return _products(_arithmetic(casts, f), f, interpreter, ir)()


def _casts(base: Any, f: _Formats, language: Any, ir: Any) -> Any:
    class Casts(base):  # type: ignore[misc]  # its type is not known
        """Casts round to nearest even."""

        def cast_impl(self, src: Any, dst_type: Any) -> Any:
            if f.narrow(src) or dst_type.scalar.name in NARROW:
                return f.down(src, dst_type.scalar)
            return super().cast_impl(src, dst_type)

        def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
            if rounding_mode == ir.ROUNDING_MODE.RTZ:
                if (src.dtype.scalar.name, dst_type.scalar.name) != ("fp32", "bf16"):
                    raise NotImplementedError("rounding towards zero is checked for bf16 only")
                return f.handle(truncated(src.data), dst_type.scalar)
            return f.down(src, dst_type.scalar)

        def get_bf16(self, value: float) -> Any:
            return f.down(self.get_fp32(value), language.bfloat16)

    return Casts


def _arithmetic(base: Any, f: _Formats) -> Any:
    class Arithmetic(base):  # type: ignore[misc]  # its type is not known
        """Elementwise operations work on values, not on bits."""

        def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
            if not f.narrow(lhs):
                return super().binary_op(lhs, rhs, op)
            made = super().binary_op(f.up(lhs), f.up(rhs), op)
            if made.data.dtype == bool:  # a comparison; Triton too keeps the operands' type
                return f.handle(made.data, lhs.dtype.scalar)
            return f.down(made, lhs.dtype.scalar)

        def unary_op(self, arg: Any, op: Any) -> Any:
            made = super().unary_op(f.up(arg), op)
            return f.down(made, arg.dtype.scalar) if f.narrow(arg) else made

        def create_rsqrt(self, arg: Any) -> Any:
            made = super().create_rsqrt(f.up(arg))
            return f.down(made, arg.dtype.scalar) if f.narrow(arg) else made

        def create_fma(self, x: Any, y: Any, z: Any) -> Any:
            made = super().create_fma(f.up(x), f.up(y), f.up(z))
            return f.down(made, z.dtype.scalar) if f.narrow(z) else made

        def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
            made = super().create_clampf(f.up(arg), f.up(lo), f.up(hi), propagate_nans)
            return f.down(made, arg.dtype.scalar) if f.narrow(arg) else made

    return Arithmetic


def _products(base: Any, f: _Formats, interpreter: Any, ir: Any) -> Any:
    class Products(base):  # type: ignore[misc]  # its type is not known
        """Dots and atomic sums."""

        def create_dot(self, a: Any, b: Any, d: Any, *precision: Any) -> Any:
            if not (f.narrow(a) or f.narrow(b) or f.narrow(d)):
                return super().create_dot(a, b, d, *precision)
            made = super().create_dot(f.up(a), f.up(b), f.up(d), *precision)
            return f.down(made, d.dtype.scalar) if f.narrow(d) else made

        def create_atomic_rmw(
            self, operation: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
        ) -> Any:
            if not f.narrow(val):
                return super().create_atomic_rmw(operation, ptr, val, mask, sem, scope)
            if operation != ir.ATOMIC_OP.FADD:
                raise NotImplementedError(f"{operation} of {val.dtype.scalar} is not interpreted")
            return _added(interpreter, f, self, ptr, val, mask)

    return Products


def _added(interpreter: Any, f: _Formats, builder: Any, ptr: Any, val: Any, mask: Any) -> Any:
    """One lane after the other, as the lanes of one program may meet the same address."""
    raw, old = interpreter._interpreter, val.data.copy()  # noqa: SLF001  # loads and stores
    for lane in range(old.size):
        at = ptr.data.reshape(-1)[lane : lane + 1]
        on = mask.data.reshape(-1)[lane : lane + 1]
        add = f.handle(val.data.reshape(-1)[lane : lane + 1], val.dtype)
        was = f.handle(raw.load(at, on, add.data, add.data.dtype), val.dtype.scalar)
        raw.store(at, builder.create_fadd(was, add).data, on)
        old.reshape(-1)[lane] = was.data[0]
    return f.handle(old, val.dtype.scalar)
