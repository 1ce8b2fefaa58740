"""A ReLU network in whole numbers: residual blocks on named registers, counted and run exactly.

Enters: ids with labels. Leaves: a `Network` that maps each id to its label. It follows the idea of
bit extraction behind arXiv 2409.17677: about √N groups of about √N ids. The first block
looks up one number that packs the ids of a group and one that packs their labels; the others peel
them off bit by bit and compare. Weights are Python integers, so nothing is ever rounded. What is
looked up may also be a fraction, where no two are nearer than two: its id is what it is rounded
down to.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitlens.errors import InputError

REGISTERS = ("x", "ids", "labels", "id", "label", "gap", "out")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One neuron: relu(bias + sum of weight * register), added to registers with weights."""

    reads: Mapping[str, int]
    writes: Mapping[str, int]
    bias: int | None = None  # None: it has none

    @property
    def scalars(self) -> tuple[int, ...]:
        """Every number that it stores."""
        bias = () if self.bias is None else (self.bias,)
        return (*self.reads.values(), *bias, *self.writes.values())


Block = tuple[Unit, ...]


@dataclass(frozen=True, kw_only=True)
class Network:
    """Residual blocks; a block's units all read what the block before left."""

    blocks: tuple[Block, ...]

    @property
    def scalars(self) -> Iterator[int]:
        """Every weight and bias."""
        return (number for block in self.blocks for unit in block for number in unit.scalars)

    @property
    def n_parameters(self) -> int:
        """How many weights and biases there are, shared constants counted wherever they stand."""
        return sum(1 for _ in self.scalars)

    @property
    def largest_bits(self) -> int:
        """Bits of the longest weight."""
        return max(abs(number).bit_length() for number in self.scalars)

    @property
    def total_bits(self) -> int:
        """Bits of all weights, a sign each."""
        return sum(abs(number).bit_length() + 1 for number in self.scalars)

    @property
    def depth(self) -> int:
        """Blocks."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """Units of the widest block, with those that would carry the registers past it."""
        return max(self._widths)

    @property
    def n_dense(self) -> int:
        """Weights and biases of the same network without residuals, zeros counted as well.

        Registers are never below zero, so a ReLU unit carries each of them past a block.
        """
        return sum((a + 1) * b for a, b in pairwise((1, *self._widths, 1)))

    @property
    def _widths(self) -> list[int]:
        return [len(block) + len(REGISTERS) for block in self.blocks]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How ids are spread over blocks."""

    size: int = 0  # ids a group, which are told apart one after the other; 0: the root of N
    narrow: bool = False  # one step of the staircase a block, instead of all in the first
    real: bool = False  # what is looked up may be any number from its id to the next

    def groups(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """Return the ids group by group."""
        size = self.of(len(ids))
        return [ids[k : k + size] for k in range(0, len(ids), size)]

    def of(self, n_ids: int) -> int:
        """Return how many ids a group has."""
        return self.size or math.isqrt(n_ids - 1) + 1  # the root, rounded up


ROOT = Form()


# --- building --------------------------------------------------------------------------------


def extractor(
    labels: Mapping[int, int], *, id_bits: int, label_bits: int, form: Form = ROOT
) -> Network:
    """Return a network for N ids; with groups of √N of order √N parameters, up to logarithms.

    Args:
        labels: the label of each id; both are whole numbers from 0 on.
        id_bits: bits that hold every id.
        label_bits: bits that hold every label.
        form: sizes of groups, and how deep the network is.
    """
    _check(labels, id_bits, label_bits)
    groups, size = form.groups(sorted(labels)), form.of(len(labels))
    packed = [
        (
            _packed(group, id_bits, size),
            _packed([labels[i] for i in group], label_bits, size),
        )
        for group in groups
    ]
    starts = [group[0] for group in groups]
    steps = _selector(starts, packed)
    blocks = [steps[k : k + 2] for k in range(0, len(steps), 2)] if form.narrow else [steps]
    for member in range(size):
        left = size - member  # ids that are still packed
        blocks += _peelers(id_bits * left, label_bits * left, id_bits, label_bits)
        blocks += _comparison(label_bits, slack=form.real)
    return Network(blocks=tuple(blocks))


def lookup(labels: Mapping[int, int]) -> Network:
    """Return the plain reference: a staircase with two units an id, order N parameters."""
    ids = sorted(labels)
    block: list[Unit] = []
    before = 0
    for i in ids:
        block += _step(i, {"out": labels[i] - before})
        before = labels[i]
    return Network(blocks=(tuple(block),))


def bumps(labels: Mapping[int, int]) -> Network:
    """Return the plain reference for numbers that are two apart: a step up and one down an id.

    It gives zero to what is two away from every number that has an id.
    """
    block: list[Unit] = []
    for i in sorted(labels):
        block += [*_step(i, {"out": labels[i]}), *_step(i + 2, {"out": -labels[i]})]
    return Network(blocks=(tuple(block),))


def _check(labels: Mapping[int, int], id_bits: int, label_bits: int) -> None:
    if not labels:
        raise InputError("there are no ids to memorize; expected at least one.")
    for name, numbers, bits in (
        ("id", labels.keys(), id_bits),
        ("label", labels.values(), label_bits),
    ):
        if min(numbers) < 0 or max(numbers).bit_length() > bits:
            raise InputError(
                f"{name}s from {min(numbers)} to {max(numbers)} do not fit {bits} bits. Expected "
                "whole numbers from 0 on; give more bits."
            )


def _packed(numbers: Sequence[int], bits: int, size: int) -> int:
    """Return numbers side by side, the first on top; a short group is filled up with zeros.

    A filling id has the label 0 and so adds nothing, whichever id it is.
    """
    packed = 0
    for number in [*numbers, *[0] * (size - len(numbers))]:
        packed = (packed << bits) | number
    return packed


def _step(start: int, writes: Mapping[str, int]) -> list[Unit]:
    """Return two units that add `writes` where x >= start: relu(x-s+1) - relu(x-s)."""
    return [
        Unit(reads={"x": 1}, bias=1 - start, writes=writes),
        Unit(reads={"x": 1}, bias=-start, writes={name: -w for name, w in writes.items()}),
    ]


def _selector(starts: Sequence[int], packed: Sequence[tuple[int, int]]) -> Block:
    """Return the staircase from x to the packed ids and labels of its group."""
    block: list[Unit] = []
    before = (0, 0)
    for start, (ids, labels) in zip(starts, packed, strict=True):
        block += _step(start, {"ids": ids - before[0], "labels": labels - before[1]})
        before = (ids, labels)
    return tuple(block)


def _bit(source: str, target: str, place: int, value: int) -> list[Unit]:
    """Return two units that move the top bit of `source`, of weight 2^place, to `target`."""
    top = 1 << place
    return [
        Unit(reads={source: 1}, bias=1 - top, writes={source: -top, target: value}),
        Unit(reads={source: 1}, bias=-top, writes={source: top, target: -value}),
    ]


def _peelers(ids_end: int, labels_end: int, id_bits: int, label_bits: int) -> list[Block]:
    """Return blocks that move one id and its label out of their packs, a bit a block each."""
    blocks: list[Block] = []
    for k in range(max(id_bits, label_bits)):
        block: list[Unit] = []
        if k < id_bits:
            block += _bit("ids", "id", ids_end - 1 - k, 1 << (id_bits - 1 - k))
        if k < label_bits:
            block += _bit("labels", "label", labels_end - 1 - k, 1 << (label_bits - 1 - k))
        blocks.append(tuple(block))
    return blocks


def _comparison(label_bits: int, *, slack: bool) -> list[Block]:
    """Return two blocks: gap = |x - id|; out += relu(label - 2^c gap); then registers are cleared.

    The gap is a whole number, so anything but a match takes the label below zero. With slack it
    is the distance from the id and the next number together: none for the x that has this id, and
    at least one for an x that is two away from that.
    """
    compare = (
        Unit(reads={"x": 1, "id": -1}, bias=-1 if slack else None, writes={"gap": 1}),
        Unit(reads={"x": -1, "id": 1}, writes={"gap": 1}),
    )
    answer = Unit(reads={"label": 1, "gap": -(1 << label_bits)}, writes={"out": 1})
    clear = tuple(Unit(reads={name: 1}, writes={name: -1}) for name in ("id", "label", "gap"))
    return [compare, (answer, *clear)]


# --- running ---------------------------------------------------------------------------------


Exact = int | Fraction


def run_exact(network: Network, ids: Sequence[Exact]) -> list[Exact]:
    """Return what the network says for each number, exactly.

    With fractions all is counted in units of a common part: ReLU commutes with a positive factor,
    so that biases need no more than the same factor, and whole numbers are all there is.
    """
    parts = math.lcm(*(i.denominator for i in ids))
    state = {name: np.zeros(len(ids), dtype=object) for name in REGISTERS}
    state["x"] = np.array([int(i * parts) for i in ids], dtype=object)
    for block in network.blocks:
        active = []
        for unit in block:
            total = sum(_times(state[name], weight) for name, weight in unit.reads.items())
            active.append(np.maximum(total + parts * (unit.bias or 0), 0))
        for unit, value in zip(block, active, strict=True):
            for name, weight in unit.writes.items():
                state[name] = state[name] + _times(value, weight)
    return [whole(Fraction(value, parts)) for value in state["out"]]


def whole(value: Fraction) -> Exact:
    """Return a fraction that is whole as an integer, and any other as it is.

    >>> whole(Fraction(4, 2)), whole(Fraction(1, 2))
    (2, Fraction(1, 2))
    """
    return int(value) if value.denominator == 1 else value


def _times(values: NDArray[Any], weight: int) -> NDArray[Any]:
    return values if weight == 1 else weight * values


def run_rounded(
    network: Network, ids: Sequence[int], dtype: torch.dtype = torch.float64
) -> Float[Tensor, " any"]:
    """Return what the same network says when every number is a float of that type."""
    start = torch.tensor([float(i) for i in ids], dtype=dtype)
    state = {name: torch.zeros_like(start) for name in REGISTERS} | {"x": start}
    for block in network.blocks:
        active = []
        for unit in block:
            total = torch.full_like(start, _rounded(unit.bias or 0, dtype))
            for name, weight in unit.reads.items():
                total = total + _rounded(weight, dtype) * state[name]
            active.append(total.relu())
        for unit, value in zip(block, active, strict=True):
            for name, weight in unit.writes.items():
                state[name] = state[name] + _rounded(weight, dtype) * value
    return state["out"]


def _rounded(number: int, dtype: torch.dtype) -> float:
    """Return the nearest float, infinite where a number is too large for its type."""
    if abs(number) > torch.finfo(dtype).max:
        return math.inf if number > 0 else -math.inf
    return float(number)
