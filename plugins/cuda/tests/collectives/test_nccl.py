"""NCCL as a provider, over a stand-in for torch's process group."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from trivet.contracts.collectives import Group, Member, Message
from trivet.errors import CommAborted, CommError, CommTimeout, CommUnsupported, PeerLost
from trivet_cuda.collectives import nccl

NAME = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Work:
    def wait(self, timeout=None):
        if timeout is not None:
            msg = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
            raise RuntimeError(msg)

    def is_completed(self):
        return True


class StandIn:
    """Records what is asked of it."""

    class Options:
        _timeout = None

    def __init__(self, store, rank, size, options):
        del store
        self.made = rank, size, options._timeout, dict(os.environ)
        self.calls = []
        self.fails = None

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            if self.fails:
                raise RuntimeError(self.fails)
            return Work()

        return call


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: device)
    members = tuple(Member(r, "here", r, f"cuda:{r}") for r in range(3))
    group = Group("g", 1, members, torch.device("cuda", 1), 2.5)
    return nccl.NcclRanks(group, dist.HashStore())


def names(ranks):
    return [name for name, _ in ranks.backend.calls]


def test_its_group_has_the_timeout_of_the_group_and_errors_stay_in_it(ranks):
    rank, size, timeout, environment = ranks.backend.made
    assert (rank, size, timeout) == (1, 3, timedelta(seconds=2.5))
    assert {name: environment[name] for name in nccl.ERRORS} == nccl.ERRORS
    assert NAME not in os.environ


def test_what_a_user_said_of_errors_stays(ranks, monkeypatch):
    monkeypatch.setenv(NAME, "3")
    again = nccl.NcclRanks(ranks.group, dist.HashStore())
    assert again.backend.made[3][NAME] == "3"
    assert os.environ[NAME] == "3"


def test_a_torch_without_it_is_refused(ranks, monkeypatch):
    monkeypatch.delattr(dist, "ProcessGroupNCCL")
    with pytest.raises(CommUnsupported, match="without NCCL"):
        nccl.NcclRanks(ranks.group, dist.HashStore())


def test_messages_of_a_batch_are_one_launch(ranks):
    x = torch.zeros(4, dtype=torch.uint8)
    work = ranks.batch([Message(True, 0, x), Message(False, 2, x), Message(True, 2, x[:0])])
    assert names(ranks) == ["_start_coalescing", "send", "recv", "_end_coalescing"]
    assert work.is_completed()
    assert ranks.batch([]) is None


def test_gather_and_scatter_are_messages_of_the_root_and_to_it(ranks):
    x, whole = torch.arange(2, dtype=torch.uint8), torch.zeros(6, dtype=torch.uint8)
    ranks.gather(whole, x, 1)
    assert whole.tolist() == [0, 0, 0, 1, 0, 0]
    assert names(ranks)[1:3] == ["recv", "recv"]
    ranks.backend.calls.clear()
    ranks.scatter(x, whole, 0)
    assert names(ranks) == ["_start_coalescing", "recv", "_end_coalescing"]


def test_reductions_do_not_touch_their_input(ranks):
    x, out = torch.ones(3), torch.zeros(3)
    ranks.all_reduce(out, x, "max")
    name, (tensors, options) = ranks.backend.calls[0]
    assert name == "allreduce"
    assert tensors[0] is out
    assert out.tolist() == [1, 1, 1]
    assert options.reduceOp == dist.ReduceOp.MAX
    ranks.reduce(out, x, "sum", 0)
    assert ranks.backend.calls[1][1][0][0] is not x


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("NCCL communicator was aborted on rank 1. Watchdog caught operation timeout", CommTimeout),
        ("ncclRemoteError: A call failed possibly due to a network error", PeerLost),
        ("NCCL communicator was aborted on rank 1.", CommAborted),
        ("ncclUnhandledCudaError", CommError),
    ],
)
def test_errors_are_typed_and_closing_asks_nobody_then(ranks, says, kind):
    ranks.backend.fails = f"{says}\nException raised from somewhere"
    with pytest.raises(CommError) as caught:
        ranks.barrier()
    assert type(caught.value) is kind
    assert "Exception raised" not in caught.value.what
    ranks.close()
    assert names(ranks)[-1] == "abort"


def test_waits_with_a_timeout_raise_typed_errors(ranks):
    work = ranks.all_to_all(torch.zeros(3), torch.zeros(3))
    work.wait()
    with pytest.raises(CommTimeout, match="Watchdog"):
        work.wait(1.0)


def test_a_sound_group_is_shut_down_once(ranks):
    ranks.close()
    ranks.close()
    assert names(ranks) == ["shutdown"]
