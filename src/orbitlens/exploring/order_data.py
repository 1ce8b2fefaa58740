"""The Order room: what another order of a sentence's tokens does to the prediction.

Enters: a model, a sentence, an order of its items or nothing. Leaves: an `OrderReading`: the change
of the prediction in each cell of {with encoding, without} x {causal, full}; and a `SwapMap`: what
the swap of every two positions does, which of them the model cannot tell apart. Numbers are those
of `audit`, on this sentence alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.exploring.model_data import Outcome, outcomes_of, shown_outcomes
from orbitlens.exploring.passes import Explored, explored_of
from orbitlens.exploring.python_code import python_of
from orbitlens.exploring.sentence import Prompt, Sentence, sentence_of
from orbitlens.order.asked import Asked
from orbitlens.order.blocks import FREE_SHARE
from orbitlens.order.comparing import Bench, Comparison, compare, unpermuted
from orbitlens.order.measuring import NO_MASK
from orbitlens.order.permutations import Permutations, shuffles
from orbitlens.order.subject import Cell, Subject, run
from orbitlens.reporting.data import rounded
from orbitlens.running.threads import threads_for

ROUNDING = 1e-9  # bits, or relative change, below which two predictions are one in float32
N_SHUFFLES = 16  # that say what order is worth in a sentence
SEED = 0
NEAR, ALL = "neighbours", "all"  # which swaps a map has
Told = Callable[[int, int], None]  # rows done, of how many


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """What a reordering does in one cell of the 2 x 2."""

    cell: str
    change: float | None  # None where the cell cannot be reached
    why: str  # it cannot be reached


@dataclass(frozen=True, kw_only=True)
class OrderReading:
    """A sentence in another order."""

    tokens: tuple[str, ...]  # items as they stand in the sentence
    movable: tuple[int, ...]
    place: int  # the item whose prediction is read; -1: the whole
    asked: str
    own_cell: str
    order: tuple[int, ...]  # item k of the new order is item order[k] of the sentence
    cells: tuple[CellChange, ...]
    before: tuple[Outcome, ...]  # in the model as it is
    after: tuple[Outcome, ...]
    in_bits: bool
    notes: tuple[str, ...]
    python: str


@dataclass(frozen=True, kw_only=True)
class UsualOrders:
    """What random orders of a sentence do: the mean in each cell."""

    cells: tuple[CellChange, ...]
    n_shuffles: int
    python: str


@dataclass(frozen=True, kw_only=True)
class PairSwap:
    """Two positions and what swapping their tokens does."""

    first: int
    second: int
    change: float
    same: bool  # the tokens are equal, so that nothing was swapped


@dataclass(frozen=True, kw_only=True)
class SwapMap:
    """Swaps of two positions in one cell."""

    cell: str
    which: str  # NEAR or ALL
    swaps: tuple[PairSwap, ...]
    threshold: float  # FREE_SHARE of what a random order does in the model as it is
    rounding: float
    in_bits: bool
    python: str


def read_order(
    model: Any,  # noqa: ANN401 - an `Explored`, or what `load` takes
    given: Prompt,
    order: Sequence[int] | None = None,
    *,
    told: Told | None = None,
) -> OrderReading:
    """Return what another order of a sentence does to the prediction, in every cell.

    Args:
        model: anything `load` takes.
        given: the sentence.
        order: item k of the new order is item order[k] of the sentence; by default as it is.
        told: called with rows done and their number.

    Raises:
        InputError: this is no order of the movable items, or the sentence cannot be run.
    """
    explored = explored_of(model)
    rows = _Rows(explored, given, told)
    sentence, subject = rows.sentence, rows.subject
    chosen = _checked(sentence, subject, order)
    rows.n_rows = 2 * len(subject.compared) + 1
    cells = tuple(rows.changed(cell, torch.tensor([chosen])) for cell in Cell)
    own = subject.own_cell
    before = rows.start(own)
    after = rows.predictions(own, sentence.items[:, chosen])[0]
    shown = shown_outcomes(subject, before, after)
    n_front = sentence.n_front
    return rounded(
        OrderReading(
            tokens=sentence.names[n_front:],
            movable=subject.movable(sentence.n_items),
            place=-1 if n_front or subject.asked is Asked.POOLED else rows.query,
            asked=subject.asked.value,
            own_cell=own.value,
            order=tuple(chosen),
            cells=cells,
            before=outcomes_of(explored.model, subject, before, shown),
            after=outcomes_of(explored.model, subject, after, shown),
            in_bits=subject.in_bits,
            notes=(*explored.model.notes, *sentence.notes),
            python=python_of(explored, "read_order", given, chosen),
        )
    )


def read_usual(
    model: Any,  # noqa: ANN401
    given: Prompt,
    *,
    told: Told | None = None,
) -> UsualOrders:
    """Return what random orders of a sentence do to the prediction, on average, in every cell.

    Raises:
        InputError: the sentence cannot be run.
    """
    explored = explored_of(model)
    rows = _Rows(explored, given, told)
    rows.n_rows = len(rows.subject.compared) * (N_SHUFFLES + 1)
    return rounded(
        UsualOrders(
            cells=tuple(rows.changed(cell, rows.random) for cell in Cell),
            n_shuffles=N_SHUFFLES,
            python=python_of(explored, "read_usual", given),
        )
    )


def read_swaps(
    model: Any,  # noqa: ANN401
    given: Prompt,
    *,
    cell: str | None = None,
    which: str = ALL,
    told: Told | None = None,
) -> SwapMap:
    """Return what the swap of every two positions does to the prediction, in one cell.

    Args:
        model: anything `load` takes.
        given: the sentence.
        cell: of the 2 x 2; by default the model as it is.
        which: "all" pairs of positions, or "neighbours" alone, which costs far less.
        told: called with rows done and their number.

    Raises:
        InputError: the cell cannot be reached, or the sentence cannot be run.
    """
    explored = explored_of(model)
    rows = _Rows(explored, given, told)
    sentence, subject = rows.sentence, rows.subject
    chosen = _cell(subject, cell)
    pairs = pairs_of(subject, sentence.n_items, which)
    rows.n_rows = len(pairs) + N_SHUFFLES + 2
    threshold = FREE_SHARE * float(rows.compare(subject.own_cell, rows.random).values.mean())
    orders = torch.arange(sentence.n_items).repeat(len(pairs), 1)
    for row, (first, second) in zip(orders, pairs, strict=True):
        row[first], row[second] = second, first
    comparison = rows.compare(chosen, orders)
    swaps = tuple(
        PairSwap(first=a, second=b, change=value, same=not moved)
        for (a, b), value, moved in zip(
            pairs, comparison.values[0].tolist(), comparison.moved[0].tolist(), strict=True
        )
    )
    return rounded(
        SwapMap(
            cell=chosen.value,
            which=which,
            swaps=swaps,
            threshold=threshold,
            rounding=ROUNDING,
            in_bits=subject.in_bits,
            python=python_of(explored, "read_swaps", given, cell=chosen.value, which=which),
        )
    )


def pairs_of(subject: Subject, n_items: int, which: str) -> list[tuple[int, int]]:
    """Return the pairs of positions whose swaps a map has."""
    movable = subject.movable(n_items)
    if which not in {NEAR, ALL}:
        raise InputError(f"swaps of {which[:40]!r} were asked for; expected {ALL} or {NEAR}.")
    return list(pairwise(movable) if which == NEAR else combinations(movable, 2))


def _cell(subject: Subject, name: str | None) -> Cell:
    if name is None:
        return subject.own_cell
    if name not in set(Cell):
        raise InputError(f"there is no cell {name[:40]!r}; expected one of {', '.join(Cell)}.")
    chosen = Cell(name)
    why = why_not(subject, chosen)
    if why:
        raise InputError(f"{chosen.value}: {why}.")
    return chosen


def why_not(subject: Subject, cell: Cell) -> str:
    """Return why a cell cannot be compared, or nothing."""
    if cell in subject.compared:
        return ""
    return subject.obstacle(cell) or NO_MASK


def _checked(sentence: Sentence, subject: Subject, order: Sequence[int] | None) -> list[int]:
    n_items = sentence.n_items
    chosen = list(range(n_items)) if order is None else list(order)
    if sorted(chosen) != list(range(n_items)):
        raise InputError(
            f"this is no order of {n_items} tokens. Give each of 0 to {n_items - 1} once."
        )
    movable = set(subject.movable(n_items))
    held = [k for k in range(n_items) if k not in movable and chosen[k] != k]
    if held:
        raise InputError(
            f"token {held[0]} ({sentence.names[sentence.n_front + held[0]]!r}) stays where it is: "
            "it is a special token, or the one the prediction is read at."
        )
    return chosen


class _Rows:
    """Runs a sentence and reorderings of it, in batches; told after each."""

    def __init__(self, explored: Explored, given: Prompt, told: Told | None) -> None:
        self.model, self.told, self.done, self.n_rows = explored.model, told, 0, 1
        self.sentence = sentence_of(explored.model, given)
        # Details are read at one place, as an audit does.
        self.subject = replace(self.sentence.subject(explored.model), places=())
        n_items = self.sentence.n_items
        self.query = self.subject.query % n_items
        generator = torch.Generator().manual_seed(SEED)
        self.random = shuffles(n_items, self.subject.movable(n_items), N_SHUFFLES, generator)
        self.bench = Bench(
            subject=self.subject,
            items=self.sentence.items,
            generator=generator,
            progress=self._step,
            kept=explored.predictions_of(given),
        )

    def _step(self, n: int) -> None:
        self.done += n
        if self.told is not None:
            self.told(min(self.done, self.n_rows), self.n_rows)

    def compare(self, cell: Cell, orders: Permutations) -> Comparison:
        """Return what orders do in one cell."""
        with threads_for(self.model.n_parameters), self.model.evaluating():
            return compare(self.bench, cell, orders)

    def changed(self, cell: Cell, orders: Permutations) -> CellChange:
        """Return what orders do in one cell, on average."""
        why = why_not(self.subject, cell)
        if why:
            return CellChange(cell=cell.value, change=None, why=why)
        change = float(self.compare(cell, orders).values.mean())
        return CellChange(cell=cell.value, change=change, why="")

    def start(self, cell: Cell) -> Float[Tensor, " outputs"]:
        """Return the prediction on the sentence as it is."""
        with threads_for(self.model.n_parameters), self.model.evaluating():
            return unpermuted(self.bench, cell, self.subject)[0]

    def predictions(self, cell: Cell, items: Tensor) -> Float[Tensor, "batch outputs"]:
        """Return predictions on other items."""
        with threads_for(self.model.n_parameters), self.model.evaluating():
            return run(self.subject, items, cell).prediction
