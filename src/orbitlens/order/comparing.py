"""Comparisons: how far predictions move from inputs as they are to the same inputs, permuted.

Enters: a subject, inputs and permutations. Leaves: one divergence for each input and permutation.

Work: permutations run in batches, equal inputs (repeated tokens) run once, what inputs as they are
give is kept, only the query's logits are computed, and what lies before the first token that moves
is shared where a mask is causal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.order.divergence import js_bits, relative_change
from orbitlens.order.packing import can_pack, n_shared, packs, run_packed
from orbitlens.order.permutations import Permutations
from orbitlens.order.subject import Cell, Output, Subject, run

BATCH_TOKENS = 2048  # tokens of one forward call: small enough for the cache of one core
GROUP_VALUES = 64_000_000  # logits held at once
SHARED_PART = 8  # a beginning shorter than 1 / 8 of an input is not worth sharing

Shuffles = Int[Tensor, "*samples each items"]
States = tuple[Float[Tensor, "samples items d_model"], ...]


@dataclass
class Work:
    """What has been run so far; the only thing here that changes."""

    forward_calls: int = 0
    sequences: int = 0  # that went through the model, or the end of them
    asked: int = 0  # that were asked for: repeated inputs run once
    tokens: int = 0

    def add(self, batch: Tensor, n_sequences: int | None = None) -> None:
        """Count one forward call; of packed sequences, each end counts."""
        self.forward_calls += 1
        self.sequences += len(batch) if n_sequences is None else n_sequences
        self.tokens += batch.shape[0] * batch.shape[1]


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
    n_states: int = 0  # inputs whose states are kept when they run as they are
    kept: dict[tuple[Cell, int], Tensor] = field(default_factory=dict)  # predictions on the inputs
    states: dict[Cell, States] = field(default_factory=dict)  # of each layer, on those

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
        return replace(self, items=self.items[chosen], kept=kept, n_states=0, states={})

    def each(self, permutations: Permutations) -> Shuffles:
        """Deal permutations out to the inputs, the same number to each."""
        return permutations.reshape(len(self.items), -1, self.n_items)

    def ran(self, batch: Tensor, n_sequences: int | None = None) -> None:
        """Count one forward call, and tell of it."""
        self.cost.add(batch, n_sequences)
        self.progress(len(batch) if n_sequences is None else n_sequences)


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
            owners = (~is_same).nonzero()[:, 0]
            after[~is_same] = _after(bench, cell, asked, group, shuffled[~is_same], owners)
        values.append(distance(before[:, None], after))
        for start, moves in zip(before, after, strict=True):  # piece by piece: less fresh memory
            worst = max(worst, float((moves - start).abs().max()))
        moved.append((~is_same).double())
    return Comparison(values=torch.cat(values), max_difference=worst, moved=torch.cat(moved))


def batches(rows: Tensor) -> Iterator[Tensor]:
    """Cut inputs into batches of about `BATCH_TOKENS` tokens."""
    yield from rows.split(max(1, BATCH_TOKENS // rows.shape[1]))


# --- inputs as they are ----------------------------------------------------------------------


def unpermuted(bench: Bench, cell: Cell, subject: Subject) -> Float[Tensor, "samples outputs"]:
    """Return the predictions on the inputs as they are, run once for all comparisons."""
    key = (cell, subject.query)
    if key not in bench.kept:
        bench.cost.asked += len(bench.items)
        if bench.n_states > 0 and subject.query == bench.subject.query:
            run_beside(bench, cell, bench.items[:0])
        else:
            bench.kept[key] = _distinct(bench, cell, subject, bench.items)
    return bench.kept[key]


def run_beside(bench: Bench, cell: Cell, rows: Tensor) -> Output:
    """Run the inputs as they are, for all comparisons, and other rows in one batch with the first.

    Returns:
        Output: of the first input and the other rows; the bench keeps what all inputs give, and
            the states of as many as it is asked to.
    """
    parts, states, left = [], [], max(1, bench.n_states)
    beside: Output | None = None
    for batch in batches(bench.items):
        own = batch if beside is not None else torch.cat([batch, rows])
        output = run(bench.subject, own, cell, hidden=left > 0)
        bench.ran(own)
        beside = beside or _of_rows(output, [0, *range(len(batch), len(own))])
        parts.append(output.prediction[: len(batch)])
        if left > 0:
            states.append([layer[: min(left, len(batch))].clone() for layer in output.hidden])
            left -= len(batch)
    bench.kept[cell, bench.subject.query] = torch.cat(parts)
    bench.states[cell] = tuple(torch.cat(layer) for layer in zip(*states, strict=True))
    assert beside is not None  # there is at least one input
    return beside


def _of_rows(output: Output, rows: list[int]) -> Output:
    """Return the predictions and last states of some rows."""
    return Output(prediction=output.prediction[rows], hidden=(output.hidden[-1][rows],))


# --- permuted inputs -------------------------------------------------------------------------


def _after(
    bench: Bench, cell: Cell, subject: Subject, items: Tensor, rows: Tensor, owners: Tensor
) -> Float[Tensor, "rows outputs"]:
    """Return predictions on permuted inputs; what lies before a change is run once if possible."""
    if not can_pack(subject, cell):
        return _distinct(bench, cell, subject, rows)
    shared = n_shared(rows, items[owners])
    is_long = shared >= max(1, bench.n_items // SHARED_PART)
    if not is_long.any():
        return _distinct(bench, cell, subject, rows)
    found = [_packed(bench, subject, rows[is_long], owners[is_long], shared[is_long])]
    if not is_long.all():
        found.append(_distinct(bench, cell, subject, rows[~is_long]))
    order = torch.cat([is_long.nonzero()[:, 0], (~is_long).nonzero()[:, 0]])
    return torch.cat(found)[order.argsort()]


def _packed(
    bench: Bench, subject: Subject, rows: Tensor, owners: Tensor, shared: Tensor
) -> Float[Tensor, "rows outputs"]:
    """Return predictions on permuted inputs, run from the first token that moved on."""
    named = torch.cat([owners[:, None], shared[:, None], rows], dim=1)
    named, back = torch.unique(named, dim=0, return_inverse=True)
    owners, shared, rows = named[:, 0], named[:, 1], named[:, 2:]
    these = packs(owners, shared, bench.n_items)
    found: dict[int, Tensor] = {}
    for which, tokens, predictions in run_packed(subject, rows, these, n_tokens=BATCH_TOKENS):
        bench.ran(tokens, len(which))
        found |= zip(which, predictions, strict=True)
    return torch.stack([found[k] for k in back.tolist()])


def _distinct(
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
        bench.ran(batch)
    bench.progress(n_rows - len(rows))
    predictions = torch.cat(parts)
    return predictions if back is None else predictions[back]
