"""Order sensitivity: how far predictions move when earlier tokens are permuted.

Enters: a subject, inputs and permutations. Leaves: one divergence for each input and permutation,
and its means: by cell, by layer, by swap distance, by position, by window and by n-gram.

Work: permutations run in batches, inputs that a permutation leaves as they were (repeated tokens)
run once, only the query's logits are computed, and neighbour swaps share what lies before them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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
N_LAYER_SAMPLES = 8
N_LAYER_SHUFFLES = 4


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

    @property
    def n_items(self) -> int:
        """Items of one input."""
        return self.items.shape[1]

    @property
    def movable(self) -> range:
        """Items that permutations move."""
        return self.subject.movable(self.n_items)

    def each(self, permutations: Permutations) -> Shuffles:
        """Deal permutations out to the inputs, the same number to each."""
        return permutations.reshape(len(self.items), -1, self.n_items)


def compare(bench: Bench, cell: Cell, permutations: Shuffles) -> Comparison:
    """Return how predictions move when inputs are permuted, each by permutations of its own.

    Args:
        bench: the model and its inputs.
        cell: what is switched on.
        permutations: (samples, count, items), or (count, items) for the same ones everywhere.
    """
    values, moved, worst = [], [], 0.0
    own = permutations if permutations.ndim == 3 else permutations.expand(len(bench.items), -1, -1)
    size = _group_size(bench, own.shape[1])
    for group, orders in zip(bench.items.split(size), own.split(size), strict=True):
        shuffled = torch.stack([x[order] for x, order in zip(group, orders, strict=True)])
        before, after = _predictions(bench, cell, group, shuffled)
        distance = js_bits if bench.subject.has_head else relative_change
        values.append(distance(before[:, None].expand_as(after), after))
        worst = max(worst, float((after - before[:, None]).abs().max()))
        same = (shuffled == group[:, None]).flatten(2).all(-1)
        moved.append((~same).double())
    return Comparison(values=torch.cat(values), max_difference=worst, moved=torch.cat(moved))


def _group_size(bench: Bench, n_permutations: int) -> int:
    n_outputs = getattr(bench.subject.model.config, "vocab_size", None) or 1000
    return max(1, GROUP_VALUES // (int(n_outputs) * (n_permutations + 1)))


def _predictions(
    bench: Bench, cell: Cell, group: Tensor, shuffled: Tensor
) -> tuple[Tensor, Tensor]:
    """Return predictions on the inputs (samples, outputs) and on all permuted ones."""
    rows = torch.cat([group[:, None], shuffled], dim=1).flatten(0, 1)
    bench.cost.asked += len(rows)
    back: Tensor | None = None
    if rows.ndim == 2:  # token ids: equal inputs need one run
        rows, back = torch.unique(rows, dim=0, return_inverse=True)
    parts = []
    for batch in batches(rows):
        parts.append(run(bench.subject, batch, cell).prediction)
        bench.cost.add(batch)
        bench.progress(len(batch))
    predictions = torch.cat(parts)
    if back is not None:
        predictions = predictions[back]
    predictions = predictions.reshape(len(group), -1, predictions.shape[-1])
    return predictions[:, 0], predictions[:, 1:]


def batches(rows: Tensor) -> Iterator[Tensor]:
    """Cut inputs into batches of about `BATCH_TOKENS` tokens."""
    yield from rows.split(max(1, BATCH_TOKENS // rows.shape[1]))


# --- readings --------------------------------------------------------------------------------


def mean_of(bench: Bench, comparison: Comparison) -> Mean:
    """Return the mean over samples of each sample's mean over permutations."""
    return bootstrap_mean(comparison.values.mean(dim=1), bench.generator)


@dataclass(frozen=True, kw_only=True)
class CellReading:
    """Order sensitivity in one cell of the 2 x 2."""

    mean_js_bits: float | None  # None without a prediction head
    mean_relative_change: float | None  # of the output vector, None with a head
    low: float
    high: float
    max_logit_difference: float


def read_cell(bench: Bench, cell: Cell, permutations: Shuffles) -> CellReading:
    """Return the order sensitivity of one cell under given permutations."""
    comparison = compare(bench, cell, permutations)
    mean = mean_of(bench, comparison)
    has_head = bench.subject.has_head
    return CellReading(
        mean_js_bits=mean.mean if has_head else None,
        mean_relative_change=None if has_head else mean.mean,
        low=mean.low,
        high=mean.high,
        max_logit_difference=comparison.max_difference,
    )


@dataclass(frozen=True, kw_only=True)
class SizedReading:
    """A mean at one distance, window or n-gram size."""

    size: int
    mean: float
    low: float
    high: float


def _sized(bench: Bench, size: int, permutations: Shuffles) -> SizedReading:
    mean = mean_of(bench, compare(bench, bench.subject.own_cell, permutations))
    return SizedReading(size=size, mean=mean.mean, low=mean.low, high=mean.high)


def doublings(first: int, last: int) -> list[int]:
    """Return first, 2 first, 4 first, ... up to `last`, which is included."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= 2
    return [*sizes, last] if last >= first else sizes


def by_swap_distance(bench: Bench, count: int) -> list[SizedReading]:
    """Return the mean effect of swapping two tokens, by how far apart they are."""
    total = count * len(bench.items)
    return [
        _sized(
            bench,
            distance,
            bench.each(
                swaps_at_distance(bench.n_items, bench.movable, distance, total, bench.generator)
            ),
        )
        for distance in doublings(1, len(bench.movable) - 1)
    ]


def by_window(bench: Bench, count: int) -> list[SizedReading]:
    """Return the mean effect of shuffles within windows of growing size."""
    total = count * len(bench.items)
    return [
        _sized(
            bench,
            window,
            bench.each(
                window_shuffles(bench.n_items, bench.movable, window, total, bench.generator)
            ),
        )
        for window in doublings(2, len(bench.movable))
    ]


def by_ngram(bench: Bench, count: int) -> list[SizedReading]:
    """Return the mean effect of shuffles that keep n-grams together; size 1 is a plain shuffle."""
    largest = len(bench.movable) // 2
    total = count * len(bench.items)
    return [
        _sized(
            bench,
            size,
            bench.each(ngram_shuffles(bench.n_items, bench.movable, size, total, bench.generator)),
        )
        for size in doublings(1, largest)
    ]


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """Equivariance defect of one layer's output in each cell that can be reached."""

    layer: int  # 0: the embedding
    defects: dict[str, float]


def by_layer(bench: Bench) -> list[LayerReading]:
    """Return |f_l(p X) - p f_l(X)| / |f_l(X)| over the items, at each layer, in each cell."""
    few = bench.items[:N_LAYER_SAMPLES]
    perms = shuffles(bench.n_items, bench.movable, N_LAYER_SHUFFLES, bench.generator)
    rows: dict[str, list[float]] = {}
    for cell in bench.subject.cells:
        start = run(bench.subject, few, cell, hidden=True).hidden
        bench.cost.add(few)
        totals = [0.0] * len(start)
        for perm in perms:
            moved = run(bench.subject, few[:, perm], cell, hidden=True).hidden
            bench.cost.add(few)
            for layer, (a, b) in enumerate(zip(start, moved, strict=True)):
                expected = a[:, perm].double()
                totals[layer] += float((b - expected).norm() / expected.norm()) / len(perms)
        rows[cell.value] = totals
    n_layers = len(next(iter(rows.values())))
    return [
        LayerReading(layer=k, defects={cell: values[k] for cell, values in rows.items()})
        for k in range(n_layers)
    ]


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
    pairs = bench.items[:, bench.movable.start : bench.movable.stop]
    moved = (pairs[:, 1:] != pairs[:, :-1]).double()
    return Comparison(values=torch.cat(values), max_difference=worst, moved=moved)
