"""What bodies ask of a call: that it is refused, or that it ends the group."""

from __future__ import annotations

import pytest

from trivet.errors import CommError


def refuses(call, words, error_type=CommError):
    text = f"no {error_type.__name__}"
    try:
        call()
    except error_type as error:
        text = str(error)
    assert words in text, f"expected {words!r}, not {text!r}"
    return text.partition("\n")[0]


def ends(call, error_type, words=""):
    """The call ends the group with this error; returns it."""
    with pytest.raises(error_type) as caught:
        call()
    assert words in str(caught.value), (words, str(caught.value))
    return caught.value
