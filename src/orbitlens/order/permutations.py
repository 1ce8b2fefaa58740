"""Permutations of positions: groups with their generators, and the shuffles an audit uses.

Enters: how many items there are and which of them may move. Leaves: integer tensors, one
permutation a row. A permutation p acts on items as (p x)[k] = x[p[k]].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.errors import InputError

Permutation = Int[Tensor, " items"]
Permutations = Int[Tensor, "count items"]
RATTLE_SIZE = 10  # elements kept by product replacement
RATTLE_BURN_IN = 60  # steps before its elements are taken for random


@dataclass(frozen=True)
class Group:
    """A group of permutations: what generates it, and how to draw from it."""

    name: str
    generators: Permutations
    draw: Callable[[int, torch.Generator], Permutations]  # count, generator -> that many elements

    @property
    def n_items(self) -> int:
        """Number of items the permutations act on."""
        return self.generators.shape[1]


# --- groups ----------------------------------------------------------------------------------


def all_permutations(n_items: int, *, movable: range | None = None) -> Group:
    """Return the group of all permutations of the movable items; neighbour swaps generate it."""
    moving = _checked(movable if movable is not None else range(n_items), n_items)
    return Group(
        "all",
        neighbour_swaps(n_items, moving),
        lambda count, generator: shuffles(n_items, moving, count, generator),
    )


def adjacent(n_items: int, *, movable: range | None = None) -> Group:
    """Return the same group as `all_permutations`, drawing neighbour swaps only."""
    moving = _checked(movable if movable is not None else range(n_items), n_items)
    swaps = neighbour_swaps(n_items, moving)

    def draw(count: int, generator: torch.Generator) -> Permutations:
        return swaps[torch.randint(len(swaps), (count,), generator=generator)]

    return Group("adjacent", swaps, draw)


def rows_and_columns(n_rows: int, n_columns: int) -> Group:
    """Return the group that permutes the rows and the columns of a grid, as patches of an image."""
    grid = torch.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    swaps = [grid[_swap(n_rows, k, k + 1)].flatten() for k in range(n_rows - 1)]
    swaps += [grid[:, _swap(n_columns, k, k + 1)].flatten() for k in range(n_columns - 1)]
    if not swaps:
        raise InputError("a grid of one cell has nothing to permute. Give more rows or columns.")

    def draw(count: int, generator: torch.Generator) -> Permutations:
        rows = [torch.randperm(n_rows, generator=generator) for _ in range(count)]
        columns = [torch.randperm(n_columns, generator=generator) for _ in range(count)]
        return torch.stack([grid[r][:, c].flatten() for r, c in zip(rows, columns, strict=True)])

    return Group("rows x columns", torch.stack(swaps), draw)


def generated_by(generators: Sequence[Sequence[int]] | Permutations) -> Group:
    """Return the group that given permutations generate; elements by product replacement.

    Product replacement (Celler et al., 1995) keeps a few elements and multiplies one by another
    again and again; its elements are close to uniform after a burn-in, never exactly so.
    """
    rows = torch.as_tensor([list(map(int, row)) for row in generators], dtype=torch.long)
    if rows.ndim != 2 or not len(rows):
        raise InputError("expected at least one generator, each as long as there are items.")
    wrong = (rows.sort(dim=1).values != torch.arange(rows.shape[1])).any(dim=1)
    if wrong.any():
        bad = int(wrong.nonzero()[0])
        raise InputError(
            f"generator {bad} is {rows[bad].tolist()}, which is no permutation of "
            f"0 ... {rows.shape[1] - 1}. Give each number once."
        )
    return Group("generated", rows, lambda count, generator: _rattle(rows, count, generator))


def _rattle(
    rows: Int[Tensor, "generators items"], count: int, generator: torch.Generator
) -> Permutations:
    pool = [rows[k % len(rows)] for k in range(max(RATTLE_SIZE, len(rows)))]
    drawn = []
    for step in range(RATTLE_BURN_IN + count):
        left, right = torch.randperm(len(pool), generator=generator)[:2].tolist()
        flip = bool(torch.randint(2, (1,), generator=generator))
        other = torch.argsort(pool[right]) if flip else pool[right]
        pool[left] = pool[left][other]
        if step >= RATTLE_BURN_IN:
            drawn.append(pool[left])
    return torch.stack(drawn)


# --- shuffles --------------------------------------------------------------------------------


def shuffles(
    n_items: int, movable: Sequence[int], count: int, generator: torch.Generator
) -> Permutations:
    """Return uniform permutations of the movable items; the others stay."""
    order = torch.rand(count, len(movable), generator=generator).argsort(dim=1)
    return _reordered(n_items, movable, order)


def neighbour_swaps(n_items: int, movable: Sequence[int]) -> Permutations:
    """Return the swaps of each movable item with the next; they generate all permutations."""
    swaps = [_swap(n_items, a, b) for a, b in pairwise(movable)]
    if not swaps:
        raise InputError(f"{len(movable)} of {n_items} items may move; a swap needs two.")
    return torch.stack(swaps)


def swaps_at_distance(
    n_items: int, movable: Sequence[int], distance: int, count: int, generator: torch.Generator
) -> Permutations:
    """Return swaps of two items `distance` apart among the movable ones, at random places."""
    room = len(movable) - distance
    if room < 1 or distance < 1:
        raise InputError(f"no two of {len(movable)} movable items are {distance} apart.")
    first = torch.randint(room, (count,), generator=generator)
    order = torch.arange(len(movable)).repeat(count, 1)
    pick = torch.arange(count)
    order[pick, first], order[pick, first + distance] = first + distance, first
    return _reordered(n_items, movable, order)


def window_shuffles(
    n_items: int, movable: Sequence[int], window: int, count: int, generator: torch.Generator
) -> Permutations:
    """Return permutations within windows of so many consecutive movable items."""
    places = torch.arange(len(movable))
    keys = (places // window).double() + torch.rand(
        count, len(movable), generator=generator, dtype=torch.float64
    )
    return _reordered(n_items, movable, keys.argsort(dim=1))


def ngram_shuffles(
    n_items: int, movable: Sequence[int], size: int, count: int, generator: torch.Generator
) -> Permutations:
    """Return permutations of whole n-grams of movable items: the order inside each is kept."""
    places = torch.arange(len(movable))
    orders = []
    for _ in range(count):
        # a random first cut, so that no boundary is special
        start = int(torch.randint(size, (1,), generator=generator))
        piece = (places + start) // size
        key = torch.rand(int(piece.max()) + 1, generator=generator, dtype=torch.float64)
        orders.append(torch.argsort(key[piece], stable=True))
    return _reordered(n_items, movable, torch.stack(orders))


def _reordered(
    n_items: int, movable: Sequence[int], order: Int[Tensor, "count moving"]
) -> Permutations:
    """Return permutations that put the movable items in given orders, the others staying."""
    places = torch.tensor(list(movable))
    rows = torch.arange(n_items).repeat(len(order), 1)
    rows[:, places] = places[order]
    return rows


def _swap(n_items: int, first: int, second: int) -> Permutation:
    row = torch.arange(n_items)
    row[first], row[second] = second, first
    return row


def _checked(movable: range, n_items: int) -> range:
    if movable.step != 1 or movable.start < 0 or movable.stop > n_items or len(movable) < 2:
        raise InputError(
            f"movable items {movable} do not fit {n_items} items. Expected at least two of them, "
            "side by side."
        )
    return movable
