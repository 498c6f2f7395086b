"""What the ranks behind the first one do: follow its orders until it says that it is over."""

from __future__ import annotations

import json
import os
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from llm.model import Llama
from llm.parallel.channel import Channel, inputs
from llm.parallel.ranks import Ranks
from llm.parallel.team import STEP
from llm.swap import HostMemory, Saved


def follow(model: Llama, channel: Channel, ranks: Ranks) -> None:
    """Does what the first rank says, step by step."""
    store, saved = HostMemory(model.caches), dict[int, Saved]()
    while True:
        order, parts = channel.hear()
        number = int(parts[0].view(-1)[0]) if parts else 0
        if order == "end":
            return
        if order == "report":
            channel.say(json.dumps(report(model, ranks)))
        elif order == "save":
            saved[number] = store.save(parts[1].tolist())
        elif order == "load":
            store.load(saved[number], int(parts[1]), parts[2].tolist())
        elif order == "forget":
            del saved[number]
        elif order == STEP:
            model.run(inputs(parts))
        elif model.decode is not None:
            with torch.inference_mode():
                model.decode.replay(order, inputs(parts))


def report(model: Llama, ranks: Ranks) -> dict[str, Any]:
    """What ran on this rank, and where it is."""
    return {
        "rank": ranks.place.rank,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "device": model.device_name,
        "memory": model.memory(),
        "calls": model.calls(),
    }


@dataclass(frozen=True, eq=False)
class Everywhere:
    """What every rank has saved of its part, under a number."""

    number: int
    own: Saved


class SharedStore:
    """The stores of all ranks, which save and load the same blocks.

    Args:
        own: That of this rank.
        channel: To the others.
    """

    def __init__(self, own: HostMemory, channel: Channel) -> None:
        self._own, self._channel, self._count = own, channel, 0

    def save(self, blocks: Sequence[int], /) -> Everywhere:
        """Saves blocks on every rank; they are forgotten with what is returned."""
        self._count += 1
        self._channel.tell_all("save", [torch.tensor([self._count]), torch.tensor(list(blocks))])
        saved = Everywhere(self._count, self._own.save(blocks))
        weakref.finalize(saved, self._channel.forget, saved.number).atexit = False
        return saved

    def load(self, saved: Everywhere, first: int, blocks: Sequence[int], /) -> None:
        """Loads them on every rank."""
        numbers = torch.tensor([saved.number]), torch.tensor([first])
        self._channel.tell_all("load", [*numbers, torch.tensor(list(blocks), dtype=torch.int64)])
        self._own.load(saved.own, first, blocks)
