"""``Constants``: a kernel's choice of constants that each vendor may make for itself.

Tables are those of the architecture's vendor. Where nothing was measured its own defaults hold, or
else the kernel's author's, who counts warps of 32 threads: an architecture with wider ones takes as
many threads in fewer warps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trivet.kernels.triton import Tuned
from trivet.kernels.triton.tuned import Buckets, Config, Key
from trivet_triton.hardware import architecture

_AUTHORS: Final = 32
_LANES: Final = "lanes"

OPTIONS: Final = (
    "num_warps", "num_stages", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack",
)  # fmt: skip
"""Names of a config that are the compiler's; some back ends know, others pass over."""


class Constants(Tuned):
    """The choice of one kernel's constants, for any vendor.

    Args:
        name: the kernel's name in tables.
        space: ``space(key, rows) -> configs`` that are worth measuring for a call.
        default: ``default(key) -> buckets`` where nothing was measured.
        wide: whether both are told the threads of a warp (``lanes_of``) and choose for them.
    """

    def __init__(
        self,
        name: str,
        *,
        space: Callable[[Key, int], Iterable[Config]],
        default: Callable[[Key], Buckets],
        wide: bool = False,
    ) -> None:
        super().__init__(name, Path(), space=space, default=default)
        self.wide = wide

    def folder(self, arch: str) -> Path | None:
        """The tables of the architecture's vendor."""
        return architecture(arch).tables

    def defaults(self, arch: str, key: Key) -> Buckets:
        """The vendor's where it has some, else the author's."""
        if self.wide:
            key = {**key, _LANES: architecture(arch).lanes}
        return defaults_of(self.name, arch, key, self.default, wide=self.wide)

    def candidates(self, arch: str, key: Key, rows: int) -> Iterator[Config]:
        """The same of what is worth measuring, each once."""
        of, seen = architecture(arch), list[Config]()
        own = of.own.get(self.name)
        if own and own.space:
            yield from own.space(key, rows)
            return
        if self.wide:
            yield from self.space({**key, _LANES: of.lanes}, rows)
            return
        for made in self.space(key, rows):
            one = by_lanes(made, of.lanes)
            if one not in seen:
                seen.append(one)
                yield one


def defaults_of(
    name: str, arch: str, key: Key, default: Callable[[Key], Buckets], *, wide: bool = False
) -> Buckets:
    """The vendor's constants of a kernel where it has some, else the author's."""
    of = architecture(arch)
    own = of.own.get(name)
    if own is not None:
        return own.default(key)
    made = default(key)
    return made if wide else tuple((most, by_lanes(one, of.lanes)) for most, one in made)


def lanes_of(key: Key) -> int:
    """Threads of a warp, of a key that ``Constants`` passes on; no table goes by it."""
    return int(key.get(_LANES, _AUTHORS))


def by_lanes(config: Config, lanes: int) -> Config:
    """A config of the author's for warps of another width: as many threads, a warp at least."""
    warps = config.get("num_warps")
    if lanes == _AUTHORS or warps is None:
        return config
    return {**config, "num_warps": max(1, warps * _AUTHORS // lanes)}


def compiler_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The compiler's part of a config; zero leaves it to the compiler."""
    return {n: config[n] for n in OPTIONS if config.get(n)}
