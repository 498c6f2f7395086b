"""Collectives of GPUs: kernels over each other's memory where they reach it, NCCL for the rest."""

from __future__ import annotations

from importlib.util import find_spec


def parts() -> list[object]:
    """The providers in order of preference, and the topology; loaded with the first group."""
    from trivet_cuda.collectives.nccl import NcclRanks
    from trivet_cuda.topology import CudaTopology

    found: list[object] = [NcclRanks, CudaTopology()]
    if find_spec("triton"):
        from trivet_cuda.collectives.peer_memory import PeerMemoryRanks

        found.insert(0, PeerMemoryRanks)
    return found
