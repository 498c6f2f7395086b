"""The other ranks as processes that the first one starts, watches and ends."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from llm.errors import RanksFailed
from llm.parallel.place import Place

_START_SECONDS = 120.0
_END_SECONDS = 10.0
_ORPHAN_SECONDS = 5.0
_PRELOADED = ["torch", "torch.distributed", "trivet.collectives", "rich.progress", "tokenizers"]


class Followers:
    """Ranks 1 and up, forked from a server that has imported torch.

    Args:
        size: Ranks, the first one among them.
        main: What each runs: a function of a module, called with its place and the options.
        options: Of the command.
        address: Where the ranks meet.
    """

    def __init__(
        self,
        size: int,
        main: Callable[[Place, Mapping[str, Any]], None],
        options: Mapping[str, Any],
        address: tuple[str, int],
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        if "forkserver" in methods:
            context.set_forkserver_preload(_PRELOADED)
        self._links: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(1, size):
            here, there = context.Pipe(duplex=False)
            place = Place(rank, size, rank, size, "engine", address)
            process = context.Process(
                target=_follow, args=(there, dict(os.environ), main, place, options)
            )
            process.start()
            there.close()
            self._links.append(here)
            self._processes.append(process)

    def wait(self) -> None:
        """Waits until all have come up.

        Raises:
            RanksFailed: One ended instead.
        """
        for rank, link in enumerate(self._links, 1):
            try:
                if not link.poll(_START_SECONDS):
                    raise RanksFailed(f"rank {rank} did not start within {_START_SECONDS:g} s")
                link.recv()
            except (EOFError, OSError) as error:
                self._processes[rank - 1].join(_END_SECONDS)
                raise RanksFailed(f"rank {rank} did not start: {self.ended()}") from error

    def ended(self) -> str:
        """Which of them have ended badly, and how, in words."""
        said = []
        for rank, process in enumerate(self._processes, 1):
            if process.exitcode:
                code = process.exitcode
                how = f"signal {-code}" if code < 0 else f"exit status {code}"
                with suppress(ValueError):
                    how = signal.Signals(-code).name if code < 0 else how
                said.append(f"rank {rank}, process {process.pid}, ended by {how}")
        return "; ".join(said)

    def end(self, *, patience: float = _END_SECONDS) -> None:
        """Waits for all of them; one that does not end is killed."""
        for process in self._processes:
            process.join(patience)
            if process.exitcode is None:
                process.kill()  # also of one that was stopped
                process.join()
        for link in self._links:
            link.close()


def _follow(
    link: Connection,
    environ: Mapping[str, str],
    main: Callable[[Place, Mapping[str, Any]], None],
    place: Place,
    options: Mapping[str, Any],
) -> None:
    """The main program of a rank: the first one ends it, not the terminal's interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environ)  # the server may have been started with others
    link.send("here")
    link.close()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(place, options)


def _end_with_parent() -> None:
    """Ends this process some time after the first rank, whatever it does; it hears of it before."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        time.sleep(_ORPHAN_SECONDS)
        os._exit(2)
