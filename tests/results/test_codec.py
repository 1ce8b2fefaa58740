"""Dataclasses to JSON and back: exactly, or refused with the name of the field."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from json_places import changed, places
from orbitlens.errors import ResultError
from orbitlens.results.codec import decode, dumps, encode


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Leaf:
    value: float
    colour: Colour
    sign: Literal[-1, 1]


@dataclass(frozen=True, kw_only=True)
class Tree:
    name: str
    size: int
    is_green: bool
    leaf: Leaf | None
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    shares: Mapping[str, float]
    by_number: dict[int, Leaf | None]
    by_place: Mapping[tuple[int, int], Colour]
    by_colour: Mapping[Colour, int]
    either: int | str | None
    below: "Tree | None"
    rows: list[float] = field(default_factory=list)


finite = st.floats(allow_nan=False)
whole = st.integers(-(2**63), 2**63)
leaves = st.builds(Leaf, value=finite)
trees = st.recursive(
    st.none(),
    lambda below: st.builds(
        Tree,
        size=whole,
        leaf=st.none() | leaves,
        leaves=st.lists(leaves, max_size=3).map(tuple),
        shares=st.dictionaries(st.text(), finite, max_size=3),
        pair=st.tuples(whole, st.text()),
        by_number=st.dictionaries(whole, st.none() | leaves, max_size=2),
        by_place=st.dictionaries(st.tuples(whole, whole), st.sampled_from(Colour), max_size=2),
        by_colour=st.dictionaries(st.sampled_from(Colour), whole),
        either=st.none() | whole | st.text(),
        below=below,
        rows=st.lists(finite, max_size=3),
    ),
    max_leaves=3,
).filter(bool)


@given(trees)
def test_what_was_written_is_read_again_exactly(tree):
    assert decode(Tree, json.loads(dumps(encode(tree)))) == tree


def a_tree():
    return Tree(
        name="oak",
        size=3,
        is_green=True,
        leaf=None,
        leaves=(Leaf(value=0.1, colour=Colour.RED, sign=1),),
        pair=(1, "a"),
        shares={"a": 0.5},
        by_number={7: None},
        by_place={(1, 2): Colour.BLUE},
        by_colour={Colour.RED: 1},
        either="x",
        below=None,
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.data())
def test_data_that_are_damaged_somewhere_are_read_or_refused(data):
    whole = encode(replace(a_tree(), below=a_tree()))
    path = data.draw(st.sampled_from(list(places(whole))))
    damaged = changed(whole, path, data.draw(anything))
    try:
        assert isinstance(decode(Tree, damaged), Tree)
    except ResultError as error:
        assert "expected" in str(error) or "missing" in str(error)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("size",), 2.5, r"size: expected a whole number, got 2\.5"),
        (("leaves", 0, "value"), 10**400, r"leaves\[0\]\.value: expected a number, got 1000"),
        (("size",), 10**400, "size: expected a whole number, got 1000"),
        (("size",), True, "size: expected a whole number, got true"),
        (("is_green",), 1, "is_green: expected true or false, got 1"),
        (("leaves", 0, "value"), "high", r'leaves\[0\]\.value: expected a number, got "high"'),
        (("leaves", 0, "colour"), "green", r"leaves\[0\]\.colour: expected one of 'red', 'blue'"),
        (("leaves", 0, "sign"), 0, r"leaves\[0\]\.sign: expected one of -1, 1"),
        (("leaves",), {}, r"leaves: expected a list, got \{\}"),
        (("pair",), [1], r"pair: expected a list of 2, got \[1\]"),
        (("shares", "a"), None, r"shares\.a: expected a number, got null"),
        (("by_number",), {"x": None}, "a name in by_number: expected a whole number"),
        (("by_place",), [[[1, 2]]], r"by_place\[0\]: expected a list of 2"),
        (("by_colour",), {"green": 1}, "a name in by_colour: expected one of 'red', 'blue'"),
        (("name",), ["x" * 99], r'name: expected text, got \["x+ \.\.\.'),
        ((), [], r"the data: expected an object, got \[\]"),
        ((), {}, "name is missing"),
    ],
)
def test_what_does_not_fit_is_named(path, value, words):
    with pytest.raises(ResultError, match=words):
        decode(Tree, changed(encode(a_tree()), path, value))


def test_a_field_with_a_default_may_be_missing_and_unknown_names_are_passed_over():
    data = encode(a_tree())
    del data["rows"]
    assert decode(Tree, data | {"later": 1}) == a_tree()


@dataclass(frozen=True, kw_only=True)
class Cloud:
    points: Float[Tensor, "tokens d_model"]
    kept: Tensor


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3), (0, 4), (1, 1)])
def test_tensors_keep_values_shape_and_type(shape, dtype):
    points = torch.randn(shape, dtype=torch.float64).to(dtype)
    cloud = Cloud(points=points, kept=torch.tensor([True, False]))
    again = decode(Cloud, json.loads(dumps(encode(cloud))))
    assert again.points.dtype == dtype and torch.equal(again.points, points)
    assert torch.equal(again.kept, cloud.kept) and again.kept.dtype == torch.bool


def test_numbers_that_json_does_not_have_come_back():
    values = [math.inf, -math.inf, math.nan, 0.1]
    cloud = Cloud(points=torch.tensor([values]), kept=torch.tensor(3))
    text = dumps(encode({"cloud": cloud, "list": values}))
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert decode(list[float], data["list"])[:2] == [math.inf, -math.inf]
    again = decode(Cloud, data["cloud"])
    assert torch.equal(again.points.nan_to_num(), cloud.points.nan_to_num())
    assert again.points.isnan().tolist() == [[False, False, True, False]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "complex64"}, "points.dtype: expected a type of real numbers"),
        ({"dtype": "Tensor"}, "points.dtype: expected a type of real numbers"),
        ({"dtype": "int64", "data": [1, 2]}, r"points: expected Float\[Tensor"),
        ({"shape": [2, 2]}, "points.shape: expected sizes of 2 numbers"),
        ({"shape": [2]}, r"points: expected Float\[Tensor"),
        ({"shape": [-1, -2]}, "points.shape: expected sizes of 2 numbers"),
        ({"data": [1.0, "x"]}, r"points.data\[1\]: expected a number"),
        ({"dtype": "uint8", "data": [1, 999]}, "points"),
    ],
)
def test_a_damaged_tensor_is_named(change, words):
    data = encode(Cloud(points=torch.zeros(1, 2), kept=torch.tensor(3)))
    with pytest.raises(ResultError, match=words):
        decode(Cloud, data | {"points": data["points"] | change})


def test_a_type_that_results_cannot_have_is_our_own_mistake():
    with pytest.raises(TypeError, match="cannot have fields of type"):
        decode(complex, "1j")


def test_any_data_are_taken_as_they_are():
    assert decode(dict[str, Any], {"a": [1, None]}) == {"a": [1, None]}
