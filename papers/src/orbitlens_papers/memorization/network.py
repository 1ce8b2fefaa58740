"""A ReLU network in whole numbers: residual blocks on named registers, counted and run exactly.

Enters: ids with labels. Leaves: a `Network` that maps each id to its label. It follows the idea of
bit extraction behind arXiv 2409.17677: about √N groups of about √N ids. The first block
looks up one number that packs the ids of a group and one that packs their labels; the others peel
them off bit by bit and compare. Weights are Python integers, so nothing is ever rounded.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


# --- building --------------------------------------------------------------------------------


def extractor(labels: Mapping[int, int], *, id_bits: int, label_bits: int) -> Network:
    """Return a network with order √N parameters, up to logarithms, for N ids.

    Args:
        labels: the label of each id; both are whole numbers from 0 on.
        id_bits: bits that hold every id.
        label_bits: bits that hold every label.
    """
    _check(labels, id_bits, label_bits)
    ids = sorted(labels)
    size = math.isqrt(len(ids) - 1) + 1  # the root, rounded up
    groups = [ids[k : k + size] for k in range(0, len(ids), size)]
    packed = [
        (
            _packed(group, id_bits, size),
            _packed([labels[i] for i in group], label_bits, size),
        )
        for group in groups
    ]
    starts = [group[0] for group in groups]
    blocks = [_selector(starts, packed)]
    for member in range(size):
        left = size - member  # ids that are still packed
        blocks += _peelers(id_bits * left, label_bits * left, id_bits, label_bits)
        blocks += _comparison(label_bits)
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


def _comparison(label_bits: int) -> list[Block]:
    """Return two blocks: gap = |x - id|; out += relu(label - 2^c gap); then registers are cleared.

    The gap is a whole number, so anything but a match takes the label below zero.
    """
    compare = (
        Unit(reads={"x": 1, "id": -1}, writes={"gap": 1}),
        Unit(reads={"x": -1, "id": 1}, writes={"gap": 1}),
    )
    answer = Unit(reads={"label": 1, "gap": -(1 << label_bits)}, writes={"out": 1})
    clear = tuple(Unit(reads={name: 1}, writes={name: -1}) for name in ("id", "label", "gap"))
    return [compare, (answer, *clear)]


# --- running ---------------------------------------------------------------------------------


def run_exact(network: Network, ids: Sequence[int]) -> list[int]:
    """Return what the network says for each id, in whole numbers of any length."""
    state = {name: np.zeros(len(ids), dtype=object) for name in REGISTERS}
    state["x"] = np.array(list(ids), dtype=object)
    for block in network.blocks:
        active = []
        for unit in block:
            total = sum(_times(state[name], weight) for name, weight in unit.reads.items())
            active.append(np.maximum(total + (unit.bias or 0), 0))
        for unit, value in zip(block, active, strict=True):
            for name, weight in unit.writes.items():
                state[name] = state[name] + _times(value, weight)
    return [int(value) for value in state["out"]]


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
