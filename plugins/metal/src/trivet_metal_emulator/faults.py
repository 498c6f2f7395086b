"""What the checker found, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trivet_metal_emulator.errors import Finding
from trivet_metal_emulator.loading import RawFinding, Runtime

__all__ = ["describe"]

_NOBODY = 0xFFFFFFFF
_SEVERAL, _ONE_SIMDGROUP = 0xFFFF, 0x8000
_WRITE, _ATOMIC, _AFTER_READ = 1, 2, 8
_BARRIER = "threadgroup_barrier(mem_flags::mem_{}) between the two"


class Words:
    """Sentences about the findings of one launch."""

    def __init__(self, runtime: Runtime, names: Sequence[str], origins: Sequence[int]) -> None:
        self.runtime = runtime
        self.names = names
        self.origins = origins

    def memory(self, raw: RawFinding) -> tuple[str, int]:
        """What the address belongs to, and how many bytes before it its origin lies."""
        if raw.region <= -2:
            return f"threadgroup {self.runtime.variable(-2 - raw.region)[0]}", 0
        if raw.region < 0:
            return "memory", 0
        return self.names[raw.region], self.origins[raw.region]

    def access(self, raw: RawFinding) -> str:
        """A read or a write of so many bytes."""
        atomic = "atomic " if raw.access & _ATOMIC else ""
        return f"{atomic}{'write' if raw.access & _WRITE else 'read'} of {raw.size} bytes"

    def race(self, raw: RawFinding) -> tuple[str, str, str]:
        where, origin = self.memory(raw)
        line = self.runtime.place(raw.other_place)[1]
        what = "read" if raw.access & _AFTER_READ else "wrote"
        if raw.extent:
            who = f"threadgroup number {raw.other_group}"
            fix = (
                "nothing orders two threadgroups within a launch: let one of them own each element"
            )
        else:
            who = self._who(raw.other_thread)
            kind = "threadgroup" if raw.region <= -2 else "device"
            fix = _BARRIER.format(kind)
        what = (
            f"{self.access(raw)} in {where} at byte {raw.offset - origin}, which {who} {what} at "
            f"line {line} with nothing in between that orders the two"
        )
        return "race", what, fix

    def _who(self, thread: int) -> str:
        if thread == _SEVERAL:
            return "several threads"
        if thread & _ONE_SIMDGROUP:
            return f"several lanes of simdgroup {thread & 0xFF}"
        return f"thread {thread}"

    def out_of_bounds(self, raw: RawFinding) -> tuple[str, str, str]:
        where, origin = self.memory(raw)
        at, size = raw.offset - origin, raw.extent - origin
        covered = f"outside its {size} bytes" if not 0 <= at < size else "between two arguments"
        what = f"{self.access(raw)} in {where} at byte {at}, {covered}"
        return "out-of-bounds", what, "compare the index with the size before the access"

    def misaligned(self, raw: RawFinding) -> tuple[str, str, str]:
        where, origin = self.memory(raw)
        at = raw.offset - origin
        what = f"{self.access(raw)} in {where} at byte {at}, which is no multiple of {raw.size}"
        return "misaligned", what, "load element by element, or a packed_ type"

    def uninitialised(self, raw: RawFinding) -> tuple[str, str, str]:
        where, _ = self.memory(raw)
        what = f"{self.access(raw)} of {where} that no thread of the group wrote"
        return "uninitialised", what, "write it first, and a barrier before the read"

    def barrier_not_reached(self, raw: RawFinding) -> tuple[str, str, str]:
        what = (
            f"{raw.offset} of {raw.extent} threads wait at this threadgroup_barrier, "
            f"and the others have ended"
        )
        return (
            "barrier",
            what,
            "no return before a barrier: put a condition around the work instead",
        )

    def barriers_differ(self, raw: RawFinding) -> tuple[str, str, str]:
        what = (
            f"threads of one group wait at different barriers: some here, some at line {raw.offset}"
        )
        return "barrier", what, "every thread must pass the same barriers"

    def simdgroup_barrier(self, raw: RawFinding) -> tuple[str, str, str]:
        what = f"{raw.offset} of {raw.extent} lanes are at this simdgroup_barrier"
        return "simdgroup-barrier", what, "every lane of the simdgroup must pass it"

    def inactive(self, raw: RawFinding) -> tuple[str, str, str]:
        if raw.offset < 0:
            what = "an operation on a simdgroup matrix, and not every lane takes part"
            return "inactive-lane", what, "no matrix operation under a condition"
        what = f"lane {raw.offset} is read, and it takes no part or does not exist"
        return "inactive-lane", what, "let every lane that is read execute the same operation"

    def memory_limit(self, raw: RawFinding) -> tuple[str, str, str]:
        what = f"{raw.offset} bytes of threadgroup memory, and the limit is {raw.extent}"
        return "threadgroup-memory", what, "smaller tiles, or fewer variables"

    def array_index(self, raw: RawFinding) -> tuple[str, str, str]:
        index = raw.offset if raw.offset < 1 << 31 else raw.offset - (1 << 32)
        what = f"index {index} is outside the array"
        return "array-index", what, "compare the index with the size before the access"

    def division(self, raw: RawFinding) -> tuple[str, str, str]:
        del raw
        return "division", "an integer is divided by zero, or the result overflows", ""

    def wild(self, raw: RawFinding) -> tuple[str, str, str]:
        where, origin = self.memory(raw)
        near = (
            f" ({raw.offset - origin} bytes from the start of {where})" if raw.region >= 0 else ""
        )
        what = f"{self.access(raw)} outside every buffer{near}"
        return "out-of-bounds", what, "compare the index with the size before the access"

    def endless(self, raw: RawFinding) -> tuple[str, str, str]:
        what = f"stopped after {raw.extent} accesses to memory and waits"
        return "endless", what, "max_accesses= allows more"


_KINDS: dict[int, Callable[[Words, RawFinding], tuple[str, str, str]]] = dict(
    enumerate(
        (
            Words.race, Words.out_of_bounds, Words.misaligned, Words.uninitialised,
            Words.barrier_not_reached, Words.barriers_differ, Words.simdgroup_barrier,
            Words.inactive, Words.memory_limit, Words.array_index, Words.division, Words.wild,
            Words.endless,
        ),
        1,
    )
)  # fmt: skip


def describe(runtime: Runtime, names: Sequence[str], origins: Sequence[int]) -> list[Finding]:
    """The findings of the last launch.

    Args:
        runtime: the library that ran.
        names: what each region is called.
        origins: bytes before the first byte of the arguments in each region.
    """
    words = Words(runtime, names, origins)
    found = []
    for raw in runtime.findings():
        kind, what, fix = _KINDS[raw.kind](words, raw)
        file, line = runtime.place(raw.place)
        other = runtime.place(raw.other_place) if kind == "race" else None
        found.append(
            Finding(
                kind, what, file, line, fix,
                thread=None if raw.thread == _NOBODY else raw.thread,
                group=(raw.group[0], raw.group[1], raw.group[2]),
                count=raw.count, other=other,
            )
        )  # fmt: skip
    return found
