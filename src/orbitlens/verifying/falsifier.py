"""verify: systems over every combination of settings, and a search that tries to break claims.

Enters: a number of systems and a seed. Leaves: a `Ledger`. Some of the systems are drawn; the
others come of them: each drawn system takes one of its certificates for a target, and in a few
rounds its numbers (maps, drift and start alike) are moved wherever the certificate still holds and
its slack is smaller.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice

import numpy as np

from orbitlens.errors import InputError
from orbitlens.running.threads import one_thread
from orbitlens.running.workers import local_workers
from orbitlens.verifying.episodes import Printed, Trial, printed_certificates, run_trials
from orbitlens.verifying.ledger import Ledger, Tally
from orbitlens.verifying.recipes import N_NUMBERS, draw_recipe

ROUNDS = 3  # of search behind most drawn systems
DEEP = 23  # of search behind those of every eighth batch
STEPS = (0.3, 0.1, 0.03)  # by which the numbers of a system are moved, in turn
TOGETHER = (8, 64)  # systems of one shape that are integrated at once: few of them if few in all
CHUNK = 2048  # systems of one random stream: what one process does at a time
SIZES = ((2, 2), (3, 2), (3, 3), (4, 3), (2, 3), (5, 4))
SHAPES = [(n, d, h) for n, d in SIZES for h in (1, 1, 2, 3)]


def verify(
    n_systems: int = 2000,
    *,
    seed: int = 0,
    n_workers: int = 1,
    printed: Printed = printed_certificates,
    progress: Callable[[int], None] | None = None,
) -> Ledger:
    """Try to break every certificate that is printed of `n_systems` systems.

    Args:
        n_systems: how many, searched ones included.
        seed: of everything that is drawn.
        n_workers: processes; their number does not change the result.
        printed: what is said of a system and its tokens; the library's own certificates.
        progress: called with the number of systems done.

    Raises:
        InputError: no systems were asked for.
    """
    if n_systems < 1:
        raise InputError(f"{n_systems} systems were asked for; expected at least 1.")
    sizes = [min(CHUNK, n_systems - at) for at in range(0, n_systems, CHUNK)]
    job = partial(_tally_chunk, seed=seed, printed=printed)
    total = Tally(seed)
    with nullcontext() if n_workers == 1 else local_workers(n_workers) as pool:
        chunks = (map if pool is None else pool.map)(job, range(len(sizes)), sizes)
        for chunk in chunks:
            total.merge(chunk)
            if progress is not None:
                progress(total.n_systems)
    return total.ledger()


def _tally_chunk(number: int, n_systems: int, *, seed: int, printed: Printed) -> Tally:
    """Return the sums of one random stream."""
    tally = Tally(seed)
    random = np.random.default_rng([seed, number])
    batch, together = 0, max(TOGETHER[0], min(TOGETHER[1], n_systems * TOGETHER[1] // CHUNK))
    with one_thread():
        while tally.n_systems < n_systems:
            n_rounds = DEEP if batch % 8 == 7 else ROUNDS
            left = n_systems - tally.n_systems
            n_drawn = min(together, -(-left // (n_rounds + 1)))
            shape = SHAPES[int(random.integers(len(SHAPES)))]
            for trials in _hunt(random, shape, n_drawn=n_drawn, n_rounds=n_rounds, printed=printed):
                tally.add(trials[: n_systems - tally.n_systems])
            batch += 1
    return tally


def _hunt(
    random: np.random.Generator,
    shape: tuple[int, int, int],
    *,
    n_drawn: int,
    n_rounds: int,
    printed: Printed,
) -> Iterator[list[Trial]]:
    """Yield drawn systems, then rounds of the same, moved against their targets."""
    made = [(draw_recipe(random, shape), random.normal(size=N_NUMBERS)) for _ in range(n_drawn)]
    best = run_trials(made, printed=printed, with_ends=True)
    yield best
    targets = [str(random.choice(sorted(t.slacks))) if t.slacks else None for t in best]
    for step in islice(cycle(STEPS), n_rounds):
        moved = [(t.recipe, t.theta + step * random.normal(size=N_NUMBERS)) for t in best]
        tried = run_trials(moved, printed=printed, with_ends=False)
        yield tried
        best = [
            new if target in new.slacks and new.slacks[target] < old.slacks[target] else old
            for old, new, target in zip(best, tried, targets, strict=True)
        ]
