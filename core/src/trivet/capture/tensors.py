"""Tensors in trees of containers, and what is known of a tensor as long as it lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class Alive(Generic[T]):
    """Values by tensor, by identity; a tensor that ended is forgotten."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], T]] = {}

    def get(self, tensor: Tensor) -> T | None:
        """The value of a tensor, None where there is none."""
        known = self._found.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def put(self, tensor: Tensor, value: T) -> None:
        """Notes a value."""
        self._found[id(tensor)] = weakref.ref(tensor), value

    def items(self) -> list[tuple[Tensor, T]]:
        """What is known of those that live, in the order in which it was noted."""
        pairs = [(ref(), value) for ref, value in self._found.values()]
        return [(tensor, value) for tensor, value in pairs if tensor is not None]


def leaves(tree: Any) -> Iterator[Any]:
    """Everything in a tree of tuples, lists and dicts that is none of them, and not None."""
    if isinstance(tree, (tuple, list)):
        for value in tree:
            yield from leaves(value)
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif tree is not None:
        yield tree


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with every leaf changed."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)([mapped(value, change) for value in tree])
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    return change(tree)


def storage_of(tensor: Tensor) -> int:
    """Address of the memory below a tensor; 0 where a library's own layout shows none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
