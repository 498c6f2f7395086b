"""Core's own capture: the calls of torch operators as a list that is run again.

It works on every device and saves no time: each replay calls the operators as the host did. What
it shares with a graph of a device is the meaning. Sizes and branches are those of the capture,
memory that existed before is read and written where it lies, and what a replay computes appears in
the tensors that the capture made.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trivet.capture.tensors import Alive, leaves, mapped, storage_of, tensors
from trivet.errors import AddressMoved, OrderError


@dataclass(frozen=True, slots=True)
class _Value:
    """Stands for a tensor in the arguments of a recorded call."""

    number: int


@dataclass(slots=True)
class _Call:
    """One call; ``made`` and ``dropped`` are numbers of new tensors and of those last read here."""

    operator: Any
    args: Any
    kwargs: Any
    made: list[int]
    dropped: list[int] = field(default_factory=list)


class Recorded:
    """A list of calls that can be run again: a ``Graph`` of the contract."""

    def __init__(self, recording: Recording) -> None:
        self._calls = recording.calls
        self._outside = recording.outside
        self._count = recording.count
        self._inference = torch.is_inference_mode_enabled()
        self._kept = recording.kept()
        self._held = recording.alive()  # by later segments, through which nothing else holds them
        self._released = False
        self._drop_after_last_use()
        self.nbytes = sum(storage.nbytes() for _, storage in self._kept)

    def replay(self) -> None:
        """Run the calls in order, then write the tensors that were alive at the end.

        Raises:
            AddressMoved: a tensor that it reads has ended.
            OrderError: it was released.
        """
        if self._released:
            raise OrderError("this graph was released", fix="capture again")
        values: list[Any] = [None] * self._count
        for number, ref in self._outside:
            values[number] = ref()
            if values[number] is None:
                raise AddressMoved("a tensor that this graph reads has ended", fix="capture again")
        with torch.inference_mode() if self._inference else torch.no_grad():
            for call in self._calls:
                result = call.operator(*_filled(call.args, values), **_filled(call.kwargs, values))
                for number, tensor in zip(call.made, leaves(result), strict=True):
                    if number >= 0:
                        values[number] = tensor
                for number in call.dropped:
                    values[number] = None
            for number, storage in self._kept:
                storage.copy_(values[number].untyped_storage())

    def release(self) -> None:
        """Forget the calls and the tensors."""
        self._released = True
        self._calls, self._outside, self._kept, self._held = [], [], [], []

    def _drop_after_last_use(self) -> None:
        done = {number for number, _ in self._kept}
        for call in reversed(self._calls):
            used = [v.number for v in leaves([call.args, call.kwargs]) if isinstance(v, _Value)]
            for number in {*used, *(n for n in call.made if n >= 0)} - done:
                call.dropped.append(number)
                done.add(number)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every call of a torch operator that this thread makes while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self.outside: list[tuple[int, weakref.ref[Tensor]]] = []
        self.count = 0
        self.touched: set[int] = set()
        self._numbers: Alive[int] = Alive()
        self._made: Alive[int] = Alive()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Notes one call and makes it."""
        del types
        kwargs = kwargs or {}
        if (parts := decomposed(self, func, args, kwargs)) is not NotImplemented:
            return parts
        given = mapped(args, self._stand_in), mapped(kwargs, self._stand_in)
        result = func(*args, **kwargs)
        self.calls.append(_Call(func, *given, [self._number_of(r) for r in leaves(result)]))
        if is_empty(func):  # at the address of what ended, perhaps
            self.touched -= {storage_of(t) for t in tensors(result)}
        self.touched |= {storage_of(t) for t in computed(func, args, kwargs, result)}
        return result

    def kept(self) -> list[tuple[int, torch.UntypedStorage]]:
        """Number and memory of the tensors that live, each memory once; not what lay outside."""
        outside = {storage_of(t) for _, ref in self.outside if (t := ref()) is not None}
        found: dict[int, tuple[int, torch.UntypedStorage]] = {}
        for tensor, number in self._made.items():
            if (address := storage_of(tensor)) and address not in outside:
                found[address] = number, tensor.untyped_storage()
        return list(found.values())

    def alive(self) -> list[Tensor]:
        """The tensors that were made here and live; their memory is that of ``kept``."""
        return [tensor for tensor, _ in self._made.items()]

    def _stand_in(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        number = self._numbers.get(value)
        if number is None:
            number = self._new(value)
            self.outside.append((number, weakref.ref(value)))
        return _Value(number)

    def _number_of(self, result: Any) -> int:
        """The number of a new tensor; -1 for anything else, and for an argument given back."""
        if not isinstance(result, Tensor) or self._numbers.get(result) is not None:
            return -1
        number = self._new(result)
        self._made.put(result, number)
        return number

    def _new(self, tensor: Tensor) -> int:
        self._numbers.put(tensor, self.count)
        self.count += 1
        return self.count - 1


class Emulated:
    """The ``Capturer`` of every device whose plugin brings none."""

    def __init__(self) -> None:
        self._open: Recording | None = None

    def pool(self) -> object:
        """Nothing is shared; tensors of intermediate results are made anew."""
        return object()

    def begin(self, pool: object) -> None:
        """Start to note calls; they are made as well."""
        del pool
        self._open = Recording()
        self._open.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> Recorded:
        """The list of the calls."""
        return Recorded(self._closed())

    def abandon(self) -> None:
        """Forget the calls; what they wrote stays written."""
        if self._open is not None:
            self._closed()

    def unseen(self, tree: Any) -> bool:
        """Whether some tensor was written by no call that was noted: replays would not write it."""
        touched = set() if self._open is None else self._open.touched
        return any(t.numel() and storage_of(t) not in touched for t in tensors(tree))

    def forget_touched(self) -> None:
        """Start anew to note what is written."""
        if self._open is not None:
            self._open.touched.clear()

    def _closed(self) -> Recording:
        recording, self._open = self._open, None
        if recording is None:
            raise OrderError("no recording is open", fix="begin one")
        recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return recording


def _filled(tree: Any, values: list[Any]) -> Any:
    """The arguments of a recorded call, with the tensors of this replay."""
    return mapped(tree, lambda v: values[v.number] if isinstance(v, _Value) else v)


def decomposed(mode: TorchDispatchMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operator gives that only calls others, each seen by the mode; else NotImplemented.

    Under ``torch.inference_mode`` modes are shown such operators whole, and then nothing of what
    they do.
    """
    if not torch.is_inference_mode_enabled():
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


def is_empty(func: Any) -> bool:
    """Whether an operator only reserves memory."""
    name: str = func.overloadpacket.__name__
    return name.removeprefix("new_").startswith("empty")


def computed(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> list[Tensor]:
    """The tensors that a call has written: results that are no views, and what it changes.

    Memory that was only reserved is not written.
    """
    if is_empty(func):
        return []
    schema, found = func._schema, []  # noqa: SLF001  # what torch's own modes read
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors(args[i] if i < len(args) else kwargs.get(argument.name))
    results = result if len(schema.returns) > 1 else [result]
    for declared, value in zip(schema.returns, results, strict=False):
        if declared.alias_info is None or declared.alias_info.is_write:
            found += tensors(value)
    return found
