"""vLLM's compiled libraries: found without importing vLLM, judged, and loaded once.

A library throws while it is loaded where somebody else has defined an operator of it, nothing
catches that, and the process ends. FlagGems, when it is imported, defines those of vLLM's operators
that it does not find; so vLLM's libraries are loaded before it, and where that is too late they are
refused with a typed error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from trivet.errors import PluginBroken
from trivet_cuda.peers.installed import folders, package

NEED: Final = package("vllm", "pip install vllm (0.33 was read)")


@dataclass(frozen=True)
class Library:
    """Files that define operators together.

    Args:
        patterns: their names in vLLM's folder.
        namespaces: where in ``torch.ops`` they define operators.
        sign: an operator of the first namespace that FlagGems does not define.
    """

    patterns: tuple[str, ...]
    namespaces: tuple[str, ...]
    sign: str

    @property
    def loaded(self) -> bool:
        """Whether its operators are there, whoever loaded it."""
        return hasattr(getattr(torch.ops, self.namespaces[0]), self.sign)

    def files(self) -> list[Path]:
        """What of it is installed."""
        return [p for f in folders("vllm") for g in self.patterns for p in sorted(f.glob(g))]


KERNELS: Final = Library(("_C.*so", "_C_stable_libtorch.*so"), ("_C", "_C_cache_ops"), "rms_norm")
ATTENTION: Final = Library(("vllm_flash_attn/_vllm_fa3_C.*so",), ("_vllm_fa3_C",), "fwd")
EXPERTS: Final = Library(("_moe_C*.so",), ("_moe_C",), "topk_sigmoid")


def loaded(library: Library) -> Any:
    """The first namespace of a library, with its operators.

    Raises:
        PluginBroken: it is not there, does not load with this torch, or must not be loaded.
    """
    if not library.loaded and (problem := _load(library)):
        what, fix = problem
        raise PluginBroken(f"peer vllm: {what}", fix=fix)
    return getattr(torch.ops, library.namespaces[0])


def before_others() -> None:
    """Loads what is installed of vLLM, for the sake of those who define what they do not find.

    A library that cannot be loaded stays refused with its reason for the rest of the process.
    """
    for library in (KERNELS, ATTENTION, EXPERTS):
        if not library.loaded and library.files():
            _load(library)


@cache
def _load(library: Library) -> tuple[str, str] | None:
    """What keeps a library out, and what to do; asked once, since a second try would not differ."""
    found = library.files()
    if not found:
        return f"no {' or '.join(library.patterns)} in {folders('vllm')}", NEED.install
    if taken := defined(library.namespaces):
        names = ", ".join(taken[:4])
        what = f"{names} are defined already, and not by vLLM (FlagGems does so when imported)"
        return f"{what}: loading {found[0].name} would end the process", (
            "bind a site that names cuda/vllm, or import vllm._custom_ops, before flag_gems is "
            "imported; or take one of them off the order list"
        )
    for path in found:
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            words = " ".join(str(error).split())[:300]
            what = f"{path} does not load with torch {torch.__version__}: {words}"
            return what, f"{NEED.install}, built for this torch"
    if not library.loaded:
        return f"{found[0]} defines no {library.sign}: another version than was read", NEED.install
    return None


def defined(namespaces: tuple[str, ...]) -> list[str]:
    """The operators of some namespaces that have a schema; a mere kernel is in nobody's way."""
    names: list[str] = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    ours = sorted(n for n in names if n.partition("::")[0] in namespaces)
    return [n for n in ours if _has_schema(*n.split("::"))]


def _has_schema(namespace: str, name: str) -> bool:
    return hasattr(getattr(torch.ops, namespace), name.partition(".")[0])
