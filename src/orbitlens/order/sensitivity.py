"""Order sensitivity: how far predictions move when earlier tokens are permuted.

Enters: a subject, inputs and permutations. Leaves: one divergence for each input and permutation,
and its means: by cell, by layer, by swap distance, by position, by window and by n-gram.

Work: permutations run in batches, equal inputs (repeated tokens) run once, predictions on inputs as
they are are kept, only the query's logits are computed, and neighbour swaps share what lies before
them. Where a model is asked at several places, each has permutations of its own, and a sample's
value is the mean over all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.order.divergence import Mean, bootstrap_mean, js_bits, relative_change
from orbitlens.order.permutations import (
    Permutations,
    neighbour_swaps,
    ngram_shuffles,
    shuffles,
    swaps_at_distance,
    window_shuffles,
)
from orbitlens.order.prefix import can_share, swapped_predictions
from orbitlens.order.subject import Cell, Subject, run

BATCH_TOKENS = 2048  # tokens of one forward call: small enough for the cache of one core
GROUP_VALUES = 64_000_000  # logits held at once

# items, movable ones, size, count, generator -> permutations of that size
Draw = Callable[[int, Sequence[int], int, int, torch.Generator], Permutations]
Shuffles = Int[Tensor, "*samples each items"]


@dataclass
class Work:
    """What has been run so far; the only thing here that changes."""

    forward_calls: int = 0
    sequences: int = 0  # that went through the model
    asked: int = 0  # that were asked for: repeated inputs run once
    tokens: int = 0

    def add(self, batch: Tensor) -> None:
        """Count one forward call."""
        self.forward_calls += 1
        self.sequences += batch.shape[0]
        self.tokens += batch.shape[0] * batch.shape[1]

    def count(self, calls: int, batch: int, tokens: int) -> None:
        """Count forward calls of one batch that shared what they have in common."""
        self.forward_calls += calls
        self.sequences += calls * batch
        self.asked += calls * batch
        self.tokens += tokens


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How predictions moved: one row an input, one column a permutation."""

    values: Float[Tensor, "samples permutations"]  # bits, or relative change without a head
    max_difference: float  # of any output
    moved: Float[Tensor, "samples permutations"] = field(repr=False)  # 1.0 where the input changed


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all measurements of one audit share."""

    subject: Subject
    items: Tensor
    generator: torch.Generator
    cost: Work = field(default_factory=Work)
    progress: Callable[[int], None] = lambda n: None  # told how many sequences were done
    kept: dict[tuple[Cell, int], Tensor] = field(default_factory=dict)  # predictions on the inputs

    @property
    def n_items(self) -> int:
        """Items of one input."""
        return self.items.shape[1]

    @property
    def movable(self) -> tuple[int, ...]:
        """Items that permutations move."""
        return self.subject.movable(self.n_items)

    def some(self, n_samples: int) -> "Bench":
        """Return the same with fewer inputs, spread evenly over all."""
        chosen = torch.linspace(0, len(self.items) - 1, n_samples).round().long()
        kept = {key: values[chosen] for key, values in self.kept.items()}
        return replace(self, items=self.items[chosen], kept=kept)

    def each(self, permutations: Permutations) -> Shuffles:
        """Deal permutations out to the inputs, the same number to each."""
        return permutations.reshape(len(self.items), -1, self.n_items)


def compare(
    bench: Bench, cell: Cell, permutations: Shuffles, subject: Subject | None = None
) -> Comparison:
    """Return how predictions move when inputs are permuted, each by permutations of its own.

    Args:
        bench: the model and its inputs.
        cell: what is switched on.
        permutations: (samples, count, items), or (count, items) for the same ones everywhere.
        subject: the model asked at another place than the bench's.
    """
    asked = subject or bench.subject
    values, moved, worst = [], [], 0.0
    own = permutations if permutations.ndim == 3 else permutations.expand(len(bench.items), -1, -1)
    starts = unpermuted(bench, cell, asked)
    size = max(1, GROUP_VALUES // (starts.shape[1] * (own.shape[1] + 1)))
    distance = js_bits if asked.in_bits else relative_change
    for group, orders, before in zip(
        bench.items.split(size), own.split(size), starts.split(size), strict=True
    ):
        shuffled = torch.stack([x[order] for x, order in zip(group, orders, strict=True)])
        is_same = (shuffled == group[:, None]).flatten(2).all(-1)
        after = before[:, None].repeat(1, shuffled.shape[1], 1)
        bench.cost.asked += shuffled.shape[0] * shuffled.shape[1]
        if not is_same.all():
            after[~is_same] = _predictions(bench, cell, asked, shuffled[~is_same])
        values.append(distance(before[:, None].expand_as(after), after))
        worst = max(worst, float((after - before[:, None]).abs().max()))
        moved.append((~is_same).double())
    return Comparison(values=torch.cat(values), max_difference=worst, moved=torch.cat(moved))


def unpermuted(bench: Bench, cell: Cell, subject: Subject) -> Float[Tensor, "samples outputs"]:
    """Return the predictions on the inputs as they are, run once for all comparisons."""
    key = (cell, subject.query)
    if key not in bench.kept:
        bench.cost.asked += len(bench.items)
        bench.kept[key] = _predictions(bench, cell, subject, bench.items)
    return bench.kept[key]


def _predictions(
    bench: Bench, cell: Cell, subject: Subject, rows: Tensor
) -> Float[Tensor, "rows outputs"]:
    """Return predictions on inputs; token ids that are equal are run once."""
    back: Tensor | None = None
    n_rows = len(rows)
    if rows.ndim == 2:
        rows, back = torch.unique(rows, dim=0, return_inverse=True)
    parts = []
    for batch in batches(rows):
        parts.append(run(subject, batch, cell).prediction)
        bench.cost.add(batch)
        bench.progress(len(batch))
    bench.progress(n_rows - len(rows))
    predictions = torch.cat(parts)
    return predictions if back is None else predictions[back]


def batches(rows: Tensor) -> Iterator[Tensor]:
    """Cut inputs into batches of about `BATCH_TOKENS` tokens."""
    yield from rows.split(max(1, BATCH_TOKENS // rows.shape[1]))


# --- readings --------------------------------------------------------------------------------


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


def by_layer(bench: Bench, n_samples: int = 8, n_shuffles: int = 4) -> list[LayerReading]:
    """Return |f_l(p X) - p f_l(X)| / |f_l(X)| over the items, at each layer, in each cell."""
    few = bench.items[:n_samples]
    perms = shuffles(bench.n_items, bench.movable, n_shuffles, bench.generator)
    rows: dict[str, list[float]] = {}
    inputs = torch.cat([few, *(few[:, perm] for perm in perms)])
    for cell in bench.subject.compared:
        states = run(bench.subject, inputs, cell, hidden=True).hidden
        bench.cost.add(inputs)
        rows[cell.value] = [_defect(layer.double().split(len(few)), perms) for layer in states]
    n_layers = len(next(iter(rows.values())))
    return [
        LayerReading(layer=k, defects={cell: values[k] for cell, values in rows.items()})
        for k in range(n_layers)
    ]


def _defect(states: Sequence[Tensor], permutations: Permutations) -> float:
    start, *moved = states
    changes = []
    for state, perm in zip(moved, permutations, strict=True):
        expected = start[:, perm]
        changes.append(float((state - expected).norm() / expected.norm()))
    return sum(changes) / len(changes)


def neighbour_effects(bench: Bench) -> Comparison:
    """Return what each swap of neighbours does to each input; prefixes are shared if possible."""
    subject, cell = bench.subject, bench.subject.own_cell
    if not can_share(subject, cell):
        return compare(bench, cell, neighbour_swaps(bench.n_items, bench.movable))
    values, worst = [], 0.0
    for group in batches(bench.items):
        before, after, n_tokens = swapped_predictions(subject, group)
        values.append(js_bits(before[:, None].expand_as(after), after))
        worst = max(worst, float((after - before[:, None]).abs().max()))
        bench.cost.count(after.shape[1] + 1, len(group), n_tokens)
    first, second = (list(places) for places in (bench.movable[:-1], bench.movable[1:]))
    moved = (bench.items[:, first] != bench.items[:, second]).double()
    return Comparison(values=torch.cat(values), max_difference=worst, moved=moved)
