"""What compiles and launches kernels: one protocol, two implementations.

``mps`` is ``torch.mps.compile_shader``, for tensors of a Mac's GPU; ``emulated`` is
``trivet_metal_emulator``, for CPU tensors. The tensors of a call say which one is meant: nothing
else chooses, so that no call leaves its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol

from trivet.contracts import Execution
from trivet.errors import PluginBroken
from trivet_metal.families import Limits


class Function(Protocol):
    """One kernel of a library, as ``torch.mps.compile_shader`` makes it."""

    @property
    def max_threads_per_threadgroup(self) -> int:
        """The largest group that this kernel can be launched with."""
        ...

    @property
    def thread_execution_width(self) -> int:
        """Threads that run in step."""
        ...

    @property
    def static_thread_group_memory_length(self) -> int:
        """Bytes of threadgroup memory that its source asks for."""
        ...

    def __call__(
        self,
        *args: Any,
        threads: tuple[int, ...],
        group_size: tuple[int, ...],
        arg_casts: Mapping[int, str],
    ) -> None:
        """Launches it: tensors and scalars in the order of the kernel's buffers."""
        ...


class Backend(Protocol):
    """Compiles sources for one type of device."""

    execution: Execution
    """How what it compiled is executed."""

    def compile(self, source: str, name: str) -> Any:
        """A library: its attributes are the kernels, each a ``Function``.

        Args:
            source: the whole text, includes replaced.
            name: of the file that it came from.

        Raises:
            PluginBroken: it does not compile; the text has the compiler's words.
        """
        ...

    def limits(self) -> Limits:
        """What a launch may use on this device."""
        ...

    def launch(
        self,
        library: Any,
        function: Function,
        args: tuple[Any, ...],
        launch: Mapping[str, Any],
        gate: tuple[int | None, bool],
    ) -> None:
        """Launches a kernel of a library and, where that can be seen, looks at what it did.

        Args:
            library: that the kernel is from.
            function: the kernel.
            args: its arguments.
            launch: threads, group_size and arg_casts.
            gate: bytes that it must write, None where that depends on data; and whether SIMD
                operations under a condition are meant.

        Raises:
            PluginBroken: the kernel did what no kernel may do; the text says where.
        """
        ...


_HOMES: Final = {"mps": "trivet_metal.backend.mps", "cpu": "trivet_metal.backend.emulated"}


@cache
def backend_of(device_type: str) -> Backend:
    """The backend for tensors of a type of device.

    Raises:
        PluginBroken: there is none, or it is not here.
    """
    if device_type not in _HOMES:
        msg = f"kernels in Metal are for tensors of {' or '.join(_HOMES)}, not {device_type!r}"
        raise PluginBroken(msg, fix="move the tensors: tensor.to('mps')")
    made: Backend = import_module(_HOMES[device_type]).backend()
    return made
