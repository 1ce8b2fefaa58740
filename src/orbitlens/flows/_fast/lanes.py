"""Compiled attention of heads up to four wide: eight queries in the lanes of a register.

Enters: arrays whose columns are tokens. Leaves: arrays. A block of queries goes through all keys;
scores (to base 2), weights and sums stay in registers, and no row of weights is in memory. The
interpreter's lock is not held, so blocks can be shared out to threads. Every function here says how
exact its arithmetic is: one that does not say is compiled as its first caller is, and sums that may
be reordered undo the rounding that a power begins with.
"""

import math
from typing import no_type_check

import numpy as np

from orbitlens.flows._fast.exponentials import EXACT
from orbitlens.flows._fast.pair_vectors import held
from orbitlens.flows._fast.pairs import add_keys, mix_pairs
from orbitlens.flows._fast.rows import LANES as ROW_LANES
from orbitlens.flows._fast.rows import visible_range
from orbitlens.flows._fast.vectors import (
    apart,
    bundle,
    capped,
    gather,
    hidden_as,
    highest,
    infinite_if_nan,
    lanes,
    largest,
    minus,
    no_bundle,
    over,
    plus,
    power,
    product,
    put,
    spread,
    times,
)
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.powers import FULL, LANES, MIDDLE, SHORT

LOG2E = math.log2(math.e)
WIDEST_LANES = 4  # coordinates of a head; of more, sums do not fit into registers
SMALL = 500.0  # scores (to base 2) whose powers need no common factor
# Numba reads the number of coefficients off the type.
SHORT_TERMS, MIDDLE_TERMS, FULL_TERMS = (0,) * len(SHORT), (0,) * len(MIDDLE), (0,) * len(FULL)
N_SHORT, N_MIDDLE = len(SHORT) + 2, len(MIDDLE) + 2  # rows of a table


def padded_width(d_head: int) -> int:
    """Return the width that a head is filled up to with zeros, for the loops that it goes to."""
    return max(d_head, 2) if d_head <= WIDEST_LANES else d_head + -d_head % ROW_LANES


@no_type_check
@compiled(fastmath=EXACT)
def columns_for(n_tokens, width):
    """Return how many columns tokens take: whole blocks, where heads go to lanes."""
    return n_tokens + -n_tokens % LANES if width <= WIDEST_LANES else n_tokens


@no_type_check
@compiled(fastmath=EXACT)
def longest_column(x, n):
    """Return the largest length of a column; infinity if it is not a number."""
    longest = spread(0.0)
    for j in range(0, n, LANES):
        square = spread(0.0)
        for c in range(x.shape[0]):
            numbers = lanes(x, c, j)
            square = plus(square, times(numbers, numbers))
        longest = largest(longest, infinite_if_nan(square))
    return math.sqrt(highest(longest))


@no_type_check
@compiled(fastmath=EXACT)
def view_of(causal, window):
    """Return how many tokens before itself and after itself a token sees, as floats."""
    before = window - 1.0 if window > 0 else math.inf
    return before, 0.0 if causal else before


@no_type_check
@compiled(fastmath=EXACT)
def tops_of(queries, k, i, low, high, view, slope):
    """Return the largest score of each lane over the keys low ... high - 1."""
    top = spread(-math.inf)
    for j in range(low, high):
        s = minus(product(queries, k, j), times(spread(slope), apart(i, j)))
        top = largest(top, hidden_as(s, i, j, view[0], view[1], -math.inf))
    return top


@no_type_check
@compiled(fastmath=EXACT)
def _add_edges(queries, k, v, edges, top, table, i, view, slope, coordinates):
    """Add two stretches of keys: biased, too large for a float, or hidden from some lanes."""
    mixed, total = no_bundle(coordinates), spread(0.0)
    for edge in range(2):
        for j in range(edges[2 * edge], edges[2 * edge + 1]):
            s = minus(product(queries, k, j), times(spread(slope), apart(i, j)))
            w = power(capped(minus(s, top)), table, FULL_TERMS)
            w = hidden_as(w, i, j, view[0], view[1], 0.0)
            total = plus(total, w)
            mixed = gather(mixed, w, v, j)
    return mixed, total


@no_type_check
@compiled(fastmath=EXACT)
def _blocks(q, k, v, factor, slope, sees, n, small, tables, begin, end, coordinates, out):
    """Mix the values for the queries begin ... end - 1, block after block."""
    causal, window, unnormalised = sees
    view, plain = view_of(causal, window), slope == 0.0 and not unnormalised
    for i in range(begin, end, LANES):
        queries = bundle(q, i, factor, coordinates)
        low, all_below = visible_range(i, n, causal, window)
        all_from, high = visible_range(min(i + LANES, n) - 1, n, causal, window)
        if not (plain and all_from < all_below):
            all_from = all_below = low
        top = spread(0.0)
        if not small:
            top = tops_of(queries, k, i, low, high, view, slope)
        edges = (low, all_from, all_below, high)
        state = no_bundle(coordinates), spread(0.0)
        if all_from > low or high > all_below:
            state = _add_edges(queries, k, v, edges, top, tables[0], i, view, slope, coordinates)
        seen_by_all = (state, queries, k, v, all_from, all_below, top)
        if tables[1].shape[0] == N_SHORT:
            mixed, total = add_keys(*seen_by_all, held(tables[1], SHORT_TERMS))
        elif tables[1].shape[0] == N_MIDDLE:
            mixed, total = add_keys(*seen_by_all, held(tables[1], MIDDLE_TERMS))
        else:
            mixed, total = add_keys(*seen_by_all, held(tables[1], FULL_TERMS))
        if unnormalised:
            total = spread(float(n))
        put(mixed, over(spread(1.0), total), out, i)


@no_type_check
@compiled(fastmath=EXACT)
def _in_pairs(q, k, v, factor, n, powers, coordinates, memory, out):
    """Mix pair by pair, in heads of two or three; an exact power is not compiled for it."""
    if powers.shape[0] == N_SHORT:
        mix_pairs(q, k, v, factor, n, powers, SHORT_TERMS, coordinates, memory, out)
    else:
        mix_pairs(q, k, v, factor, n, powers, MIDDLE_TERMS, coordinates, memory, out)


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def mix_lanes(
    q, k, v, scale, slope, causal, window, unnormalised, n, tables, begin, end, memory, out
):
    """Write the means of one head's values for the tokens begin ... end - 1 into `out`.

    Tokens are columns, filled up with zeros to whole blocks of LANES; `begin` is the first of a
    block, and tokens of the last block are all written. `tables` are those of `power_tables`.
    `memory` has rows (`memory_for_pairs`) where scores are symmetric and all tokens are asked for.
    """
    factor, slope = scale * LOG2E, slope * LOG2E
    sees = (causal, window, unnormalised)
    bounded = slope == 0.0 and abs(factor) * longest_column(q, n) * longest_column(k, n) <= SMALL
    small = unnormalised or bounded
    paired = small and memory.shape[0] > 0 and tables[1].shape[0] <= N_MIDDLE
    if q.shape[0] == 2 and paired:
        _in_pairs(q, k, v, factor, n, tables[1], (0,) * 2, memory, out)
    elif q.shape[0] == 3 and paired:
        _in_pairs(q, k, v, factor, n, tables[1], (0,) * 3, memory, out)
    elif q.shape[0] == 2:
        _blocks(q, k, v, factor, slope, sees, n, small, tables, begin, end, (0,) * 2, out)
    elif q.shape[0] == 3:
        _blocks(q, k, v, factor, slope, sees, n, small, tables, begin, end, (0,) * 3, out)
    else:
        _blocks(q, k, v, factor, slope, sees, n, small, tables, begin, end, (0,) * 4, out)


@no_type_check
@compiled(fastmath=EXACT, nogil=True)
def mix_lanes_of_heads(
    q, k, v, scale, slopes, causal, window, unnormalised, n, tables, begin, end, out
):
    """Do `mix_lanes` for the columns begin ... end - 1 of all heads, one after the other."""
    columns, none = q.shape[2], np.empty((0, LANES))
    for h in range(begin // columns, (end - 1) // columns + 1):
        first, last = max(begin - h * columns, 0), min(end - h * columns, n)
        slope = slopes[h]
        mix_lanes(
            q[h],
            k[h],
            v[h],
            scale,
            slope,
            causal,
            window,
            unnormalised,
            n,
            tables,
            first,
            last,
            none,
            out[h],
        )
