"""Terms on the layout of a tensor in memory; dims of size <= 1 are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.contracts.terms.term import (
    UNKNOWN,
    Decision,
    Layout,
    Reader,
    Term,
    View,
    positive,
)


@dataclass(frozen=True)
class Contiguous(Term):
    """A tensor lies in memory in order, without gaps."""

    kind = "contiguous"
    about = "tensor"
    price = 6

    def decide(self, view: View) -> Decision:
        if view.value(f"{self.path}.contiguous") is True:
            return True
        layout = view.layout(self.path)
        if layout is None:
            return None
        ok = has_rows(layout.sizes, layout.strides, len(layout.sizes), 1)
        return ok or f"{self.path} is not contiguous: {_strides(layout)}"

    def source(self, reader: Reader) -> str:
        return reader.tensor(self.path, "contiguous")


@dataclass(frozen=True)
class Rows(Term):
    """The dims after ``*tokens`` are dense, the leading ones collapse to one strided dim."""

    multiple: int = 1
    kind = "rows"
    about = "tensor"
    price = 9

    def __post_init__(self) -> None:
        positive(self.kind, self.path, self.multiple)

    def decide(self, view: View) -> Decision:
        promised = view.value(f"{self.path}.rows")
        if isinstance(promised, int) and promised % self.multiple == 0:
            return True
        layout = view.layout(self.path)
        if layout is None:
            dense = view.value(f"{self.path}.contiguous") is True
            width = view.value(f"{self.path}.row_width") if dense else UNKNOWN
            if not isinstance(width, int):
                return None
            return width % self.multiple == 0 or self._no(f"width {width}")
        ok = has_rows(layout.sizes, layout.strides, view.inner(self.path), self.multiple)
        return ok or self._no(_strides(layout))

    def _no(self, why: str) -> str:
        return f"{self.path} has no dense rows with a stride of n*{self.multiple}: {why}"

    def source(self, reader: Reader) -> str:
        shape, stride = reader.tensor(self.path, "shape"), reader.tensor(self.path, "stride")
        return f"_has_rows({shape}, {stride}, {reader.inner(self.path)}, {self.multiple})"


@dataclass(frozen=True)
class OffsetAligned(Term):
    """The storage offset is a multiple of ``nbytes`` (bases are 64-byte aligned)."""

    nbytes: int
    kind = "offset_aligned"
    about = "tensor"
    price = 10

    def __post_init__(self) -> None:
        positive(self.kind, self.path, self.nbytes)

    def decide(self, view: View) -> Decision:
        promised = view.value(f"{self.path}.offset_aligned")
        if isinstance(promised, int) and promised % self.nbytes == 0:
            return True
        layout = view.layout(self.path)
        if layout is None:
            return None
        offset = layout.offset * layout.itemsize
        ok = offset % self.nbytes == 0
        return ok or f"{self.path} starts at byte {offset}, not a multiple of {self.nbytes}"

    def source(self, reader: Reader) -> str:
        itemsize = f"{reader.tensor(self.path, 'dtype')}.itemsize"
        return f"not {self.path}.storage_offset() * {itemsize} % {self.nbytes}"


def has_rows(sizes: Sequence[int], strides: Sequence[int], inner: int, multiple: int) -> bool:
    """Whether the last ``inner`` dims are dense and the leading ones collapse to one.

    The stride of the collapsed dim must be a multiple of ``multiple`` elements. Dims of size
    <= 1 are ignored; a tensor without elements always qualifies.
    """
    lead, expected, step = len(sizes) - inner, 1, None
    if any(size == 0 for size in sizes):
        return True
    for i in range(len(sizes) - 1, lead - 1, -1):
        if sizes[i] != 1:
            if strides[i] != expected:
                return False
            expected *= sizes[i]
    for i in range(lead - 1, -1, -1):
        if sizes[i] != 1:
            if step is None:
                if strides[i] % multiple:
                    return False
            elif strides[i] != step:
                return False
            step = strides[i] * sizes[i]
    return True


def _strides(layout: Layout) -> str:
    return f"shape {list(layout.sizes)}, strides {list(layout.strides)}"
