"""Where the tensors lie that a capture found and did not make: weights, caches, tables."""

from __future__ import annotations

import weakref
from typing import NoReturn

from torch import Tensor

from trivet.capture.tensors import Alive
from trivet.errors import AddressMoved, CaptureUnsafe

_AGAIN = "capture again, or keep that tensor where it is for as long as the graphs are used"


class Addresses:
    """Tensors by name, held weakly; ``check`` compares all addresses at once."""

    def __init__(self) -> None:
        self._known: Alive[bool] = Alive()
        self._names: list[str] = []
        self._refs: list[weakref.ref[Tensor]] = []
        self._addresses: list[int | None] = []
        self._opaque: list[tuple[str, weakref.ref[Tensor]]] = []

    def __len__(self) -> int:
        return len(self._refs) + len(self._opaque)

    def note(self, tensor: Tensor, name: str) -> None:
        """Notes a tensor once; the first name stays."""
        if self._known.get(tensor) is not None:
            return
        self._known.put(tensor, True)
        ref = weakref.ref(tensor)
        try:
            address = tensor.data_ptr()
        except (NotImplementedError, RuntimeError):  # a layout of a library shows no address
            self._opaque.append((name, ref))
            return
        self._names.append(name)
        self._refs.append(ref)
        self._addresses.append(address)

    def refuse_ended(self) -> None:
        """Refuses a capture that read a tensor which nobody holds.

        Raises:
            CaptureUnsafe: names it.
        """
        for name, ref in [*zip(self._names, self._refs, strict=True), *self._opaque]:
            if ref() is None:
                what = f"{name} was made in the captured work by nothing that a capture sees"
                raise CaptureUnsafe(what, fix="make that tensor before, and keep it")

    def check(self) -> None:
        """Refuses a replay over memory that is not what was captured.

        Raises:
            AddressMoved: names what moved or ended.
        """
        now = [t.data_ptr() if (t := ref()) is not None else None for ref in self._refs]
        if now != self._addresses:
            self._refuse(now)
        for name, ref in self._opaque:
            if ref() is None:
                raise AddressMoved(f"{name} has ended", fix=_AGAIN)

    def _refuse(self, now: list[int | None]) -> NoReturn:
        rows = zip(self._names, self._addresses, now, strict=True)
        name, was, here = next(row for row in rows if row[1] != row[2])
        how = "has ended" if here is None else f"lay at {was:#x} and lies at {here:#x}"
        raise AddressMoved(f"{name} {how}", fix=_AGAIN)
