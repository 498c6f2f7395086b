from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trivet.contracts import Cases, operator
from trivet.errors import DeclarationError

NO_CASES = Cases(sizes=({},))


def declare(reference, **changed):
    facts = {"shapes": {"x": "*tokens hidden"}, "returns": [("*tokens hidden", "x")]}
    return operator(cases=NO_CASES, oracle=reference, **(facts | changed))(reference)


def scale(x: Tensor, by: float = 2.0) -> Tensor:
    """Multiplies."""
    return x * by


def fill(x: Tensor) -> None:
    """Writes."""
    x.fill_(0)


def undocumented(x: Tensor) -> Tensor:
    return x


def named(x: Tensor, kind: str = "a") -> Tensor:
    """Has a choice."""
    return x


def counted(x: Tensor, n: int = 1) -> Tensor:
    """Has an integer."""
    return x


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Has two results."""
    return x, y


def lonely(n: int) -> Tensor:
    """Has no tensor."""
    return torch.zeros(n)


def private(x: Tensor, _f0: float = 1.0) -> Tensor:
    """Has a private parameter."""
    return x


def shadowing(x: Tensor, zip: int = 1) -> Tensor:  # noqa: A002  # the subject
    """Shadows what generated functions use."""
    return x


BOTH = {"x": "*tokens hidden", "y": "*tokens hidden"}
TWICE = [("*tokens hidden", "x"), ("*tokens hidden", "y")]


@pytest.mark.parametrize(
    ("reference", "changed", "problem"),
    [
        (scale, {"name": "Scale"}, "a name is lower_snake_case"),
        (scale, {"name": "scale_"}, "ends neither in '_' nor in '_out'"),
        (scale, {"name": "scale_out"}, "ends neither in '_' nor in '_out'"),
        (scale, {"name": "a.b.c"}, "a name is lower_snake_case"),
        (private, {}, "a parameter may not be called '_f0'"),
        (shadowing, {}, "a parameter may not be called 'zip'"),
        (lonely, {"shapes": {}}, "it has no tensor argument"),
        (scale, {"shapes": {"x": "a", "z": "a"}}, "['z'] are no tensor arguments"),
        (two, {}, "tensor arguments ['y'] have no shape"),
        (undocumented, {}, "the reference has no docstring"),
        (named, {}, "str arguments ['kind'] and choices [] differ"),
        (scale, {"choices": {"by": ("a",)}}, "str arguments [] and choices ['by'] differ"),
        (named, {"choices": {"kind": ("b",)}}, "default 'a' of 'kind' is no declared choice"),
        (scale, {"shapes": {"x": "*tokens x"}}, "['x'] name both a dim and an argument"),
        (scale, {"shapes": {"x": "*tokens by"}}, "['by'] name both a dim and an argument"),
        (scale, {"shapes": {"x": "*tokens rank"}}, "a dim may not be called 'rank'"),
        (scale, {"shapes": {"x": "*tokens f0"}}, "a dim may not be called 'f0'"),
        (scale, {"shapes": {"x": "*tokens x_shape"}}, "a dim may not be called 'x_shape'"),
        (scale, {"shapes": {"x": "*tokens float32"}}, "a dim may not be called 'float32'"),
        (
            scale,
            {"shapes": {"x": "*tokens ceil(hidden/8)"}},
            "dim 'ceil(hidden/8)' of 'x' cannot be solved from any size",
        ),
        (
            scale,
            {"shapes": {"x": "*tokens group*hidden"}},
            "dim 'group*hidden': 'group' is no int argument",
        ),
        (scale, {"returns": [("*tokens", "z")]}, "result 0 is like 'z'"),
        (scale, {"returns": [("*tokens", "by")]}, "result 0 is like 'by'"),
        (scale, {"returns": [("*tokens wide", "x")]}, "result 0 has dim 'wide', which no"),
        (scale, {"moved": [("wide", "x")]}, "moved has dim 'wide', which no argument gives"),
        (scale, {"moved": [("hidden", "nothing")]}, "moved is like 'nothing'"),
        (scale, {"returns": []}, "it either returns results"),
        (scale, {"writes": ("x",)}, "it either returns results"),
        (fill, {}, "it either returns results"),
        (fill, {"returns": [], "writes": ("y",)}, "writes ['y'] are no tensor arguments"),
        (scale, {"returns": TWICE[:1] * 2}, "it returns one tensor, 2 results are declared"),
        (scale, {"inplace": {"by": 0}}, "inplace 'by' -> 0 names no argument or no result"),
        (scale, {"inplace": {"x": 1}}, "inplace 'x' -> 1 names no argument or no result"),
        (scale, {"inplace": {"x": -1}}, "inplace 'x' -> -1 names no argument or no result"),
        (
            scale,
            {"returns": [("*tokens 2*hidden", "x")], "inplace": {"x": 0}},
            "inplace 'x' -> 0: the result has another shape or dtype",
        ),
        (
            scale,
            {"returns": [("*tokens hidden", "int64")], "inplace": {"x": 0}},
            "inplace 'x' -> 0: the result has another shape or dtype",
        ),
        (
            two,
            {"shapes": BOTH, "returns": TWICE, "inplace": {"x": 0}},
            "inplace covers each result exactly once",
        ),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(reference, changed, problem):
    with pytest.raises(DeclarationError) as caught:
        declare(reference, **changed)
    assert problem in caught.value.what
    assert __name__.rpartition(".")[2] in caught.value.what, "it says where the declaration stands"


def test_an_integer_argument_may_be_a_dim():
    op = declare(counted, returns=[("*tokens n", "x")])
    shape, dtype = op.result_meta({"x": torch.zeros(3, 4), "n": 7})[0]
    assert (shape, dtype) == ((3, 7), torch.float32)


def keyword_only(x: Tensor, *, by: float = 1.0) -> Tensor:
    """No."""
    return x


def variadic(*x: Tensor) -> Tensor:
    """No."""
    return x[0]


def untyped(x) -> Tensor:
    """No."""
    return x


def optional_scalar(x: Tensor, by: float | None = None) -> Tensor:
    """No."""
    return x


def optional_result(x: Tensor) -> Tensor | None:
    """No."""
    return x


def integer_for_float(x: Tensor, by: float = 1) -> Tensor:
    """No."""
    return x


def true_for_integer(x: Tensor, n: int = True) -> Tensor:
    """No."""
    return x


def tensor_default(x: Tensor = None) -> Tensor:
    """No."""
    return x


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (keyword_only, "parameter 'by' must be an ordinary one"),
        (variadic, "parameter 'x' must be an ordinary one"),
        (untyped, "is not a type of an operator signature"),
        (optional_scalar, "is not a type of an operator signature"),
        (optional_result, "not Tensor, a tuple or a list"),
        (integer_for_float, "'by' is float, its default is 1"),
        (true_for_integer, "'n' is int, its default is True"),
        (tensor_default, "'x' is Tensor, its default is None"),
    ],
)
def test_a_signature_outside_the_contract_is_refused(reference, problem):
    with pytest.raises(DeclarationError) as caught:
        declare(reference)
    assert problem in caught.value.what


def test_dims_are_solved_where_first_met_and_checked_elsewhere():
    op = declare(two, shapes={"x": "*tokens 2*inter", "y": "inter"}, returns=TWICE_OF_HALF)
    assert op.dims({"x": torch.zeros(2, 3, 8), "y": torch.zeros(4)}) == {"tokens": 6, "inter": 4}
    with pytest.raises(DeclarationError, match="'2\\*inter' of x is 7"):
        op.dims({"x": torch.zeros(2, 7), "y": torch.zeros(3)})
    with pytest.raises(DeclarationError, match="'inter' of y is 5, but x gives inter = 4"):
        op.dims({"x": torch.zeros(2, 8), "y": torch.zeros(5)})
    with pytest.raises(DeclarationError, match=r"y has shape \[2, 4\], declared 'inter'"):
        op.dims({"x": torch.zeros(2, 8), "y": torch.zeros(2, 4)})


TWICE_OF_HALF = [("*tokens inter", "x"), ("inter", "y")]


def test_rank_zero_has_no_last_dim():
    op = declare(scale)
    with pytest.raises(DeclarationError, match=r"x has shape \[\], declared '\*tokens hidden'"):
        op.dims({"x": torch.zeros(())})
    assert op.dims({"x": torch.zeros(5)}) == {"tokens": 1, "hidden": 5}
    assert op.dims({"x": torch.zeros(0, 3, 5)}) == {"tokens": 0, "hidden": 5}
