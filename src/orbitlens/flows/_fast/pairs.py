"""Compiled attention where scores are symmetric: both tokens of a pair share one exponential.

Enters: arrays whose columns are tokens, of a head whose score map W is symmetric (W = I among
them), without mask, bias or rotation, so that q_i.k_j = q_j.k_i. Leaves: an array. A block of eight
queries meets the keys behind it, as in `lanes.py`; what each of these keys gets from the block is
kept lane by lane, and summed over lanes once for all blocks. Half of the exponentials are left.
"""

from typing import no_type_check

import numpy as np

from orbitlens.flows._fast.exponentials import EXACT
from orbitlens.flows._fast.pair_vectors import held, keep, power_held, summed
from orbitlens.flows._fast.vectors import (
    bundle,
    gather,
    lanes,
    minus,
    no_bundle,
    over,
    plus,
    product,
    put,
    spread,
    write_lanes,
)
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.powers import LANES

WIDEST_PAIRS = 3  # coordinates of a head: of more, loops are not compiled
TOGETHER = 64  # keys at a time: what is kept of them stays in the nearest cache
ROUNDED = 1e-15  # of the largest entry of a score map: how far from symmetric rounding leaves it


@no_type_check
@compiled()
def is_symmetric(system, h):
    """Return whether scores of head h are the same both ways, whatever the tokens are."""
    if system.causal or system.window or system.unnormalised or system.slopes.size:
        return False
    if system.b_q.size or system.b_k.size or system.first.size:
        return False
    w_q, w_k = system.w_q[h], system.w_k[h]
    most, apart = 0.0, 0.0
    for a in range(w_q.shape[0]):
        for b in range(a + 1):
            there, back = 0.0, 0.0
            for c in range(w_q.shape[1]):
                there += w_q[a, c] * w_k[b, c]
                back += w_q[b, c] * w_k[a, c]
            most, apart = max(most, abs(there)), max(apart, abs(there - back))
    return apart <= ROUNDED * most


@no_type_check
@compiled()
def memory_for_pairs(width, columns):
    """Return rows of LANES numbers to work in: those of TOGETHER keys, and the sums of weights.

    They begin where a register's worth does: a row that lies across two takes twice as long.
    """
    n_rows = TOGETHER * (width + 1) + columns // LANES
    flat = np.empty((n_rows + 1) * LANES)
    skipped = -(flat.ctypes.data // flat.itemsize) % LANES
    return flat[skipped : skipped + n_rows * LANES].reshape((n_rows, LANES))


@no_type_check
@compiled(fastmath=EXACT)
def add_keys(state, queries, k, v, low, high, top, table):
    """Add the keys low ... high - 1 to the queries, all of which see them; `table` is held."""
    mixed, total = state
    for j in range(low, high):
        w = power_held(minus(product(queries, k, j), top), table)
        total = plus(total, w)
        mixed = gather(mixed, w, v, j)
    return mixed, total


@no_type_check
@compiled(fastmath=EXACT)
def _add_pairs(state, queries, own, k, v, low, high, table, memory, row):
    """Add the keys low ... high - 1 to the queries, and the queries to what is kept of the keys."""
    mixed, total = state
    for j in range(low, high):
        w = power_held(product(queries, k, j), table)
        total = plus(total, w)
        mixed = gather(mixed, w, v, j)
        keep(own, w, memory, row)
        row += v.shape[0] + 1
    return mixed, total


@no_type_check
@compiled(fastmath=EXACT)
def mix_pairs(q, k, v, factor, n, powers, terms, coordinates, memory, out):
    """Write the means of one head's values into `out`; scores, to base 2, are factor q.k.

    Tokens are columns, filled up with zeros to whole blocks. Powers have no common factor: scores
    must be small enough for that. `memory` is that of `memory_for_pairs`.
    """
    table = held(powers, terms)
    whole, each = n - n % LANES, v.shape[0] + 1
    sums = TOGETHER * each  # the row of the first sums
    for i in range(0, n, LANES):
        put(no_bundle(coordinates), spread(0.0), out, i)
        write_lanes(spread(0.0), memory, sums + i // LANES, 0)
    for low in range(0, whole, TOGETHER):
        high = min(low + TOGETHER, whole)
        for row in range((high - low) * each):
            write_lanes(spread(0.0), memory, row, 0)
        for i in range(0, high, LANES):
            queries, own = bundle(q, i, factor, coordinates), bundle(v, i, 1.0, coordinates)
            place = sums + i // LANES
            state = bundle(out, i, 1.0, coordinates), lanes(memory, place, 0)
            begin = low
            if i >= low:  # the block itself is among the keys: each of its pairs comes twice
                begin = i + LANES
                state = add_keys(state, queries, k, v, i, begin, spread(0.0), table)
            row = (begin - low) * each
            mixed, total = _add_pairs(state, queries, own, k, v, begin, high, table, memory, row)
            put(mixed, spread(1.0), out, i)
            write_lanes(total, memory, place, 0)
        for j in range(low, high, LANES):
            row, place = (j - low) * each, sums + j // LANES
            for c in range(each - 1):
                write_lanes(plus(lanes(out, c, j), summed(memory, row + c, each)), out, c, j)
            more = summed(memory, row + each - 1, each)
            write_lanes(plus(lanes(memory, place, 0), more), memory, place, 0)
    for i in range(0, n, LANES):  # the tokens that fill no block
        queries = bundle(q, i, factor, coordinates)
        state = bundle(out, i, 1.0, coordinates), lanes(memory, sums + i // LANES, 0)
        first = whole if i < whole else 0
        mixed, total = add_keys(state, queries, k, v, first, n, spread(0.0), table)
        put(mixed, over(spread(1.0), total), out, i)
