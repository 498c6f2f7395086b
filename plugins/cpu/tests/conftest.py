"""What the tests of the CPU package share: levels, threads, random tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from trivet_cpu import isa


@pytest.fixture(params=isa.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each level that this machine runs, in use for the test."""
    with isa.using(request.param):
        yield request.param


@pytest.fixture
def randn() -> Callable[..., Tensor]:
    """Reproducible normal numbers: ``randn(*sizes, dtype=...)``."""
    generator = torch.Generator().manual_seed(20)

    def make(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(dtype)

    return make


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def threads() -> Callable[[int], object]:
    """``with threads(n):`` torch uses n threads."""
    return _threads
