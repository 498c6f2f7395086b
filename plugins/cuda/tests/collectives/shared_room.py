"""Memory of several processes that stands in for that of several GPUs: files that all map."""

from __future__ import annotations

from pathlib import Path

import torch

from trivet_cuda.collectives.room import Piece


class SharedRoom:
    """Pieces are files of a folder; the interpreter's kernels read and write them as a GPU does."""

    folder = Path()

    def __init__(self, group, store, talk):
        del store
        self._group, self._talk, self._number = group, talk, 0

    def take(self, nbytes, fill):
        self._number += 1
        names = [self.folder / f"{self._number}.{rank}" for rank in range(self._group.size)]

        def allocate():
            names[self._group.rank].write_bytes(bytes([fill]) * nbytes)
            return {}

        self._talk.say(allocate)
        peers = [
            torch.from_file(str(n), shared=True, size=nbytes, dtype=torch.uint8) for n in names
        ]
        self._talk.say(dict)
        return Piece(peers[self._group.rank], peers)

    def close(self):
        self._number = 0
