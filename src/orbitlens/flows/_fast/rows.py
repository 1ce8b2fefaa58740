"""Compiled loops over tokens: the attention of heads 5 to 16 wide in the compiled integrator.

Enters: arrays whose columns are tokens, float64 or float32. Leaves: arrays. The loops are written
so that the compiler turns them into vector instructions, exponentials included: head widths are
padded to a multiple of `LANES`, rows are contiguous, nothing in a loop depends on a branch, and no
constant is wider than the arrays are. The interpreter's lock is not held, so rows can be shared out
to threads.
"""

import math
from typing import no_type_check

import numpy as np

from orbitlens.flows._fast.exponentials import HIGHEST, HIGHEST_SINGLE, exponential
from orbitlens.running._compiled.compiling import compiled

# Sums may be taken in any order; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz"}
U = np.uint64
LANES = 4  # coordinates of a head that one pass over the tokens takes together

# Loops below count with unsigned numbers: a signed index might be negative, which Python counts
# from the end, and the test for it keeps loops from being vectorised. Slices would do, but at 64
# tokens making them takes as long as the arithmetic.


@no_type_check
@compiled(fastmath={"nnan", "nsz"})
def _largest(rows, m, low, high):
    top = rows[m, low]
    for j in range(low, high):
        top = max(top, rows[m, j])
    return top


@no_type_check
@compiled(fastmath={"contract", "reassoc"})
def exponentiate(rows, m, low, high, top):
    """Replace s = rows[m, low:high] by exp(s - top) and return its sum."""
    total = rows.dtype.type(0)
    for j in range(low, high):
        weight = exponential(rows[m, j] - top)
        rows[m, j] = weight
        total += weight
    return total


# --- mixing ----------------------------------------------------------------------------------


@no_type_check
@compiled(fastmath=FAST)
def _score_pair(q, i, twin, k, scale, low, high, rows):
    """Write the scores of the tokens i and twin against low ... high - 1 into two rows."""
    for a in range(U(0), U(q.shape[0]), U(LANES)):
        b, c, d = a + U(1), a + U(2), a + U(3)
        p0, p1, p2, p3 = scale * q[a, i], scale * q[b, i], scale * q[c, i], scale * q[d, i]
        q0, q1 = scale * q[a, twin], scale * q[b, twin]
        q2, q3 = scale * q[c, twin], scale * q[d, twin]
        if a == U(0):
            for j in range(low, high):
                k0, k1, k2, k3 = k[a, j], k[b, j], k[c, j], k[d, j]
                rows[U(0), j] = p0 * k0 + p1 * k1 + p2 * k2 + p3 * k3
                rows[U(1), j] = q0 * k0 + q1 * k1 + q2 * k2 + q3 * k3
        else:
            for j in range(low, high):
                k0, k1, k2, k3 = k[a, j], k[b, j], k[c, j], k[d, j]
                rows[U(0), j] += p0 * k0 + p1 * k1 + p2 * k2 + p3 * k3
                rows[U(1), j] += q0 * k0 + q1 * k1 + q2 * k2 + q3 * k3


@no_type_check
@compiled(fastmath=FAST)
def _weigh_pair(rows, v, low, high, i, twin, part, part_twin, out):
    """Write the means of values under two rows of weights into the columns i and twin."""
    for a in range(U(0), U(out.shape[0]), U(LANES)):
        b, c, d = a + U(1), a + U(2), a + U(3)
        p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = v.dtype.type(0)
        for j in range(low, high):
            p, q = rows[U(0), j], rows[U(1), j]
            v0, v1, v2, v3 = v[a, j], v[b, j], v[c, j], v[d, j]
            p0 += p * v0
            p1 += p * v1
            p2 += p * v2
            p3 += p * v3
            q0 += q * v0
            q1 += q * v1
            q2 += q * v2
            q3 += q * v3
        out[a, i], out[b, i], out[c, i], out[d, i] = p0 * part, p1 * part, p2 * part, p3 * part
        out[a, twin], out[b, twin] = q0 * part_twin, q1 * part_twin
        out[c, twin], out[d, twin] = q2 * part_twin, q3 * part_twin


@no_type_check
@compiled()
def visible_range(i, n, causal, window):
    """Return the stretch of tokens that token i sees."""
    low, high = 0, n
    if causal:
        high = i + 1
    if window > 0:
        low = max(0, i - window + 1)
        high = min(high, i + window)
    return low, high


@no_type_check
@compiled(fastmath=FAST)
def shape_scores(rows, m, low, high, seen, slope, i, unnormalised):
    """Hide what token i does not see, add its biases, and return what to shift its scores by."""
    for j in range(low, seen[0]):
        rows[m, j] = -math.inf
    for j in range(seen[1], high):
        rows[m, j] = -math.inf
    if slope != 0.0:
        for j in range(seen[0], seen[1]):
            rows[m, j] -= slope * abs(j - i)
    if unnormalised:
        highest = HIGHEST if rows.itemsize == 8 else HIGHEST_SINGLE
        for j in range(low, high):
            rows[m, j] = rows[m, j] if rows[m, j] <= highest else math.nan
    return rows.dtype.type(0) if unnormalised else _largest(rows, U(m), U(low), U(high))


@no_type_check
@compiled(fastmath=FAST, nogil=True)
def mix_rows(q, k, v, scale, slope, causal, window, unnormalised, begin, end, out):
    """Write the means of one head's values for the tokens begin ... end - 1 into `out`.

    Tokens are columns; a head's width is filled up with zeros to a multiple of LANES. Two tokens
    are done at a time, so that keys and values are read half as often; an odd last one is done
    twice.
    """
    n = q.shape[1]
    rows = np.empty((2, n), q.dtype)
    factor = q.dtype.type(scale)
    for i in range(begin, end, 2):
        twin = min(i + 1, end - 1)
        seen, seen_twin = (
            visible_range(i, n, causal, window),
            visible_range(twin, n, causal, window),
        )
        low, high = seen[0], seen_twin[1]
        _score_pair(q, U(i), U(twin), k, factor, U(low), U(high), rows)
        top = shape_scores(rows, 0, low, high, seen, slope, i, unnormalised)
        top_twin = shape_scores(rows, 1, low, high, seen_twin, slope, twin, unnormalised)
        total = exponentiate(rows, U(0), U(low), U(high), top)
        total_twin = exponentiate(rows, U(1), U(low), U(high), top_twin)
        if unnormalised:
            total = total_twin = float(n)
        _weigh_pair(rows, v, U(low), U(high), U(i), U(twin), 1.0 / total, 1.0 / total_twin, out)
