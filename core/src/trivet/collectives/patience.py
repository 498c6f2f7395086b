"""Asking a store that may not answer: it lives in a process that can be stopped or gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from trivet.errors import CommTimeout

T = TypeVar("T")

LEEWAY: Final = 0.5
"""Seconds beyond a wait's own timeout after which the store itself counts as silent."""

_SLICE: Final = 0.02


def bounded(
    function: Callable[[], T], seconds: float, interrupted: Callable[[], None] = lambda: None
) -> T:
    """What a function returns or raises, if it does so within some seconds.

    It runs in a thread of its own, because a call of a silent store never returns; the thread is
    left behind then.

    Args:
        function: asks the store.
        seconds: how long it may take.
        interrupted: is called now and then; what it raises ends the wait.

    Raises:
        CommTimeout: the store did not answer.
    """
    answers: list[tuple[T | None, BaseException | None]] = []
    done = threading.Event()

    def run() -> None:
        try:
            answers.append((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            answers.append((None, error))
        done.set()

    threading.Thread(target=run, daemon=True, name="trivet-comm-store").start()
    deadline = time.monotonic() + seconds
    while not done.wait(min(_SLICE, max(0.0, deadline - time.monotonic()))):
        interrupted()
        if time.monotonic() >= deadline:
            raise CommTimeout(
                f"timed out: the store of torch.distributed did not answer in {seconds:g} s",
                fix="it is in the process of world rank 0, unless a launcher keeps it",
            )
    answer, error = answers[0]
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
