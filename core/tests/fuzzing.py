"""Hostile input: how much of it there is, and what every property of it has in common.

A property gets one input. Either that works, or it ends in the one way that the property allows;
whatever else is raised fails the test, and so does an input that is not done in time.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

TOTAL: Final = 10_000
"""Inputs of one `make soak`."""

SHARES: Final = {
    "command lines": 20,
    "command lines of the kit": 8,
    "command lines of the engine": 6,
    "configuration files": 14,
    "lock files": 10,
    "site files": 8,
    "entry-point metadata": 10,
    "environment variables": 8,
    "lying plugins": 6,
    "GGUF headers": 10,
}
"""Percent of them that each family gets."""

EVERY_RUN: Final = 50
"""An ordinary run has one input in so many."""

SECONDS: Final = 60.0
"""Time that one input has; one that needs more hangs."""


class Hang(BaseException):
    """An input was not done in time; no `except Exception` on the way can hide it."""


def amounts(family: str, *, parts: int = 1) -> pytest.MarkDecorator:
    """Gives a test its number of inputs: few in an ordinary run, its whole share in `make soak`.

    Args:
        family: key of ``SHARES``.
        parts: how many tests share that share.
    """
    whole = -(-TOTAL * SHARES[family] // (100 * parts))
    every_run = pytest.param(-(-whole // EVERY_RUN), id="few")
    return pytest.mark.parametrize(
        "amount", [every_run, pytest.param(whole, id="all", marks=pytest.mark.soak)]
    )


def fuzz(amount: int, inputs: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
    """Checks a property on that many inputs, each in a time limit; few are the same each time."""
    done = 0

    @settings(
        max_examples=amount,
        deadline=None,  # of hypothesis: it would fail a slow machine, and cannot end a hang
        database=None,
        derandomize=amount < TOTAL // EVERY_RUN,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def run(one: T) -> None:
        nonlocal done
        with in_time(one):
            check(one)
        done += 1

    run()
    assert done >= amount, f"only {done} of {amount} inputs: there are no more of this kind"


def outcome(
    call: Callable[[], T], *errors: type[Exception]
) -> tuple[T, None] | tuple[None, Exception]:
    """What a call gives, or the one of these errors in which it ended."""
    try:
        return call(), None
    except errors as error:
        return None, error


@contextlib.contextmanager
def in_time(one: object, seconds: float = SECONDS) -> Iterator[None]:
    """Raises ``Hang`` after that time, and at the end of the block if something caught it."""
    late = False

    def ring(number: int, frame: object) -> None:
        nonlocal late
        late = True
        raise Hang(f"no end within {seconds:g} s: {one!r:.2000}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if late:
        raise Hang(f"no end within {seconds:g} s, and it was caught: {one!r:.2000}")


# --- inputs ----------------------------------------------------------------------------------

HUGE: Final = ["9" * 30, "-" + "9" * 30, "9" * 5000, "1e999", "nan", "-inf", "0x10", "1_0", "٣"]
"""Numbers as text that some parser takes for more than it is."""

ODD: Final = ["", " ", "\t", "\n", "\x7f", "\ufeff", "\u202e", "é", "\U0001f600", "%s", "{0}",
              "[bold]", "\x1b[31m", "..", "/", "~", "*", "@", "=", ",", ";", ":", "-", "--", "'",
              '"', "#", "a" * 300, "a" * 5000]  # fmt: skip
"""Text that means something to a shell, a terminal, a file system or a parser."""

NESTED: Final = ["[" * 12_000, '{"a":' * 3000, *("[" * n + "]" * n for n in (200, 800, 990))]
"""Lists and tables in each other, up to where a recursive parser gives up and beyond."""


def text_without_nul(**limits: int) -> st.SearchStrategy[str]:
    """Text as the system hands it to a process: no NUL; a byte that is no text is a surrogate."""
    system = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    bytes_ = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
    return st.text(system | bytes_, **limits)


@st.composite
def mutated(draw: Any, wholes: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """A valid file with one to five changes: a part gone, twice, moved, or something put in."""
    data = draw(st.sampled_from(wholes))
    for _ in range(draw(st.integers(1, 5))):
        a, b, c = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 3)))
        b = min(b, a + draw(st.sampled_from([1, 2, 8, 64, 1 << 20])))
        put = draw(st.sampled_from(tokens) | st.binary(min_size=1, max_size=4))
        data = draw(
            st.sampled_from(
                [
                    data[:a] + data[b:],
                    data[:b] + data[a:],
                    data[:a] + data[b : max(b, c)] + data[a:b] + data[max(b, c) :],
                    data[:a] + put + data[a:],
                    data[:a] + put + data[b:],
                    data[:a],
                ]
            )
        )
    return data


JUNK: Final = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1 << 63, 10**30, 0.5, float("nan"), float("inf")]),
    st.sampled_from(["", "x", "rms_norm", "float32", "\0", "\ud800", "a" * 5000, "../..", "*"]),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    ),
)
"""Values of JSON that do not belong where they stand."""


@st.composite
def mutated_document(draw: Any, whole: Mapping[str, Any]) -> dict[str, Any]:
    """A document of JSON in which one to three places were replaced, removed, renamed or added."""
    document: dict[str, Any] = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        home, key = draw(st.sampled_from(places))
        act = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
        if act == "replace":
            home[key] = draw(JUNK)
        elif act == "remove":
            del home[key]
        elif isinstance(home, list):
            home.insert(key, draw(JUNK))
        elif act == "rename":
            home[draw(st.sampled_from([key + "x", key[:-1], key.upper(), ""]))] = home.pop(key)
        else:
            home[draw(st.text(max_size=6))] = draw(JUNK)
        if not document:
            return {"": draw(JUNK)}
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document, as its container and its key."""
    rows = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(rows):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _places(value)
