"""One capture: segments of recorded work, and between them what runs eagerly at every replay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

from torch import Tensor

from trivet.capture.addresses import Addresses
from trivet.capture.emulated import Emulated
from trivet.capture.tensors import leaves, tensors
from trivet.capture.watch import HostReads, Watch
from trivet.contracts.capture import Capturer, Graph
from trivet.contracts.declaration import Operator
from trivet.errors import CaptureUnsafe, OrderError

T = TypeVar("T")

_one = threading.Lock()
_here = threading.local()


class Part(Protocol):
    """A segment, or what runs between two."""

    def replay(self) -> None:
        """Runs it again."""


class Outside:
    """A call that runs at every replay; its results are copied into those of the first call."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        self._call = function, args, kwargs
        self.result = function(*args, **kwargs)
        if any(not isinstance(leaf, Tensor) for leaf in leaves(self.result)):
            what = f"{_named(function)} returns something else than tensors at a boundary"
            raise CaptureUnsafe(what, fix="return tensors; other values are those of the capture")

    def replay(self) -> None:
        """Calls it again.

        Raises:
            CaptureUnsafe: the results are of other shapes than at the capture.
        """
        function, args, kwargs = self._call
        first, again = tensors(self.result), tensors(function(*args, **kwargs))
        if [(t.shape, t.dtype) for t in first] != [(t.shape, t.dtype) for t in again]:
            what = f"{_named(function)} returned other shapes or dtypes than at the capture"
            raise CaptureUnsafe(what, fix="its shapes may depend on shapes alone")
        for old, new in zip(first, again, strict=True):
            if old is not new:
                old.copy_(new)


class Session:
    """Records work of one thread into parts.

    Args:
        capturer: records a segment.
        pool: what its graphs share.
    """

    def __init__(self, capturer: Capturer, pool: object) -> None:
        self.capturer, self.pool = capturer, pool
        self.addresses = Addresses()
        self.watch = Watch(self.addresses)
        self.parts: list[Part] = []
        self.graphs: list[Graph] = []
        self._open: ExitStack | None = None

    @property
    def boundaries(self) -> int:
        """How often a replay leaves the graphs."""
        return sum(isinstance(part, Outside) for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all its graphs."""
        return sum(graph.nbytes for graph in self.graphs)

    def record(self, work: Callable[[], T]) -> T:
        """Does the work once and records it.

        Raises:
            OrderError: something is captured already.
            CaptureUnsafe: the work cannot be replayed; nothing stays behind.
        """
        if not _one.acquire(blocking=False):
            what = "something is captured already in this process"
            raise OrderError(what, fix="capture one after the other, and never inside of a step")
        try:
            _here.session = self
            self._start()
            result = work()
            self._check_results(result)
            self._stop()
            self.addresses.refuse_ended()
        except BaseException:
            self._undo()
            raise
        finally:
            _here.session = None
            _one.release()
        return result

    def called(
        self,
        who: str,
        operator: Operator,
        form: str,
        call: Callable[[], T],
        arguments: Mapping[str, Any],
    ) -> T:
        """Makes a recorded call of an implementation and looks at it.

        Args:
            who: what calls, for messages; it begins with the operator's name.
            operator: what is called.
            form: in which form.
            call: calls it with these arguments.
            arguments: by name.

        Raises:
            CaptureUnsafe: it reads numbers, or writes a result where no recorder sees it.
        """
        watch, capturer = self.watch, self.capturer
        watch.calls += 1
        watch.site = who
        if isinstance(capturer, Emulated):
            capturer.forget_touched()
        result = call()
        works = all(v.numel() for v in arguments.values() if isinstance(v, Tensor))
        if works and isinstance(capturer, Emulated):
            written = [arguments[n] for n in operator.written(form) if n in arguments]
            if capturer.unseen([result, written]):
                what = f"{who} writes a result by no call of a torch operator"
                fix = "make the kernel a torch operator (torch.library), or bring trivet_capture"
                raise CaptureUnsafe(what, operator=operator.name, fix=fix)
        watch.made(result)
        watch.site = ""
        return result

    def outside(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Ends the segment, calls a function, and starts the next segment."""
        if self._stop() and not isinstance(self.capturer, Emulated):
            self.parts[-1].replay()  # a device has recorded it, and computed nothing
        part = Outside(function, args, kwargs)
        self.watch.made(part.result)
        self.parts.append(part)
        self._start()
        return part.result

    def replay(self) -> None:
        """Runs all parts in order."""
        for part in self.parts:
            part.replay()

    def release(self) -> None:
        """Gives the memory of all graphs back."""
        for graph in self.graphs:
            graph.release()
        self.parts, self.graphs = [], []

    @property
    def recording(self) -> bool:
        """Whether calls are recorded now."""
        return self._open is not None

    def _start(self) -> None:
        with ExitStack() as undo:
            undo.enter_context(HostReads(self.watch))
            undo.enter_context(self.watch)
            self.watch.calls = 0
            self.capturer.begin(self.pool)
            self._open = undo.pop_all()

    def _stop(self) -> bool:
        """Ends the segment; whether it holds anything."""
        modes, self._open = self._open, None
        if modes is None:
            return False
        with modes:
            if not self.watch.calls:  # a device warns of an empty graph
                self.capturer.abandon()
                return False
            graph = self.capturer.end()
        self.parts.append(graph)
        self.graphs.append(graph)
        return True

    def _undo(self) -> None:
        modes, self._open = self._open, None
        if modes is not None:
            with modes:
                self.capturer.abandon()
        self.release()

    def _check_results(self, result: Any) -> None:
        for leaf in leaves(result):
            if not isinstance(leaf, Tensor):
                what = f"the step returns a {type(leaf).__name__}, which a replay cannot change"
                raise CaptureUnsafe(what, fix="return tensors alone")
            unseen = isinstance(self.capturer, Emulated) and not self.watch.is_made(leaf)
            if unseen:
                what = "the step returns a tensor that no recorded call made"
                raise CaptureUnsafe(what, fix="compute it with torch or a bound operator")


def boundary(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function; in a capture, it then runs eagerly at every replay, between two graphs.

    Args:
        function: what a graph cannot hold: work that reads numbers on the host, for example. Its
            results are tensors, of the same shapes every time.
        args: its arguments; tensors have the contents of the replay.
        kwargs: as well.
    """
    session: Session | None = getattr(_here, "session", None)
    if session is None or not session.recording:
        return function(*args, **kwargs)
    return session.outside(function, args, kwargs)


def capturing() -> bool:
    """Whether this thread is inside of a capture."""
    return getattr(_here, "session", None) is not None


def _named(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
