"""A started operation in the terms of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_NO_TIMEOUT = timedelta(0)


class BridgeWork(dist.Work):
    """Works of a group, and what follows them on this rank, as one work of torch.

    Args:
        works: of trivet or of torch.
        outputs: the tensors that are written.
        follow: what is done once when all have ended.
    """

    def __init__(
        self,
        works: Sequence[Any],
        outputs: list[Tensor],
        follow: Sequence[Callable[[], object]] = (),
    ) -> None:
        super().__init__()
        self._works = works
        self._outputs = outputs
        self._follow = follow
        self._done = False

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait; an error of trivet is raised as it is."""
        if not self._done:
            for work in self._works:
                if timeout == _NO_TIMEOUT:
                    work.wait()
                else:
                    work.wait(timeout if isinstance(work, BridgeWork) else timeout.total_seconds())
            for step in self._follow:
                step()
            self._done = True
        return True

    def synchronize(self) -> None:
        """The same; the current stream waits where there are streams."""
        self.wait()

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once."""
        return self._done or all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """True when it has ended well."""
        return self._done

    def result(self) -> list[Tensor]:
        """The tensors that are written."""
        self.wait()
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future that is done: torch's callbacks run in the thread that waits here."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 - it is the future's to raise
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(self._outputs)
        return future
