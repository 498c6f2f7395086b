"""The ranks of one run: started or found, joined into groups, and ended together.

The first rank has the requests and tells the others what to do; they have no other life. Whatever
ends one of them ends all: who fails says so in the store and ends the groups, which wakes the rest.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import trivet
from llm.decode import KINDS
from llm.errors import EngineError, RanksFailed, RequestError
from llm.parallel.channel import Channel
from llm.parallel.own import Followers
from llm.parallel.place import Place, launched
from llm.parallel.shards import Shard
from llm.parallel.team import STEP, Team
from trivet.collectives import DeviceGroup
from trivet.errors import CommError, CommTimeout, PeerLost, TrivetError

ORDERS = (STEP, *KINDS, "save", "load", "forget", "report", "end")
_HOST = "cpu"
_TOLD_SECONDS = 1.0
_PAUSE = 0.02


class Ranks:
    """This process among the ranks of a run.

    Args:
        place: Which rank it is.
        timeout: Seconds that a rank waits for another one in a step.
        start: Starts the other ranks, which meet at an address; None where somebody else did.
    """

    def __init__(
        self,
        place: Place,
        timeout: float,
        start: Callable[[tuple[str, int]], Followers] | None = None,
    ) -> None:
        self.place, self.timeout = place, timeout
        self._start = start
        self._followers: Followers | None = None
        self._store: Any = None
        self.data: DeviceGroup | None = None
        self.channel: Channel | None = None

    @property
    def by(self) -> str:
        """Who chose how many there are."""
        return "command line" if self.place.by == "engine" else self.place.by

    def device(self, name: str, *, strict: bool, threads: int | None) -> trivet.Device:
        """This rank's own device: one each, the next ones of their kind; hosts are shared."""
        device = trivet.device(name, strict=strict)
        if not threads:
            share = max(1, (os.cpu_count() or 1) // self.place.local_size)
            torch.set_num_threads(min(share, torch.get_num_threads()))
        if device.torch.type == _HOST:
            return device
        if self.place.local_rank:
            index = (device.torch.index or 0) + self.place.local_rank
            device = trivet.device(f"{device.info.kind}:{index}", strict=strict)
        torch.accelerator.set_device_index(device.torch.index or 0)
        return device

    def meet(self) -> None:
        """Starts the other ranks, or finds them.

        Raises:
            RanksFailed: They cannot be started, or the first one cannot be reached.
        """
        place, leads = self.place, self.place.rank == 0
        host, port = place.address
        if place.by == "engine":
            loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
            if loopback:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.pop())
        waiting = timedelta(seconds=self.timeout)
        theirs = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and place.by == "torchrun"
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, place.size, is_master=leads and not theirs, timeout=waiting,
                wait_for_workers=False,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            what = f"the ranks do not meet at {host}:{port}: {error}".partition("\n")[0]
            fix = "see the output of the other ranks; name another port with MASTER_PORT"
            raise RanksFailed(what, fix=fix, ranks=[0]) from error
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"llm/{attempt}", store)  # type: ignore[attr-defined]
        if self._start is not None:
            self._followers = self._start((host, store.port))
            self._followers.wait()

    def join(self, device: trivet.Device) -> None:
        """Waits for the other ranks and opens the groups.

        Raises:
            RanksFailed: A rank did not come.
        """
        self._wait_for_all()
        known = dist.Backend.default_device_backend_map
        host, mine = known[_HOST], known.get(device.torch.type, known[_HOST])
        several = f"{_HOST}:{host},{device.torch.type}:{mine}"
        try:
            dist.init_process_group(
                host if device.torch.type == _HOST else several,
                store=self._store,
                rank=self.place.rank,
                world_size=self.place.size,
                timeout=timedelta(seconds=self.timeout),
            )
        except (RuntimeError, ValueError) as error:
            what = f"the ranks cannot be connected: {error}".partition("\n")[0]
            raise RanksFailed(what, fix="see the output of the other ranks") from error
        self.data = device.collectives.group("tp", backend=mine, timeout=self.timeout)
        hosts = trivet.device(_HOST).collectives
        orders = hosts.group("orders", backend=host, timeout=self.timeout)
        self.channel = Channel(orders, ORDERS)

    def _wait_for_all(self) -> None:
        """Waits until every rank has its device.

        Raises:
            RanksFailed: One has failed, or did not come in time.
        """
        try:
            self._store.set(f"ready/{self.place.rank}", "")
            self._poll()
        except RuntimeError as error:
            what = f"the first rank has ended before all ranks came: {error}".partition("\n")[0]
            raise RanksFailed(what, fix="read its output", ranks=[0]) from error

    def _poll(self) -> None:
        missing, end = set(range(self.place.size)), time.monotonic() + self.timeout
        while missing:
            missing = {rank for rank in missing if not self._store.check([f"ready/{rank}"])}
            failed = any(self._said(rank) is not None for rank in range(self.place.size))
            if failed or (self._followers is not None and self._followers.ended()):
                raise RanksFailed("the ranks do not come together")
            if time.monotonic() > end:
                what = f"ranks {sorted(missing)} did not come within {self.timeout:g} s"
                raise RanksFailed(what, fix="see their output, or raise --rank-timeout")
            time.sleep(_PAUSE)

    def team(self, shard: Shard, dtype: torch.dtype) -> Team:
        """The ranks as a model that computes in a dtype sees them."""
        return Team(shard, self.data, self.channel, dtype)

    def loaded(self) -> None:
        """Waits until every rank has its part of the model."""
        if self.channel is not None:
            self.channel.group.barrier()

    def failed(self, error: BaseException) -> EngineError | None:
        """Ends the run on all ranks; what became of it, where another rank is the cause."""
        mine = not isinstance(error, (CommError, RanksFailed))
        if self._store is not None:
            with suppress(RuntimeError):  # it is gone with the first rank
                text = f"{type(error).__name__}: {error}" if mine else ""
                self._store.set(f"failed/{self.place.rank}", text)
        for group in self._groups():
            group.abort()
        return None if mine else self._cause(error)

    def finish(self) -> None:
        """On the first rank: lets the others end."""
        if self.place.rank == 0 and self.channel is not None:
            self.channel.tell_all("end")

    def close(self, *, patience: float = 10.0) -> None:
        """Gives everything back; ranks that this one has started have ended then."""
        for group in self._groups():
            with suppress(CommError):
                group.close()
        if self._followers is not None:
            self._followers.end(patience=patience)
        if dist.is_initialized() and (self.data is None or self.data.device.type == _HOST):
            dist.destroy_process_group()
        self._store = None

    def speaks_of(self, error: BaseException) -> bool:
        """Whether this rank says what ended the run: the first one of those that are left."""
        gone: set[int] = set()
        if isinstance(error, (PeerLost, CommTimeout, RanksFailed)):
            gone = set(error.ranks)
        before = [rank for rank in range(self.place.rank) if rank not in gone]
        return not before and all(self._said(rank) is None for rank in range(self.place.rank))

    def _groups(self) -> list[DeviceGroup]:
        orders = self.channel.group if self.channel else None
        return [group for group in (self.data, orders) if group is not None]

    def _said(self, rank: int) -> str | None:
        """What a rank said when it failed; None where it has not."""
        with suppress(RuntimeError):  # the store may be gone
            if self._store is not None and self._store.check([f"failed/{rank}"]):
                return bytes(self._store.get(f"failed/{rank}")).decode()
        return None

    def _cause(self, error: BaseException) -> EngineError:
        """What another rank said before it failed, or how it ended."""
        texts = {rank: self._said(rank) for rank in range(self.place.size)}
        said = next((f"rank {rank} failed: {t}" for rank, t in texts.items() if t), "")
        fix = getattr(error, "fix", "") or "read the output of the ranks that ended"
        if said:  # it says itself what to do
            fix = ""
        elif self._followers is not None:
            said = self._followers.ended()
        what = f"{type(error).__name__}: {getattr(error, 'what', error)}"
        if isinstance(error, RanksFailed):
            if not said:
                return error
            what = ""
        ranks = getattr(error, "ranks", ())
        return RanksFailed("\n  ".join(filter(None, (said, what))), fix=fix, ranks=ranks)


@contextmanager
def joined(
    given: SimpleNamespace,
    main: Callable[[Place, Mapping[str, Any]], None],
    place: Place | None = None,
) -> Iterator[Ranks | None]:
    """The ranks that the options or a launcher ask for; None where this process is alone.

    Args:
        given: The options; ``tp`` is made what it is.
        main: The main program of a rank that is started here.
        place: Which rank this is, where somebody said.

    Raises:
        RequestError: The options and the launcher contradict each other.
        RanksFailed: Another rank failed or ended.
    """
    place = place or launched(os.environ)
    if place is None:
        given.tp = given.tp or 1
        if given.tp == 1:
            yield None
            return
        ranks = Ranks(
            Place(size=given.tp, local_size=given.tp),
            given.rank_timeout,
            lambda address: Followers(given.tp, main, vars(given), address),
        )
    else:
        if given.tp not in {None, place.size}:
            what = f"--tp {given.tp} was given, and {place.by} has started {place.size} ranks"
            raise RequestError(what, fix="leave --tp out, or start as many ranks")
        given.tp, ranks = place.size, Ranks(place, given.rank_timeout)
    try:
        ranks.meet()
        yield ranks
        ranks.finish()
    except BaseException as error:
        cause = error.__cause__  # a server says first that its engine failed
        root = cause if isinstance(cause, CommError) else error
        found = ranks.failed(root)
        ranks.close(patience=1.0)
        if ranks.place.rank and isinstance(root, (EngineError, TrivetError)):
            if not ranks.speaks_of(root):
                raise SystemExit(2) from error  # another rank says it
            time.sleep(_TOLD_SECONDS)  # the others see that this one is left, and are silent
        if found is None or found is root:
            raise
        raise found from error
    ranks.close()
