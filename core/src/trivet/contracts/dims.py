"""Named dims: the small grammar in which an operator states the shapes of its tensors.

A shape is text such as ``"*tokens heads head_dim"``. A dim is ``name``, ``n*name``, ``name+n``,
``name/n`` or ``ceil(name/n)`` with ``n`` an integer literal or an integer argument. One leading
``*name`` stands for any number of dims; its value is their product, 1 for none.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trivet.errors import DeclarationError

_FORMS = (
    (re.compile(r"\*(?P<name>[a-z_]\w*)"), "star"),
    (re.compile(r"(?P<name>[a-z_]\w*)"), "plain"),
    (re.compile(r"(?P<n>\d+|[a-z_]\w*)\*(?P<name>[a-z_]\w*)"), "times"),
    (re.compile(r"(?P<name>[a-z_]\w*)\+(?P<n>\d+|[a-z_]\w*)"), "plus"),
    (re.compile(r"(?P<name>[a-z_]\w*)/(?P<n>\d+|[a-z_]\w*)"), "over"),
    (re.compile(r"ceil\((?P<name>[a-z_]\w*)/(?P<n>\d+|[a-z_]\w*)\)"), "ceil"),
)
_SIZES = {"plain": "{v}", "times": "{v} * {n}", "plus": "{v} + {n}", "over": "{v} // {n}"}
_SIZES |= {"star": "{v}", "ceil": "-(-{v} // {n})"}
"""The size, from the value ``v`` of the name."""
_VALUES = {"plain": "{v}", "times": "{v} // {n}", "plus": "{v} - {n}", "over": "{v} * {n}"}
_VALUES |= {"star": "{v}"}
"""The value of the name, from the size ``v``."""


def _numbers(texts: Mapping[str, str]) -> dict[str, Callable[[int, int], int]]:
    """The same arithmetic on numbers, so that a guard's text and a number cannot differ."""
    text = ", ".join(f"{f!r}: lambda v, n: {t.format(v='v', n='n')}" for f, t in texts.items())
    made: dict[str, Callable[[int, int], int]] = eval(f"{{{text}}}")  # noqa: S307  # our own text
    return made


_SIZE, _VALUE = _numbers(_SIZES), _numbers(_VALUES)


@dataclass(frozen=True)
class Dim:
    """One entry of a shape: a named size and what is done to it."""

    text: str
    name: str
    form: str
    n: int | str = 0

    @classmethod
    def parse(cls, text: str) -> Dim:
        """Reads one entry.

        Raises:
            DeclarationError: the text is not in the grammar, or names a Python keyword.
        """
        for pattern, form in _FORMS:
            if match := pattern.fullmatch(text):
                name = match["name"]
                if keyword.iskeyword(name):
                    msg = f"dim {text!r}: {name!r} is a Python keyword"
                    raise DeclarationError(msg)
                n = match.groupdict().get("n", "0")
                if form not in {"star", "plain", "plus"} and n.isdigit() and not int(n):
                    msg = f"dim {text!r}: a size is neither multiplied nor divided by 0"
                    raise DeclarationError(msg)
                return cls(text, name, form, int(n) if n.isdigit() else n)
        msg = f"{text!r} is not a dim (name, *name, n*name, name+n, name/n, ceil(name/n))"
        raise DeclarationError(msg)

    @property
    def star(self) -> bool:
        """Whether this entry stands for any number of leading dims."""
        return self.form == "star"

    @property
    def solvable(self) -> bool:
        """Whether the name follows from the size (``ceil`` loses the remainder)."""
        return self.form in _VALUES

    def size_text(self, value: str) -> str:
        """Python text of the size, from text of the name's value."""
        return _SIZES[self.form].format(v=value, n=self.n)

    def value_text(self, size: str) -> str:
        """Python text of the name's value, from text of the size."""
        return _VALUES[self.form].format(v=size, n=self.n)

    def _n(self, values: Mapping[str, int]) -> int:
        if isinstance(self.n, int):
            return self.n
        n = values[self.n]
        if not n and self.form != "plus":
            msg = f"dim {self.text!r}: {self.n} is 0"
            raise DeclarationError(msg)
        return n

    def size(self, values: Mapping[str, int]) -> int:
        """The size, from the values of names and integer arguments."""
        return _SIZE[self.form](values[self.name], self._n(values))

    def solve(self, size: int, values: Mapping[str, int]) -> int:
        """The name's value, from a size seen at run time."""
        return _VALUE[self.form](size, self._n(values))


@dataclass(frozen=True)
class Shape:
    """The shape of one tensor: entries, of which only the first may be a star."""

    text: str
    dims: tuple[Dim, ...]

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Reads a shape.

        Raises:
            DeclarationError: an entry is not in the grammar, or a star is not first.
        """
        dims = tuple(Dim.parse(t) for t in text.split())
        if any(d.star for d in dims[1:]):
            msg = f"shape {text!r}: only the first dim may be a star"
            raise DeclarationError(msg)
        return cls(text, dims)

    @cached_property
    def star(self) -> bool:
        """Whether any number of leading dims is allowed."""
        return bool(self.dims) and self.dims[0].star

    @cached_property
    def inner(self) -> tuple[Dim, ...]:
        """The entries after the star (all of them without one)."""
        return self.dims[1:] if self.star else self.dims

    @property
    def rank(self) -> int | None:
        """The number of dims, or None when a star leaves it open."""
        return None if self.star else len(self.dims)

    def index(self, position: int) -> int:
        """The index of entry ``position`` in a real shape (negative where a star leads)."""
        return position - len(self.dims) if self.star else position

    def leading(self, shape: Sequence[int]) -> Sequence[int]:
        """The dims of a real shape that the star stands for."""
        return shape[: len(shape) - len(self.inner)]
