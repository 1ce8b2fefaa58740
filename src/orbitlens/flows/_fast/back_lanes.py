"""The way back through attention of heads up to four wide: eight tokens in the lanes of a register.

Enters: queries, keys, values and the gradient with respect to the means, tokens as columns. Leaves:
gradients with respect to all three. With weights p_ij and means m_i,

    dq_i = c sum_j p_ij (g_i . v_j - g_i . m_i) k_j,    dv_j = sum_i p_ij g_i,
    dk_j = c sum_i p_ij (g_i . v_j - g_i . m_i) q_i,

c being the scale of scores. The first takes a block of queries through all keys, and finds totals
and means on its way, so that no pass before it has to; the others take a block of keys through all
queries. Weights are computed in both and kept in neither.
"""

from typing import no_type_check

from orbitlens.flows._fast.exponentials import EXACT
from orbitlens.flows._fast.lanes import (
    FULL_TERMS,
    LOG2E,
    SMALL,
    longest_column,
    tops_of,
    view_of,
)
from orbitlens.flows._fast.rows import visible_range
from orbitlens.flows._fast.vectors import (
    bundle,
    gather,
    hidden_as,
    inner,
    minus,
    no_bundle,
    over,
    plus,
    power,
    product,
    put,
    put_more,
    spread,
    times,
    write_lanes,
)
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running._compiled.powers import LANES


@no_type_check
@compiled(fastmath=EXACT)
def _queries_back(q, k, v, g, scale, sees, small, table, coordinates, out):
    """Write means, gradients of queries, and of each token: its top, 1 / total, and g . m."""
    mixed, dq, about = out
    n, causal, window = sees
    factor, view = scale * LOG2E, view_of(causal, window)
    masked = causal or window > 0
    for i in range(0, n, LANES):
        queries, given = bundle(q, i, factor, coordinates), bundle(g, i, 1.0, coordinates)
        low, _ = visible_range(i, n, causal, window)
        _, high = visible_range(min(i + LANES, n) - 1, n, causal, window)
        top, total = spread(0.0), spread(0.0)
        if not small:
            top = tops_of(queries, k, i, low, high, view, 0.0)
        means, keys = no_bundle(coordinates), no_bundle(coordinates)
        leaning = no_bundle(coordinates)  # keys, weighted by what their values have in common
        for j in range(low, high):
            w = power(minus(product(queries, k, j), top), table, FULL_TERMS)
            if masked:
                w = hidden_as(w, i, j, view[0], view[1], 0.0)
            total = plus(total, w)
            means = gather(means, w, v, j)
            keys = gather(keys, w, k, j)
            leaning = gather(leaning, times(w, product(given, v, j)), k, j)
        part = over(spread(1.0), total)
        along = times(inner(given, means), part)
        put(means, part, mixed, i)
        put(leaning, times(part, spread(scale)), dq, i)
        put_more(keys, times(times(part, along), spread(-scale)), dq, i)
        write_lanes(top, about, 0, i)
        write_lanes(part, about, 1, i)
        write_lanes(along, about, 2, i)


@no_type_check
@compiled(fastmath=EXACT)
def _keys_back(q, k, v, g, scale, sees, about, table, coordinates, out):
    """Write gradients of keys and values."""
    dk, dv = out
    n, causal, window = sees
    view = view_of(causal, window)
    masked = causal or window > 0
    for j in range(0, n, LANES):
        keys, values = bundle(k, j, scale * LOG2E, coordinates), bundle(v, j, 1.0, coordinates)
        last = min(j + LANES, n) - 1
        low = j if causal else (max(0, j - window + 1) if window > 0 else 0)
        high = min(n, last + window) if window > 0 else n
        of_keys, of_values = no_bundle(coordinates), no_bundle(coordinates)
        for i in range(low, high):
            s = minus(product(keys, q, i), spread(about[0, i]))
            w = times(power(s, table, FULL_TERMS), spread(about[1, i]))
            if masked:
                w = hidden_as(w, j, i, view[1], view[0], 0.0)
            of_values = gather(of_values, w, g, i)
            leans = minus(product(values, g, i), spread(about[2, i]))
            of_keys = gather(of_keys, times(w, leans), q, i)
        put(of_keys, spread(scale), dk, j)
        put(of_values, spread(1.0), dv, j)


@no_type_check
@compiled(fastmath=EXACT)
def _both(q, k, v, g, scale, sees, table, coordinates, out):
    mixed, dq, dk, dv, about = out
    n = sees[0]
    small = abs(scale * LOG2E) * longest_column(q, n) * longest_column(k, n) <= SMALL
    _queries_back(q, k, v, g, scale, sees, small, table, coordinates, (mixed, dq, about))
    _keys_back(q, k, v, g, scale, sees, about, table, coordinates, (dk, dv))


@no_type_check
@compiled(fastmath=EXACT)
def mix_back(q, k, v, g, scale, sees, table, out):
    """Write the means of one head's values, and the gradients of queries, keys and values.

    `sees` is the number of tokens, whether they are causal, and their window; `out` is the means,
    the three gradients, and three rows to work in. Columns beyond the tokens are to be zero.
    """
    if q.shape[0] == 2:
        _both(q, k, v, g, scale, sees, table, (0,) * 2, out)
    elif q.shape[0] == 3:
        _both(q, k, v, g, scale, sees, table, (0,) * 3, out)
    else:
        _both(q, k, v, g, scale, sees, table, (0,) * 4, out)
