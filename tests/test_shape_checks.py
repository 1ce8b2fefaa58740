"""Checks of shapes and types that run beside all tests: what they refuse, and what they spare."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from torch import Tensor

import shape_checks
from orbitlens.theory.ranks import entropy_rank

checked = functools.partial(shape_checks.jaxtyped, typechecker=beartype)
REFUSED = (BeartypeCallHintViolation, jaxtyping.TypeCheckError)


@checked
def product(x: Float[Tensor, "a b"], y: Float[Tensor, "b c"]) -> Float[Tensor, "a c"]:
    return x @ y


@checked
def transposed(x: Float[Tensor, "a b"]) -> Float[Tensor, "a b"]:
    return x.T


@checked
def label(number: int) -> str:
    return str(number) if number else number


@checked
def rows(x: Float[Tensor, "a b"]) -> Iterator[Float[Tensor, " b"]]:
    yield from x


@checked
@dataclass(frozen=True, kw_only=True)
class Pair:
    first: Float[Tensor, " n"]
    second: Float[Tensor, " n"]
    name: str = ""

    @checked
    @property
    def halves(self) -> Float[Tensor, "2 n"]:
        return self.first

    @checked
    @classmethod
    def of(cls, x: Float[Tensor, " n"], other: "Unknown | None" = None) -> "Pair":  # noqa: F821
        return cls(first=x, second=x)


def outer(x):
    def inner(y: int) -> int:
        return y

    return inner, shape_checks.jaxtyped(inner, typechecker=beartype)


def test_what_fits_passes():
    assert product(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    assert transposed(torch.ones(2, 2)).shape == (2, 2)
    assert label(3) == "3"
    assert len(list(rows(torch.ones(2, 3)))) == 2
    assert Pair.of(torch.ones(3)).second.shape == (3,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: product(torch.ones(2, 3), torch.ones(2, 4)),  # one name, two sizes
        lambda: product(torch.ones(2), torch.ones(2, 4)),
        lambda: product(torch.ones(2, 3).long(), torch.ones(3, 4)),
        lambda: transposed(torch.ones(2, 3)),  # the result does not fit the argument
        lambda: label("3"),
        lambda: label(0),  # gives a number
        lambda: rows(torch.ones(2)),
        lambda: Pair(first=torch.ones(2), second=torch.ones(3)),
        lambda: Pair(first=torch.ones(2), second=torch.ones(2), name=3),
        lambda: Pair.of(torch.ones(2)).halves,
        lambda: Pair.of(torch.ones(2, 2)),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(REFUSED):
        call()


def test_names_of_axes_are_forgotten_after_a_call():
    for size in (2, 5):
        assert product(torch.ones(size, size), torch.ones(size, 1)).shape == (size, 1)
    with pytest.raises(REFUSED):
        product(torch.ones(2, 3), torch.ones(2, 4))
    assert product(torch.ones(2, 4), torch.ones(4, 4)).shape == (2, 4)


def test_functions_inside_functions_are_not_decorated():
    plain, decorated = outer(1)
    assert decorated is plain


def test_the_package_is_checked_by_it(pytestconfig):
    if not pytestconfig.getoption("--jaxtyping-packages"):
        pytest.skip("checks are switched off")
    assert jaxtyping.jaxtyped is shape_checks.jaxtyped
    with pytest.raises(REFUSED):
        entropy_rank("no spectrum")
