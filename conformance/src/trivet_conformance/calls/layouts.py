"""Layouts: the same values as other views of memory, with canaries around and between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.declaration import Operator
from trivet.judging.statistics import same_bits
from trivet_conformance.calls.points import Point

GUARD: Final = 64
"""Canary elements on either side; also keeps a view's offset a multiple of 64 bytes."""

KINDS: Final = ("offset1", "rows1", "rows64", "inner2", "transposed", "expanded")
"""Layouts of one argument. ``gaps`` is another, for leading dims that do not collapse."""


@dataclass(frozen=True)
class Layout:
    """How the arguments of a call lie in memory.

    Args:
        lead: leading dims that a star stands for; None is one dim.
        kinds: layout of single arguments (``out`` for the results of the out form); what is not
            named is contiguous.
        packed: arguments that are views side by side in one base.
        scheduled: whether the provider's own schedule is made and passed.
    """

    lead: tuple[int, ...] | None = None
    kinds: tuple[tuple[str, str], ...] = ()
    packed: tuple[str, ...] = ()
    scheduled: bool = False

    @property
    def text(self) -> str:
        """The layout as part of a case's name."""
        parts = [f"{arg}={kind}" for arg, kind in self.kinds]
        if self.lead is not None:
            parts.append(f"lead={'x'.join(map(str, self.lead)) or 'none'}")
        if self.packed:
            parts.append(f"packed={'+'.join(self.packed)}")
        if self.scheduled:
            parts.append("scheduled")
        return ",".join(parts) or "contiguous"


def leads(op: Operator, point: Point) -> list[tuple[int, ...]]:
    """Leading dims with the same product as the point's star."""
    dims = dict(point.dims)
    found: list[tuple[int, ...]] = []
    for star in op.stars:
        n = dims[star]
        found += [(n,), (1, n), (1, n, 1)]
        if n % 2 == 0:
            found.append((2, n // 2))
        if n == 1:
            found.append(())
    return found


@dataclass
class Base:
    """One allocation: its memory as one dim, the views in it, and its content before the call."""

    memory: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)
    before: Tensor | None = None

    def outside(self, written: Sequence[str]) -> Tensor:
        """Which elements no written view covers."""
        mask = torch.ones(self.memory.shape, dtype=torch.bool, device=self.memory.device)
        for name in written:
            if (view := self.views.get(name)) is not None:
                torch.as_strided(mask, view.shape, view.stride(), view.storage_offset()).fill_(
                    False
                )
        return mask


@dataclass
class Placed:
    """Arguments as views of guarded bases."""

    arguments: dict[str, Any]
    bases: list[Base]

    def remember(self) -> None:
        """Keeps the content of every base, to be compared after the call."""
        for base in self.bases:
            base.before = base.memory.clone()

    def disturbed(self) -> list[str]:
        """Which bases changed where no view of a call lies, by the names of their views."""
        found = []
        for base in self.bases:
            if base.before is None:
                continue
            changed = ~same_bits(base.memory, base.before)
            if bool((changed & base.outside(list(base.views))).any()):
                found.append(" and ".join(base.views))
        return found


def place(
    op: Operator,
    arguments: Mapping[str, Any],
    layout: Layout,
    device: torch.device,
    outs: Sequence[Tensor] = (),
) -> Placed | None:
    """Lays arguments out on a device.

    Args:
        op: the operator.
        arguments: contiguous, on the CPU, with one leading dim for a star.
        layout: how they shall lie.
        device: where.
        outs: results of the out form to lay out too, as ``out``.

    Returns:
        The views, or None where an argument's shape cannot have its layout.
    """
    kinds = dict(layout.kinds)
    placed = Placed({}, [])
    for name, value in arguments.items():
        if isinstance(value, Tensor) and name not in layout.packed:
            shape = op.shapes[name]
            led = _led(value, shape.star, layout.lead)
            view = _one(placed, name, led, len(shape.inner), kinds.get(name, ""), device)
            if view is None:
                return None
            placed.arguments[name] = view
        elif isinstance(value, list):
            placed.arguments[name] = [_copied(t, device) for t in value]
        else:
            placed.arguments[name] = value
    if layout.packed:
        _packed(op, placed, arguments, layout, device)
    if outs:
        views = []
        for i, (out, output) in enumerate(zip(outs, op.outputs, strict=False)):
            led = _led(out, output.shape.star, layout.lead)
            inner = len(output.shape.inner)
            views.append(_one(placed, f"out[{i}]", led, inner, kinds.get("out", ""), device))
        if any(v is None for v in views):
            return None
        placed.arguments["out"] = views[0] if op.signature.packing == "one" else views
    return placed


def _led(t: Tensor, star: bool, lead: tuple[int, ...] | None) -> Tensor:
    return t if lead is None or not star else t.reshape((*lead, *t.shape[1:]))


def _copied(t: Tensor, device: torch.device) -> Tensor:
    return t.to(device).clone() if t.layout is torch.strided else t


def _one(
    placed: Placed, name: str, t: Tensor, inner: int, kind: str, device: torch.device
) -> Tensor | None:
    strides = strides_of(t.shape, inner, kind)
    if strides is None:
        return None
    base = _base(_span(t.shape, strides), t.dtype, device)
    offset = GUARD + (kind == "offset1")
    view = torch.as_strided(base.memory, t.shape, strides, offset)
    _fill(view, t)
    base.views[name] = view
    placed.bases.append(base)
    return view


def _fill(view: Tensor, t: Tensor) -> None:
    if 0 in view.stride() and view.numel():
        shared = [s == 0 and n > 1 for s, n in zip(view.stride(), view.shape, strict=True)]
        at = tuple(slice(0, 1) if same else slice(None) for same in shared)
        view, t = view[at], t[at]
    view.copy_(t)


def _base(span: int, dtype: torch.dtype, device: torch.device) -> Base:
    """Memory full of canaries: NaN where that exists, zero where a wild index would crash."""
    memory = torch.empty(span + 2 * GUARD + 1, dtype=dtype, device=device)
    return Base(memory.fill_(math.nan if dtype.is_floating_point else 0))


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def dense(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides, step = [1] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= max(shape[i], 1)
    return strides


def strides_of(shape: Sequence[int], inner: int, kind: str) -> list[int] | None:
    """The strides of a layout, or None where the shape has no such layout.

    Args:
        shape: sizes.
        inner: how many trailing dims belong to a token (all but the first where there is no star).
        kind: one of ``KINDS``, ``gaps``, or empty for contiguous.
    """
    plain, rank = dense(shape), len(shape)
    lead = rank - inner or min(1, rank - 1)
    width = math.prod(shape[lead:])
    if kind in ("", "offset1"):
        return plain
    if rank == 0:
        return None
    if kind.startswith("rows"):
        if lead == 0 or not inner:
            return None
        pad = int(kind.removeprefix("rows"))
        return [s // width * (width + pad) for s in plain[:lead]] + plain[lead:] if width else plain
    if kind == "inner2":
        return [2 * s for s in plain]
    if kind == "transposed":
        if rank < 2:
            return None
        swapped = dense([*shape[:-2], shape[-1], shape[-2]])
        return [*swapped[:-2], swapped[-1], swapped[-2]]
    if kind == "expanded":
        return [0, *dense(shape[1:])]
    if kind == "gaps":
        return [plain[0] + max(width, 1), *plain[1:]] if lead >= 2 else None
    msg = f"no layout {kind!r}"
    raise ValueError(msg)


def packable(op: Operator, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments that an engine may give as side by side views of one base.

    They have the same star, some inner dims, and the dtype variable of the first of them.
    """
    found = [
        name
        for name, shape in op.shapes.items()
        if shape.star and shape.inner and isinstance(arguments.get(name), Tensor)
    ]
    alike = [n for n in found if op.dtypes[n] == op.dtypes[found[0]]]
    return tuple(alike) if len(alike) > 1 else ()


def _packed(
    op: Operator,
    placed: Placed,
    arguments: Mapping[str, Any],
    layout: Layout,
    device: torch.device,
) -> None:
    tensors = {n: _led(arguments[n], True, layout.lead) for n in layout.packed}
    widths = {
        n: math.prod(t.shape[t.dim() - len(op.shapes[n].inner) :]) for n, t in tensors.items()
    }
    first = next(iter(tensors.values()))
    tokens = arguments[layout.packed[0]].shape[0]
    base = _base(tokens * sum(widths.values()), first.dtype, device)
    offset, total = GUARD, sum(widths.values())
    for name, t in tensors.items():
        lead = t.dim() - len(op.shapes[name].inner)
        strides = [s * total for s in dense(t.shape[:lead])] + dense(t.shape[lead:])
        view = torch.as_strided(base.memory, t.shape, strides, offset)
        view.copy_(t)
        base.views[name] = placed.arguments[name] = view
        offset += widths[name]
    placed.bases.append(base)
    placed.arguments = {n: placed.arguments[n] for n in arguments}


def enumerate_layouts(
    op: Operator,
    arguments: Mapping[str, Any],
    point: Point,
    *,
    fixed: frozenset[str],
    out: bool,
) -> Iterator[Layout]:
    """Layouts to try: each argument alone in each kind, all rows at once, packed, led."""
    tensors = [n for n in op.tensors if isinstance(arguments.get(n), Tensor)]
    starred = [n for n in tensors if op.shapes[n].star and op.shapes[n].inner]
    for name in tensors:
        # A cache that is written is a base of its own: the operator knows no other layout of it.
        own_base = name in op.writes and not op.shapes[name].star
        for kind in KINDS[:1] if own_base else KINDS:
            if kind != "expanded" or name not in fixed:
                yield Layout(kinds=((name, kind),))
    if out:
        yield from (Layout(kinds=(("out", kind),)) for kind in ("rows1", "rows64", "offset1"))
    if starred:
        yield Layout(kinds=tuple((n, "rows64") for n in starred))
    groups = packable(op, arguments)
    if groups:
        yield Layout(packed=groups)
    for lead in leads(op, point):
        yield Layout(lead=lead)
        if len(lead) > 1 and starred:
            yield Layout(lead=lead, kinds=((starred[0], "rows64"),))
            yield Layout(lead=lead, kinds=((starred[0], "gaps"),))
            if groups:
                yield Layout(lead=lead, packed=groups)
