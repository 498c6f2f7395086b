"""Kernels on a Mac's GPU, through ``torch.mps.compile_shader``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from trivet.contracts import Execution
from trivet.errors import PluginBroken
from trivet_metal import families
from trivet_metal.backend import Function


class MpsBackend:
    """Compiles with Apple's compiler, launches in torch's stream; it looks at nothing else."""

    execution: Final = Execution.HARDWARE

    def compile(self, source: str, name: str) -> Any:
        """A library of torch."""
        try:
            return torch.mps.compile_shader(source)
        except (RuntimeError, SyntaxError) as error:  # torch says the latter of the text itself
            system = "this macOS and torch accept no such source"
            raise PluginBroken(f"{name} does not compile: {error}", fix=system) from error

    def limits(self) -> families.Limits:
        """Those of the oldest family; a kernel's own, which torch tells, are checked besides."""
        return families.limits(families.OLDEST)

    def launch(
        self,
        library: Any,
        function: Function,
        args: tuple[Any, ...],
        launch: Mapping[str, Any],
        gate: tuple[int | None, bool],
    ) -> None:
        """Launches it."""
        del library, gate
        function(*args, **launch)


def backend() -> MpsBackend:
    """The backend of this process."""
    return MpsBackend()
