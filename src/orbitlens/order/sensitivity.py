"""Order sensitivity: how far predictions move when earlier tokens are permuted.

Enters: a bench. Leaves: means of its comparisons, with intervals: by cell, by layer, by swap
distance, by window and by n-gram. Where a model is asked at several places, each has permutations
of its own, and a sample's value is the mean over all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.order.comparing import Bench, Comparison, Shuffles, compare, unpermuted
from orbitlens.order.divergence import Mean, bootstrap_mean
from orbitlens.order.permutations import (
    Permutations,
    ngram_shuffles,
    shuffles,
    swaps_at_distance,
    window_shuffles,
)
from orbitlens.order.subject import Cell, run

# items, movable ones, size, count, generator -> permutations of that size
Draw = Callable[[int, Sequence[int], int, int, torch.Generator], Permutations]


def mean_of(bench: Bench, comparison: Comparison) -> Mean:
    """Return the mean over samples of each sample's mean over permutations."""
    return bootstrap_mean(comparison.values.mean(dim=1), bench.generator)


@dataclass(frozen=True, kw_only=True)
class PlaceReading:
    """Order sensitivity where one place is asked for."""

    place: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CellReading:
    """Order sensitivity in one cell of the 2 x 2."""

    mean_js_bits: float | None  # None without a prediction head
    mean_relative_change: float | None  # of the output vector, None with a head
    low: float
    high: float
    max_logit_difference: float
    places: tuple[PlaceReading, ...] = ()  # where the model is asked at several


@dataclass(frozen=True, kw_only=True)
class CellValues:
    """What a cell's reading is made of: the mean over permutations of each sample at each place."""

    by_place: Float[Tensor, "samples places"]
    max_difference: float


def cell_values(bench: Bench, cell: Cell, permutations: Sequence[Shuffles]) -> CellValues:
    """Return the order sensitivity of each sample in one cell, at each place.

    Args:
        bench: the model and its inputs.
        cell: what is switched on.
        permutations: for each place, permutations of its own.
    """
    parts = [
        compare(bench, cell, own, subject)
        for own, subject in zip(permutations, bench.subject.in_turn, strict=True)
    ]
    return CellValues(
        by_place=torch.stack([part.values.mean(dim=1) for part in parts], dim=1),
        max_difference=max(part.max_difference for part in parts),
    )


def read_cell(bench: Bench, values: CellValues) -> CellReading:
    """Return the mean over samples and places, with its interval, and that of each place."""
    mean = bootstrap_mean(values.by_place.mean(dim=1), bench.generator)
    in_bits, n_items = bench.subject.in_bits, bench.n_items
    places = []
    if len(bench.subject.places) > 1:
        for place, column in zip(bench.subject.places, values.by_place.T, strict=True):
            one = bootstrap_mean(column, bench.generator)
            where = place % n_items
            places.append(PlaceReading(place=where, mean=one.mean, low=one.low, high=one.high))
    return CellReading(
        mean_js_bits=mean.mean if in_bits else None,
        mean_relative_change=None if in_bits else mean.mean,
        low=mean.low,
        high=mean.high,
        max_logit_difference=values.max_difference,
        places=tuple(places),
    )


def encoding_effect(bench: Bench) -> float | None:
    """Return the relative change of predictions without the encoding; None if it cannot go.

    max |second - first| / max |first| over the inputs.
    """
    subject = bench.subject
    other = Cell.NOPE_CAUSAL if subject.own_cell.causal else Cell.NOPE_FULL
    if other not in subject.compared:
        return None
    first, second = (unpermuted(bench, cell, subject) for cell in (subject.own_cell, other))
    size = first.abs().max().clamp_min(torch.finfo(first.dtype).tiny)
    return float((second - first).abs().max() / size)


@dataclass(frozen=True, kw_only=True)
class SizedReading:
    """A mean at one distance, window or n-gram size."""

    size: int
    mean: float
    low: float
    high: float


def doublings(first: int, last: int) -> list[int]:
    """Return first, 2 first, 4 first, ... up to `last`, which is included."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= 2
    return [*sizes, last] if last >= first else sizes


@dataclass(frozen=True, kw_only=True)
class SizeReadings:
    """What permutations of each size do."""

    swap_distance: tuple[SizedReading, ...] = ()  # of two tokens, by how far apart they are
    windows: tuple[SizedReading, ...] = ()  # shuffles within windows; the largest holds all
    ngrams: tuple[SizedReading, ...] = ()  # shuffles that keep n-grams; size 1 keeps none


def by_size(bench: Bench, count: int, own: CellReading) -> SizeReadings:
    """Return the mean effect of swaps and shuffles by their size, over samples and places.

    All run together, in full batches. A shuffle within one window of all tokens, and one of single
    tokens, is a plain shuffle: that is what the model's own cell has measured.
    """
    n_movable = len(bench.movable)
    distances = doublings(1, n_movable - 1)
    windows, ngrams = doublings(2, n_movable)[:-1], doublings(1, n_movable // 2)[1:]
    draws: list[tuple[Draw, int]] = [
        *((swaps_at_distance, size) for size in distances),
        *((window_shuffles, size) for size in windows),
        *((ngram_shuffles, size) for size in ngrams),
    ]
    readings = iter(_sized(bench, draws, count))
    value = own.mean_js_bits if own.mean_js_bits is not None else own.mean_relative_change
    assert value is not None
    whole, one = (
        SizedReading(size=size, mean=value, low=own.low, high=own.high) for size in (n_movable, 1)
    )
    return SizeReadings(
        swap_distance=tuple(next(readings) for _ in distances),
        windows=(*(next(readings) for _ in windows), whole),
        ngrams=(one, *(next(readings) for _ in ngrams)),
    )


def _sized(bench: Bench, draws: Sequence[tuple[Draw, int]], count: int) -> list[SizedReading]:
    cell, parts, total = bench.subject.own_cell, [], count * len(bench.items)
    for subject in bench.subject.in_turn:
        places = subject.movable(bench.n_items)
        orders = [
            bench.each(draw(bench.n_items, places, size, total, bench.generator))
            for draw, size in draws
        ]
        values = compare(bench, cell, torch.cat(orders, dim=1), subject).values
        parts.append(values.reshape(len(bench.items), len(draws), count).mean(dim=2))
    columns = torch.stack(parts).mean(dim=0).T
    means = [bootstrap_mean(column, bench.generator) for column in columns]
    return [
        SizedReading(size=size, mean=mean.mean, low=mean.low, high=mean.high)
        for (_, size), mean in zip(draws, means, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """Equivariance defect of one layer's output in each cell that can be reached."""

    layer: int  # 0: the embedding
    defects: dict[str, float]


def by_layer(bench: Bench, n_shuffles: int = 4) -> list[LayerReading]:
    """Return |f_l(p X) - p f_l(X)| / |f_l(X)| over the items, at each layer, in each cell.

    X are the inputs whose states the bench keeps.
    """
    few = bench.items[: bench.n_states]
    perms = shuffles(bench.n_items, bench.movable, n_shuffles, bench.generator)
    rows: dict[str, list[float]] = {}
    inputs = torch.cat([few[:, perm] for perm in perms])
    for cell in bench.subject.compared:
        unpermuted(bench, cell, bench.subject)
        states = run(bench.subject, inputs, cell, hidden=True).hidden
        bench.cost.add(inputs)
        rows[cell.value] = [
            _defect(start.double(), layer.double().split(len(few)), perms)
            for start, layer in zip(bench.states[cell], states, strict=True)
        ]
    n_layers = len(next(iter(rows.values())))
    return [
        LayerReading(layer=k, defects={cell: values[k] for cell, values in rows.items()})
        for k in range(n_layers)
    ]


def _defect(start: Tensor, moved: Sequence[Tensor], permutations: Permutations) -> float:
    changes = []
    for state, perm in zip(moved, permutations, strict=True):
        expected = start[:, perm]
        changes.append(float((state - expected).norm() / expected.norm()))
    return sum(changes) / len(changes)
