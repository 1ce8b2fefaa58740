"""Which tokens' order matters: the effect of each neighbour swap, and blocks that swap freely.

Enters: a bench. Leaves: one reading a position, and blocks of neighbouring positions.

A block is found by its neighbour swaps at the inputs as they are. They generate all permutations of
the block, but free generators at one arrangement do not make their products free there (see
`defect`), so each block is tested again: its items are shuffled as a whole, and what that does is
reported beside what the swaps did.
"""

from dataclasses import dataclass

from orbitlens.order.permutations import shuffles
from orbitlens.order.sensitivity import Bench, compare, mean_of, neighbour_effects

FREE_SHARE = 0.01  # of the model's order sensitivity: a swap that does less counts as free
N_BLOCK_SHUFFLES = 8


@dataclass(frozen=True, kw_only=True)
class PositionReading:
    """What swapping a token with the next one does."""

    position: int  # of the first of the two
    from_end: int  # places between the second of the two and the end of the input
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
    comparison = neighbour_effects(bench)
    moved = comparison.moved.mean(dim=0)
    total = (comparison.values * comparison.moved).mean(dim=0)
    means = total / moved.clamp_min(1e-12)
    return [
        PositionReading(
            position=place,
            from_end=bench.n_items - 2 - place,
            mean=float(means[k]),
            share_moved=float(moved[k]),
        )
        for k, place in enumerate(bench.movable[:-1])
    ]


def find_blocks(bench: Bench, positions: list[PositionReading], threshold: float) -> list[Block]:
    """Return the maximal runs of positions whose neighbour swaps stay below the threshold."""
    blocks: list[Block] = []
    run: list[PositionReading] = []
    for reading in [*positions, None]:
        if reading is not None and reading.mean <= threshold and reading.share_moved > 0:
            run.append(reading)
            continue
        if run:
            blocks.append(_tested(bench, run, threshold))
        run = []
    return blocks


def _tested(bench: Bench, run: list[PositionReading], threshold: float) -> Block:
    places = range(run[0].position, run[-1].position + 2)
    perms = shuffles(bench.n_items, places, N_BLOCK_SHUFFLES, bench.generator)
    shuffled = mean_of(bench, compare(bench, bench.subject.own_cell, perms)).mean
    return Block(
        first=places.start,
        last=places.stop - 1,
        largest_swap=max(reading.mean for reading in run),
        shuffled=shuffled,
        free=shuffled <= threshold,
    )


def horizon(positions: list[PositionReading], threshold: float) -> int | None:
    """Return how many tokens back the last neighbour swap that matters is; None if none does not.

    Swaps further back than this stay below the threshold, all of them.
    """
    matter = [reading.from_end for reading in positions if reading.mean > threshold]
    furthest = max(matter) if matter else 0
    beyond = [reading for reading in positions if reading.from_end > furthest]
    return furthest if beyond else None
