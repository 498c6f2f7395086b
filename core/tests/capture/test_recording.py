"""Core's own capture, and what every capture refuses: one session over plain tensors."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet.capture import boundary
from trivet.capture.emulated import Emulated
from trivet.capture.session import Session
from trivet.errors import AddressMoved, CaptureUnsafe, OrderError


def recorded(work, *inputs):
    """A session over work on static inputs, and what the capture returned."""
    session = Session(Emulated(), None)
    session.watch.made(inputs)
    return session, session.record(lambda: work(*inputs))


@pytest.fixture(
    params=[torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"], autouse=True
)
def mode(request):
    with request.param():
        yield


def test_a_replay_computes_from_the_new_contents_into_the_same_tensors():
    x, weight = torch.ones(3, 4), torch.full((4,), 2.0)
    session, y = recorded(lambda x: torch.nn.functional.linear(x * weight, torch.eye(4)) + 1, x)
    address = y.data_ptr()
    assert torch.equal(y, torch.full((3, 4), 3.0))
    x.fill_(10)
    weight.fill_(3)
    session.replay()
    assert torch.equal(y, torch.full((3, 4), 31.0))
    assert y.data_ptr() == address


def test_views_and_writes_in_place_are_those_of_the_replay():
    x, cache = torch.zeros(2, 6), torch.zeros(5, 2)

    def work(x):
        q, k = (x * 1).split((4, 2), dim=1)
        q.add_(1)
        cache[1:3] = k
        return {"q": q, "all": [cache[:1].expand(4, 2)]}

    session, found = recorded(work, x)
    x.copy_(torch.arange(12.0).view(2, 6))
    cache.fill_(7)
    session.replay()
    assert torch.equal(found["q"], x[:, :4] + 1)
    assert torch.equal(cache[1:3], x[:, 4:])
    assert torch.equal(found["all"][0], torch.full((4, 2), 7.0))


def test_host_control_flow_is_that_of_the_capture():
    flag, x = [True], torch.ones(2)
    session, y = recorded(lambda x: x + 1 if flag[0] else x - 1, x)
    flag[0] = False
    session.replay()
    assert torch.equal(y, torch.full((2,), 2.0))


def test_intermediate_tensors_end_with_the_capture():
    session, y = recorded(lambda x: ((x + 1) * 2).sum(-1), torch.ones(4, 1000))
    assert session.nbytes == y.nbytes == 16


CALLS = (
    lambda a, b: a + b,
    lambda a, b: a * 0.5,
    lambda a, b: a.add_(b, alpha=0.25),
    lambda a, b: torch.tanh(a, out=torch.empty_like(a)),
    lambda a, b: a.t().contiguous().t(),
    lambda a, b: torch.where(a > b, a, 0.0),
    lambda a, b: a.reshape(-1)[: b.numel()].reshape(b.shape),
    lambda a, b: torch.cat([a, b], 1)[:, :3],
    lambda a, b: a.index_select(0, torch.arange(3).flip(0)),
    lambda a, b: a.softmax(-1),
    lambda a, b: torch.stack([a, b]).unbind()[1],
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 9), st.integers(0, 9)), max_size=9),
    st.integers(0, 5),
)
def test_a_replay_is_the_work_itself(program, seed):
    """Random programs over a pool of tensors, one of them read and written from outside."""
    rng = torch.Generator().manual_seed(seed)

    def work(x, state):
        pool = [x * 1, x + 2, state]
        for call, i, j in program:
            pool.append(call(pool[i % len(pool)], pool[j % len(pool)]))
        return [t * 1 for t in pool]

    x, state = torch.randn(3, 3, generator=rng), torch.randn(3, 3, generator=rng)
    session, found = recorded(work, x, state)
    x.copy_(torch.randn(3, 3, generator=rng))
    state.copy_(torch.randn(3, 3, generator=rng))
    own = state.clone()
    wanted = work(x, own)
    session.replay()
    assert torch.equal(state, own)
    for got, right in zip(found, wanted, strict=True):
        assert torch.equal(got, right)


REFUSED = {
    "item": (lambda x: x * x.sum().item(), "reads a number on the host"),
    "bool": (lambda x: x if bool(x.any()) else -x, "reads a number on the host"),
    "tolist": (lambda x: x * len(x.tolist()), "Tensor.tolist"),
    "numpy": (lambda x: torch.from_numpy(x.numpy() * 2), "Tensor.numpy"),
    "cpu": (lambda x: x.cpu() * 1, "Tensor.cpu"),
    "nonzero": (lambda x: x.nonzero() * 1, "size depends on numbers"),
    "mask": (lambda x: x[x > 0], "selects by a mask"),
    "write by mask": (lambda x: x.index_put_((x > 0,), x.sum()), "selects by a mask"),
    "equal": (lambda x: x if torch.equal(x, x + 1) else -x, "reads a number on the host"),
    "numbers of the host": (lambda x: x + torch.tensor([1.0, 2.0]), "numbers of the host"),
    "a number": (lambda x: (x * 1, 5), "returns a int"),
    "nothing computed": (
        lambda x: torch.frombuffer(bytearray(8), dtype=torch.float32),
        "no recorded",
    ),
}


@pytest.mark.parametrize(("work", "text"), REFUSED.values(), ids=REFUSED)
def test_what_needs_the_host_is_refused_and_nothing_stays_behind(work, text):
    x = torch.ones(2)
    session = Session(Emulated(), None)
    session.watch.made(x)
    with pytest.raises(CaptureUnsafe, match=text) as caught:
        session.record(lambda: work(x))
    assert caught.value.fix
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
    assert session.parts == []
    assert x.tolist() == [1, 1]
    session, y = recorded(lambda x: x + 1, x)  # the next capture is as good as any
    x.fill_(3)
    session.replay()
    assert y.tolist() == [4, 4]


def test_a_shape_of_a_tensor_from_before_does_not_change_in_a_capture():
    weight = torch.ones(2, 3)
    with pytest.raises(CaptureUnsafe, match="changes the shape"):
        recorded(lambda x: x + weight.t_(), torch.ones(3, 2))
    assert weight.shape == (2, 3)


def test_a_tensor_that_nobody_holds_is_refused():
    with pytest.raises(CaptureUnsafe, match=r"argument 1 of aten.add.Tensor"):
        recorded(lambda x: x + torch.frombuffer(bytearray(8), dtype=torch.float32), torch.ones(2))


def test_any_exception_leaves_no_mode_and_no_capture_open():
    class Odd(BaseException):
        pass

    def work(x):
        x + 1
        raise Odd

    with pytest.raises(Odd):
        recorded(work, torch.ones(2))
    assert torch._C._len_torch_dispatch_stack() == 0
    assert recorded(lambda x: x + 1, torch.ones(2))[1].tolist() == [2, 2]


def test_a_capture_in_a_capture_is_refused_and_ends_both():
    def work(x):
        recorded(lambda x: x + 1, torch.ones(2))
        return x * 1

    with pytest.raises(OrderError, match="captured already"):
        recorded(work, torch.ones(2))
    assert recorded(lambda x: x + 1, torch.ones(2))[1].tolist() == [2, 2]


# --- boundaries ------------------------------------------------------------------------------


def test_a_boundary_reads_numbers_at_every_replay():
    seen = []

    def host(t, scale):
        seen.append(t.tolist())
        return t * scale if sum(seen[-1]) > 5 else t - 1

    def work(x):
        y = x * 2
        return boundary(host, y, scale=10) + y

    x = torch.ones(2)
    session, z = recorded(work, x)
    assert len(session.graphs) == 2
    assert session.boundaries == 1
    assert z.tolist() == [3, 3]
    x.fill_(4)
    session.replay()
    assert z.tolist() == [88, 88]
    assert seen == [[2, 2], [8, 8]]
    assert boundary(host, torch.ones(1), scale=1).tolist() == [0]  # outside, a plain call


def test_what_is_computed_before_a_boundary_is_read_behind_it():
    """Though nothing but the graphs holds it when the step has returned."""

    def step(x):
        early = x * 2
        return boundary(torch.neg, x) + early

    x = torch.ones(3)
    session, y = recorded(step, x)
    assert y.tolist() == [1, 1, 1]
    x.fill_(5)
    session.replay()
    assert y.tolist() == [5, 5, 5]


def test_a_boundary_at_either_end_makes_no_empty_graph():
    session, y = recorded(lambda x: boundary(torch.neg, boundary(torch.abs, x) + 1), -torch.ones(2))
    assert (len(session.graphs), session.boundaries) == (1, 2)
    assert y.tolist() == [-2, -2]


def test_a_boundary_that_writes_and_returns_nothing_is_a_boundary():
    cache = torch.zeros(2)

    def write(x):
        cache.copy_(x * len(x.tolist()) / 2)

    x = torch.ones(2)
    session, y = recorded(lambda x: (boundary(write, x), cache + 1)[1], x)
    x.fill_(5)
    session.replay()
    assert y.tolist() == [6, 6]


def test_a_boundary_whose_results_change_is_refused():
    sizes = iter((2, 3))
    session, _ = recorded(
        lambda x: boundary(lambda t: t.new_ones(next(sizes)), x) + 1, torch.ones(1)
    )
    with pytest.raises(CaptureUnsafe, match="other shapes"):
        session.replay()
    with pytest.raises(CaptureUnsafe, match="something else than tensors"):
        recorded(lambda x: x * boundary(len, x), torch.ones(1))


# --- addresses -------------------------------------------------------------------------------


def test_what_moved_or_ended_is_named():
    held, other = {"weight": torch.ones(2)}, torch.ones(2)

    def work(x):
        return x * held["weight"] + other

    session, _ = recorded(work, torch.ones(2))
    assert len(session.addresses) == 2
    session.addresses.check()
    held["weight"].data = torch.full((2,), 9.0)
    with pytest.raises(AddressMoved, match=r"argument 1 of aten.mul.Tensor lay at 0x\w+ and lies"):
        session.addresses.check()
    session, _ = recorded(work, torch.ones(2))
    held.clear()
    gc.collect()
    with pytest.raises(AddressMoved, match=r"argument 1 of aten.mul.Tensor has ended"):
        session.addresses.check()
    with pytest.raises(AddressMoved):  # core's own graph knows as well
        session.replay()


def test_memory_that_was_given_back_is_a_moved_tensor():
    cache = torch.ones(1024)
    session, _ = recorded(lambda x: x + cache[:2], torch.ones(2))
    cache.untyped_storage().resize_(0)
    with pytest.raises(AddressMoved, match=r"aten\.slice\.Tensor"):
        session.addresses.check()


def test_a_released_graph_is_not_replayed():
    session, _ = recorded(lambda x: x + 1, torch.ones(2))
    (graph,) = session.graphs
    session.release()
    graph.release()
    with pytest.raises(OrderError, match="released"):
        graph.replay()


def test_what_was_written_behind_torch_is_told_from_what_was_seen():
    capturer = Emulated()
    capturer.begin(capturer.pool())
    seen = torch.empty(4)
    seen.view(2, 2).fill_(1)
    hidden = torch.empty(4)
    ctypes.memset(hidden.data_ptr(), 0, 16)
    assert not capturer.unseen([seen])
    assert capturer.unseen([seen, hidden])
    assert not capturer.unseen([torch.empty(0)])
    capturer.abandon()
    capturer.abandon()
    with pytest.raises(OrderError, match="no recording is open"):
        capturer.end()
