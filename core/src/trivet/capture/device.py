"""What ``dev.capture`` is: a vendor's capture or core's, and captured steps made with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from trivet.binding.plan import Plan
from trivet.capture.buckets import At, Buckets, Input
from trivet.capture.emulated import Emulated
from trivet.contracts.capture import Capturer
from trivet.contracts.device_info import DeviceInfo, Execution
from trivet.errors import PluginBroken
from trivet.memory import DeviceMemory
from trivet.plugins.answers import has_abilities

SIZES: Final = (1, 2, 4, 8, 16, 32, 64)


def _tokens(rows: int) -> Mapping[str, int]:
    return {"tokens": rows}


class DeviceCapture:
    """Capture on one device.

    Args:
        info: the device.
        memory: accounts for graphs.
        provided: what the device's plugin brought, or None: then calls of torch operators are
            recorded and called again, which gives a capture's meaning and none of its speed.

    Raises:
        PluginBroken: ``provided`` is no ``Capturer``.
    """

    def __init__(self, info: DeviceInfo, memory: DeviceMemory, provided: object = None) -> None:
        if provided is not None and not has_abilities(provided, Capturer):
            what = f"what the plugin of {info.kind} brings to capture with, "
            raise PluginBroken(
                f"{what}{type(provided).__qualname__}, lacks pool, begin, end or abandon",
                fix="see trivet.contracts.capture, or return None from trivet_capture",
            )
        self.capturer: Capturer = Emulated() if provided is None else provided  # type: ignore[assignment]
        self.execution = Execution.EMULATED if provided is None else info.execution
        self._memory = memory

    def buckets(
        self,
        plan: Plan,
        step: Callable[..., Any],
        *,
        inputs: Mapping[str, Input],
        sizes: Iterable[int] = SIZES,
        at: At = _tokens,
    ) -> Buckets:
        """Captures a step for some numbers of rows.

        Each size is computed twice over rows of padding alone, which must touch nothing that
        lives: slots of -1 write nothing, a sequence of length 0 reads nothing.

        Args:
            plan: the plan; under mode ``captured`` every site is bound to what may be captured,
                under another mode a site that may not runs between two graphs.
            step: ``step(op, **inputs)``: a step of the plan and the static inputs ``[rows, ...]``;
                returns tensors, in tuples, lists or dicts if it likes. It reads no number on the
                host; ``trivet.capture.boundary`` calls what has to.
            inputs: the inputs by name.
            sizes: numbers of rows that are captured.
            at: the step variables of so many rows, as ``plan.at`` takes them.

        Raises:
            CaptureUnsafe: the step does what a graph cannot replay.
            OrderError: the plan is stale, or a capture is open.
            OutOfMemory: the ledger's limit does not admit it; nothing stays behind.
        """
        return Buckets(
            plan, step, inputs=inputs, sizes=sizes, at=at, capturer=self.capturer,
            memory=self._memory,
        )  # fmt: skip
