"""What is under test: a device, and the implementations of one plugin for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch.distributed as dist

import trivet
from trivet.binding.binder import Binder
from trivet.binding.checks import check_inputs
from trivet.catalogue import operators
from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.implementation import claims_of
from trivet.contracts.terms import UNKNOWN
from trivet.devices import Device
from trivet.errors import DomainError, TrivetError
from trivet.plugins.offer import Offer
from trivet.plugins.resolve import REFERENCE, Resolved
from trivet.plugins.verification import Implementation, reference, verify
from trivet.selection.facts import Call, decide, normalise
from trivet.selection.forms import SUFFIX
from trivet_conformance.calls.calling import copied, foreign, lay_out
from trivet_conformance.calls.layouts import Layout, Placed, leads
from trivet_conformance.calls.points import Point, plain_dtype
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.comm_leg import CommLeg
from trivet_conformance.subject.leg import INSTALLED, Leg


@dataclass(frozen=True, eq=False)
class Target:
    """One implementation under test.

    Args:
        device: where it runs.
        implementation: the verified claim.
        siblings: the same provider's implementations of the same operator, itself among them.
        neighbours: everything that the same plugin has for the device, itself among them.
    """

    device: Device
    implementation: Implementation
    siblings: tuple[Implementation, ...]
    neighbours: tuple[Implementation, ...] = ()

    @property
    def op(self) -> Operator:
        """The operator that it implements."""
        return self.implementation.operator

    @property
    def provider(self) -> str:
        """Whose it is."""
        return self.implementation.provider

    @property
    def form(self) -> str:
        """The form that it supplies."""
        return self.implementation.form

    @property
    def bound_name(self) -> str:
        """What an engine binds to get this form."""
        return self.op.name + ("" if self.op.inplace_only else SUFFIX[self.form])

    @property
    def label(self) -> str:
        """The form as the start of a case's name."""
        return "write" if self.op.inplace_only else self.form

    @property
    def own_pack(self) -> bool:
        """Whether it reads a weight that it packed itself, which only a plan can give it."""
        return self.implementation.claim.prepare is not None and self.op.prepare is not None

    def lay_out(
        self,
        bench: Bench,
        point: Point,
        layout: Layout,
        form: str = "",
        *,
        draw: int = 0,
        adapted: bool = True,
    ) -> Placed | None:
        """The call at a point in a layout, on the device.

        Args:
            bench: where the inputs are kept.
            point: what is called.
            layout: how the arguments lie.
            form: the form that is called; by default the one that is supplied.
            draw: which random inputs.
            adapted: whether the call has this provider's own pack and schedule.

        Returns:
            The call; None where the shapes cannot have the layout, or the contract forbids it.

        Raises:
            ProviderFault: the provider's ``prepare`` or ``prepare_step`` raised.
        """
        form = form or self.form
        given = dict(bench.arguments(self.op, point, draw))
        if adapted:
            given = self.adapted(given, point, layout)
        placed = lay_out(self.op, form, given, layout, self.device.torch)
        if placed is None:
            return None
        try:
            check_inputs(self.op, form, placed.arguments)
        except DomainError:
            return None
        return placed

    def adapted(self, given: Mapping[str, Any], point: Point, layout: Layout) -> dict[str, Any]:
        """The arguments with what this provider prepares: its pack, and its schedule.

        Raises:
            ProviderFault: its ``prepare`` or ``prepare_step`` raised.
        """
        claim, made = self.implementation.claim, dict(given)
        if not self.own_pack and not layout.scheduled:
            return made
        lists = [p.name for p in self.op.signature.parameters if p.kind == "Tensor[]"]
        facts = dict(normalise(self.op, self._facts(point)).values)
        if self.own_pack and claim.prepare is not None:
            pack = next(n for n in lists if made[n])
            # The reference's pack is the plain weight; that is what a vendor's prepare is given.
            # Its own copies: one that writes them would change the kept inputs, and the truth.
            weight = [facts, copied(made[pack][0]), copied(made.get("bias"))]
            made[pack] = foreign(claim.prepare, *weight)
        if layout.scheduled and claim.prepare_step is not None:
            names = [n for n in inspect.signature(claim.prepare_step).parameters if n in made]
            empty = next(n for n in lists if not made[n])
            made[empty] = foreign(claim.prepare_step, facts, *(made[n] for n in names))
        return made

    def _facts(self, point: Point) -> dict[str, Any]:
        facts: dict[str, Any] = {n: v for n, v in point.dims if n in self.op.where}
        dtypes = dict(point.dtypes)
        for arg, variable in self.op.dtypes.items():
            if variable in dtypes:
                facts[f"{arg}.dtype"] = dtypes[variable]
        return facts | dict(point.scalars)

    def refusal(self, placed: Placed) -> str:
        """Why the declared domain excludes a call; empty inside."""
        call = Call(self.op, placed.arguments)
        for term in self.implementation.domain:
            path = term.path.partition(".")[0]
            outs = placed.arguments.get("out") if path == "out" else None
            for out in outs if isinstance(outs, list) else [outs]:
                own = call if out is None else Call(self.op, placed.arguments | {"out": out})
                decision = decide(self.op, term, own)
                if decision is not True:
                    return decision if isinstance(decision, str) else f"{term} is open"
        return ""

    def home(self, bench: Bench, point: Point) -> Layout | None:
        """The plainest layout in which a point lies inside the domain."""
        candidates = [Layout(), *(Layout(lead=lead) for lead in leads(self.op, point))]
        if self.implementation.claim.prepare_step is not None:
            candidates += [Layout(lead=c.lead, scheduled=True) for c in candidates]
        for layout in candidates:
            placed = self.lay_out(bench, point, layout)
            if placed is not None and not self.refusal(placed):
                return layout
        return None

    def dtype_refusal(self, dtypes: Mapping[str, Any]) -> str:
        """Why no call with these dtypes is inside the domain; empty where one may be."""
        view = _Dtypes(self.op, dtypes)
        for term in self.implementation.domain:
            if any(path.endswith(".dtype") for path in term.paths) and not term.path.startswith(
                "out"
            ):
                decision = term.decide(view)
                if isinstance(decision, str):
                    return decision
        return ""


class _Dtypes:
    """A view for terms in which only dtypes are known."""

    def __init__(self, op: Operator, dtypes: Mapping[str, Any]) -> None:
        self.known = normalise(
            op, {f"{a}.dtype": dtypes[v] for a, v in op.dtypes.items() if v in dtypes}
        ).values

    def value(self, path: str) -> Any:
        return self.known.get(path, UNKNOWN)

    def layout(self, arg: str) -> None:
        del arg

    def inner(self, arg: str) -> int:
        del arg
        return 0


@dataclass(frozen=True, eq=False)
class Subject:
    """Everything of one plugin on one device.

    Args:
        plugin: its name.
        device: the device that its implementations are for.
        targets: its implementations, in its own order.
        refused: (what was claimed, why core refused it).
        unmet: (provider, operator, why this device cannot run it).
        extends: the kind of somebody else's device that it adds to; empty for its own.
        memory: the memory that is judged with it; None where none is.
        comm: the collectives that are judged with it; None where none are.
    """

    plugin: str
    device: Device
    targets: tuple[Target, ...]
    refused: tuple[tuple[str, str], ...] = ()
    unmet: tuple[tuple[str, str, str], ...] = ()
    extends: str = ""
    memory: Leg | None = None
    comm: CommLeg | None = None

    @property
    def execution(self) -> str:
        """How code runs on the device, in the contract's words."""
        return self.device.info.execution.value

    def only(self, names: Iterable[str]) -> Subject:
        """The same plugin with some operators only, and without its memory and collectives.

        Raises:
            ValueError: one of them has no such name.
        """
        wanted = set(names)
        if unknown := wanted - set(self.device.operators):
            known = ", ".join(self.device.operators)
            msg = f"no operator {', '.join(sorted(unknown))}; there are {known}"
            raise ValueError(msg)
        kept = tuple(t for t in self.targets if t.op.name in wanted)
        unmet = tuple(row for row in self.unmet if row[1] in wanted)
        return replace(self, targets=kept, unmet=unmet, memory=None, comm=None)


def installed(name: str) -> Subject:
    """The installed plugin of a name; ``reference`` is core itself.

    A plugin that only adds to another one's device is tested on that device.

    Raises:
        PluginError: there is no such plugin, or it cannot be used.
    """
    if name == REFERENCE:
        return references()
    kinds = {line.plugin: line.extends for line in _report()}
    device = trivet.device(kinds.get(name) or name)
    own = [i for i in device.offer.implementations if i.provider.partition("/")[0] == name]
    refused = [(r.target, r.error.what) for r in device.offer.refusals if r.plugin == name]
    unmet = [
        (u.implementation.provider, u.implementation.operator.name, u.reason)
        for u in device.offer.unmet
        if u.implementation.provider.partition("/")[0] == name
    ]
    extends = kinds.get(name) or ""
    provided = device.offer.memory.get(name)
    # The device's own plugin answers for its memory in any case, one that adds to it for its own.
    memory = None if extends and provided is None else _leg(name, device, provided)
    comm = _comm_leg(name, device, extends=bool(extends))
    targets = _targets(device, own)
    return Subject(name, device, targets, tuple(refused), tuple(unmet), extends, memory, comm)


def _leg(plugin: str, device: Device, provided: object) -> Leg:
    return Leg(plugin, device.torch, provided, f"{INSTALLED}{plugin}")


def _comm_leg(plugin: str, device: Device, *, extends: bool) -> CommLeg | None:
    """The collectives that a plugin answers for, if torch has any here."""
    provided = device.offer.collectives.get(plugin)
    if (extends and provided is None) or not dist.is_available():
        return None
    return CommLeg(plugin, device.torch, provided, f"{INSTALLED}{plugin}")


def _report() -> Iterable[Any]:
    from trivet.plugins import discover

    return discover().report()


def references() -> Subject:
    """Core's references as if they were a plugin's: the kit's own control."""
    device = assemble([], plugin=REFERENCE)
    own = [reference(op) for op in device.operators.values()]
    return Subject(
        REFERENCE,
        device,
        _targets(device, own),
        memory=_leg(REFERENCE, device, None),
        comm=_comm_leg(REFERENCE, device, extends=False),
    )


def from_functions(
    functions: Sequence[Callable[..., Any]],
    plugin: str,
    known: Mapping[str, Operator] = MappingProxyType({}),
    *,
    info: DeviceInfo | None = None,
) -> Subject:
    """A plugin that is not installed: functions marked with ``implements``.

    Args:
        functions: what ``trivet_implementations`` would return.
        plugin: its name.
        known: operators of its own, by name.
        info: the device; by default torch's CPU.

    Raises:
        TrivetError: a mark is wrong; the text says which and why.
    """
    device = assemble(functions, plugin=plugin, known=known, info=info)
    own = list(device.offer.implementations)
    refused = [(r.target, r.error.what) for r in device.offer.refusals]
    return Subject(plugin, device, _targets(device, own), tuple(refused))


def assemble(
    functions: Sequence[Callable[..., Any]],
    *,
    plugin: str,
    known: Mapping[str, Operator] = MappingProxyType({}),
    info: DeviceInfo | None = None,
) -> Device:
    """A device made in this process from marked functions, as discovery makes it from a plugin.

    Raises:
        TrivetError: a mark is wrong; the text says which and why.
    """
    known = {**operators(), **known}
    info = info or DeviceInfo(plugin, name="made in this process")
    found = tuple(verify(c, plugin, known) for f in functions for c in claims_of(f))
    offer = Offer(known, found, (), (), {}, {}, {})
    resolved = Resolved(info, plugin, "made in this process")
    return Device(resolved, offer, Binder(info, known, found))


def _targets(device: Device, own: Sequence[Implementation]) -> tuple[Target, ...]:
    return tuple(
        Target(
            device,
            i,
            tuple(o for o in own if o.provider == i.provider and o.operator is i.operator),
            tuple(own),
        )
        for i in own
    )


def dtype_text(dtypes: Mapping[str, Any]) -> str:
    """Dtypes as the part of a case's name that a point would have."""
    main = dtypes[ACTIVATION]
    others = [f"{v}={plain_dtype(d)}" for v, d in dtypes.items() if d != main]
    return ",".join([plain_dtype(main), *others])


__all__ = [
    "Subject",
    "Target",
    "TrivetError",
    "assemble",
    "dtype_text",
    "from_functions",
    "installed",
    "references",
]
