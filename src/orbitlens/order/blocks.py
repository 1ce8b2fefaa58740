"""Which tokens' order matters: the effect of each neighbour swap, and blocks that swap freely.

Enters: a bench. Leaves: one reading a position, and blocks of neighbouring positions.

A block is found by its neighbour swaps at the inputs as they are. They generate all permutations of
the block, but free generators at one arrangement do not make their products free there (see
`defect`), so each block is tested again: its items are shuffled as a whole, and what that does is
reported beside what the swaps did.
"""

from dataclasses import dataclass
from itertools import pairwise

from orbitlens.order.comparing import Bench, compare
from orbitlens.order.permutations import neighbour_swaps, shuffles
from orbitlens.order.sensitivity import mean_of

FREE_SHARE = 0.01  # of the model's order sensitivity: a swap that does less counts as free


@dataclass(frozen=True, kw_only=True)
class PositionReading:
    """What swapping a token with the next one that moves does."""

    position: int  # of the first of the two
    other: int  # of the second
    from_query: int  # places from the nearer of the two to where the prediction is read
    mean: float  # over inputs in which the two tokens differ; bits
    share_moved: float  # share of inputs in which they differ


@dataclass(frozen=True, kw_only=True)
class Block:
    """Neighbouring positions whose swaps each do less than the threshold."""

    first: int
    last: int  # included
    largest_swap: float  # mean effect of its strongest neighbour swap
    shuffled: float  # mean effect of shuffling the whole block
    free: bool  # the shuffle, too, stays below the threshold


def by_position(bench: Bench) -> list[PositionReading]:
    """Return the effect of each neighbour swap, averaged over inputs that it changes."""
    swaps = neighbour_swaps(bench.n_items, bench.movable)
    comparison = compare(bench, bench.subject.own_cell, swaps)
    moved = comparison.moved.mean(dim=0)
    total = (comparison.values * comparison.moved).mean(dim=0)
    means = total / moved.clamp_min(1e-12)
    query = bench.subject.query % bench.n_items
    return [
        PositionReading(
            position=first,
            other=second,
            from_query=min(abs(query - first), abs(query - second)),
            mean=float(means[k]),
            share_moved=float(moved[k]),
        )
        for k, (first, second) in enumerate(pairwise(bench.movable))
    ]


def find_blocks(
    bench: Bench, positions: list[PositionReading], threshold: float, *, n_shuffles: int = 8
) -> list[Block]:
    """Return the maximal runs of positions whose neighbour swaps stay below the threshold."""
    blocks: list[Block] = []
    run: list[PositionReading] = []
    for reading in [*positions, None]:
        if reading is not None and reading.mean <= threshold and reading.share_moved > 0:
            run.append(reading)
            continue
        if run:
            blocks.append(_tested(bench, run, threshold, n_shuffles))
        run = []
    return blocks


def _tested(bench: Bench, run: list[PositionReading], threshold: float, n_shuffles: int) -> Block:
    places = [*(reading.position for reading in run), run[-1].other]
    perms = shuffles(bench.n_items, places, n_shuffles, bench.generator)
    shuffled = mean_of(bench, compare(bench, bench.subject.own_cell, perms)).mean
    return Block(
        first=places[0],
        last=places[-1],
        largest_swap=max(reading.mean for reading in run),
        shuffled=shuffled,
        free=shuffled <= threshold,
    )


def horizon(positions: list[PositionReading], threshold: float) -> int | None:
    """Return how far from the query the last neighbour swap that matters is; None if all do.

    Swaps further off than this stay below the threshold, all of them.
    """
    matter = [reading.from_query for reading in positions if reading.mean > threshold]
    furthest = max(matter) if matter else 0
    beyond = [reading for reading in positions if reading.from_query > furthest]
    return furthest if beyond else None
