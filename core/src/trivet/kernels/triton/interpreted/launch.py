"""Runs kernels of ``triton.jit`` on CPU tensors, whatever the environment said at decoration.

While a kernel runs, a few attributes of Triton's modules are replaced, and put back afterwards:
compiling a kernel in the same process stays possible before and after, not in another thread
meanwhile.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from trivet.errors import DomainError
from trivet.kernels.triton.interpreted.builder import corrected

_LOCK = threading.RLock()
_ABSENT = object()


class Interpreter:
    """Triton's interpreter of this process with the corrections; make one, use it for all."""

    def __init__(self) -> None:
        self._module = import_module("triton.runtime.interpreter")
        self._jit = import_module("triton.runtime.jit")
        self._knobs = import_module("triton.knobs").runtime
        self._language = import_module("triton.language")
        ir = self._module._ir  # noqa: SLF001  # Triton exports its enumerations nowhere else
        self._builder = corrected(self._module, self._language, ir)
        self._semantic = self._module.TritonSemantic(self._builder)
        self._rewritten: dict[Any, tuple[dict[str, Any], Callable[..., Any]]] = {}

    def run(self, kernel: Any, grid: Any, args: Any, kwargs: Any) -> None:
        """Runs every program of a grid, one after the other."""
        with _LOCK, self._prepared(), self._silent():
            fn = self._rewrite(kernel.fn)
            grid = (grid,) if isinstance(grid, int) else grid
            grid = grid if callable(grid) else tuple(grid)
            self._module.GridExecutor(fn, kernel.arg_names, grid)(*args, **kwargs)

    def function(self, kernel: Any) -> None:
        """Refuses what is no kernel.

        Raises:
            DomainError: it is not what ``triton.jit`` returns.
        """
        kinds = (self._jit.JITFunction, self._module.InterpretedFunction)
        if not isinstance(kernel, kinds):
            msg = f"{type(kernel).__name__} is not what triton.jit returns"
            raise DomainError(msg, fix="give the jitted function itself, without its autotuner")

    def _rewrite(self, fn: Any) -> Callable[..., Any]:
        """The function as the interpreter runs it; its module's own globals stay untouched."""
        if fn not in self._rewritten:
            space = {**vars(self._module), "interpreter_semantic": self._semantic}
            rewriter = self._module.FunctionRewriter(fn)

            def compiled(tree: Any) -> Callable[..., Any]:
                local: dict[str, Any] = {}
                code = compile(tree, rewriter.filename, "exec", dont_inherit=False)
                space.update(fn.__globals__)
                exec(code, space, local)  # noqa: S102  # the kernel's own text
                made: Callable[..., Any] = local[fn.__name__]
                return made

            rewriter._compile_and_exec = compiled  # noqa: SLF001  # Triton's fills fn's globals
            self._rewritten[fn] = space, rewriter.rewrite_ast()
        space, made = self._rewritten[fn]
        space.update(fn.__globals__)  # names bound after the first launch
        return made

    def _language_patched(self, fn: Any) -> Any:
        """Patches the language once for all functions of a launch; Triton does so at each call."""
        del fn
        language, scope = self._language, self._module._LangPatchScope()  # noqa: SLF001
        stub = SimpleNamespace(__globals__={"tl": language, "core": language.core})
        kept = self._original_patch(stub)
        plain = language.dtype.to_ir
        own = {"fp8e4b8": language.float8e4b8, "fp8e5b16": language.float8e5b16}

        def to_ir(dtype: Any, builder: Any) -> Any:  # 3.6 does not know these two
            return own.get(dtype.name) or plain(dtype, builder)

        scope.set_attr(language.dtype, "to_ir", to_ir)
        # 3.6 asks numpy for the int of an array of one dim, which newer numpy refuses
        scope.set_attr(language.tensor, "__index__", lambda t: int(t.handle.data.item()))
        scope._changes = kept._changes + scope._changes  # noqa: SLF001  # one list to put back
        return scope

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """Keeps numpy from warning of an overflow, or of a maximum of NaN: no device does."""
        with self._module.np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
            yield

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        if self._module.interpreter_builder is self._builder:  # a kernel launched by a kernel
            yield
            return
        self._original_patch = self._module._patch_lang  # noqa: SLF001

        def device_function(callee: Any, *args: Any, **kwargs: Any) -> Any:
            return self._rewrite(callee.fn)(*args, **kwargs)

        changes = (
            (self._module, "interpreter_builder", self._builder),
            (self._module, "interpreter_semantic", self._semantic),
            (self._module, "_patch_lang", self._language_patched),
            (self._jit.JITFunction, "__call__", device_function),
            (self._module.InterpretedFunction, "__call__", device_function),
        )
        before = [(where, name, getattr(where, name)) for where, name, _ in changes]
        knob = vars(self._knobs).get("interpret", _ABSENT)
        try:
            for where, name, value in changes:
                setattr(where, name, value)
            vars(self._knobs)["interpret"] = True  # setattr would write os.environ
            yield
        finally:
            for where, name, value in before:
                setattr(where, name, value)
            vars(self._knobs).pop("interpret", None)
            if knob is not _ABSENT:
                vars(self._knobs)["interpret"] = knob
